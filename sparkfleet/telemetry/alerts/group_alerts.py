"""Alerts on deployments, their groups and their speed. Pure."""

from __future__ import annotations

from sparkfleet.telemetry.alerts.alert import alert, for_an_hour

ERROR_SHARE = 0.05
ENOUGH_DRAFTED = 500
"""Draft tokens of ten minutes from which their acceptance is judged: about a hundred drafts of five. A share of 0.6 then has
a standard error of 0.05 if drafts are independent; a fall to the half is six of those. A single short answer has fewer."""
HALF = 0.5
_AT = "on (deployment, group)"

DEPLOYMENTS = (
    alert(
        "DeploymentFailed",
        'sparkfleet_deployment_state{state="failed"} == 1',
        "30s",
        "critical",
        summary="{{ $labels.deployment }} has failed.",
        means="Its group was given up, or waits for a node that may never return; requests get 503.",
        look="`sparkfleet describe {{ $labels.deployment }}`: the reason, and the rungs that were tried.",
        do="Mend the cause, then `sparkfleet apply --retry` with its file.",
    ),
    alert(
        "GroupDown",
        """(sparkfleet_deployment_groups
           - on (deployment) (sum by (deployment) (sparkfleet_group_state{state="ready"})
                              or sum by (deployment) (sparkfleet_deployment_groups) * 0)) > 0
           unless on (deployment) sparkfleet_deployment_state{state="unloaded"} == 1""",
        "15m",
        "critical",
        summary="{{ $labels.deployment }}: {{ $value }} of its groups have not been ready for 15 minutes.",
        means="Requests get 503, or the other groups carry them.",
        look="`sparkfleet status`, then `sparkfleet events {{ $labels.deployment }}`: its phase, and the failures before.",
        do="If it waits for a node, bring that back; if it loads, let it: 100 GB take minutes.",
    ),
    alert(
        "GroupSilent",
        # One that is given up has ended, and has an alert of its own.
        f"sparkfleet_group_silent_seconds > 20 unless {_AT} sparkfleet_group_given_up == 1",
        "1m",
        "warning",
        summary="{{ $labels.group }} has not reported for {{ $value | humanizeDuration }}.",
        means="Its actor hangs or its node is away; the gateway avoids it.",
        look="`sparkfleet status`: the node, and the process that hangs.",
        do="Nothing: its guard ends it after 8 s and the next actor adopts the engine. If it stays, restart the node.",
    ),
    alert(
        "NoTokenProgress",
        # TensorRT-LLM and llama.cpp count tokens only when a request is finished, and vLLM a prompt's with the first token
        # of its answer: meanwhile a long one takes more and more of the KV cache.
        """(sparkfleet:engine_requests_running{engine!~"trtllm|llama.cpp"} > 0)
           and on (deployment, group) (sparkfleet:engine_generation_tokens:rate1m == 0)
           and on (deployment, group) (sparkfleet:engine_prompt_tokens:rate1m == 0)
           unless on (deployment, group) (delta(sparkfleet:engine_kv_cache_used:ratio[2m]) != 0)""",
        "2m",
        "critical",
        summary="{{ $labels.group }} works on {{ $value }} requests, and no token has moved for three minutes.",
        means="The engine hangs; sparkfleet probes it with one token and restarts it if none arrives.",
        look="`sparkfleet logs {{ $labels.deployment }}`, the GPU's power on the Node dashboard, and the rails.",
        do="Nothing at first: the engine is restarted by itself. If it comes back, `sparkfleet doctor` for the rails.",
    ),
    alert(
        "RestartBreakerOpen",
        "sparkfleet_group_given_up == 1",
        "0s",
        "critical",
        summary="{{ $labels.group }} is not started again.",
        means="It failed five times in ten minutes, or no rung of its ladder started.",
        look="`sparkfleet describe {{ $labels.deployment }}`: the cause of each failure.",
        do="Mend the cause, then `sparkfleet apply --retry` with its file.",
    ),
    alert(
        "RestartingOften",
        "sum by (deployment) (increase(sparkfleet_restarts_total[1h])) > 2.5",
        "0s",
        "warning",
        summary="{{ $labels.deployment }} failed {{ $value | humanize }} times within an hour.",
        means="Each time its requests were cut and its weights were loaded again.",
        look="`sparkfleet events {{ $labels.deployment }}`: each failure has its cause; memory shows on the Node dashboard.",
        do="Memory: a smaller context or concurrency. A known issue: `sparkfleet explain` has the remedy.",
    ),
    alert(
        "LowerRung",
        "sparkfleet_group_rung > 1",
        "5m",
        "info",
        summary="{{ $labels.group }} runs at rung {{ $value }} of its ladder.",
        means="The plan's choice did not start here, or lost a node; this one may be slower.",
        look="`sparkfleet describe {{ $labels.deployment }}`: why each rung above was left.",
        do="Mend it and `sparkfleet apply FILE --retry`, after a lost node without `--retry`; or keep it: it serves.",
    ),
    alert(
        "WrongOutput",
        for_an_hour("sparkfleet_canary_failure_timestamp_seconds", "deployment"),
        "0s",
        "critical",
        summary="{{ $labels.deployment }}: an engine was stopped {{ $value | humanizeDuration }} ago because its output"
        " was wrong.",
        means="The canary found garbage, a model that contradicts itself, or drafts that are never accepted.",
        look="`sparkfleet describe {{ $labels.deployment }}`: the reading that failed, and its limit.",
        do="Nothing if the next rung serves. Otherwise another image, or `speculation: none`.",
    ),
)

SPEED = (
    alert(
        "SlowerThanPredicted",
        f"""(sparkfleet_measured_decode_tokens_per_second
             < {_AT} sparkfleet_predicted_check_decode_tokens_per_second{{bound="low"}})
            and {_AT} (sparkfleet_group_state{{state="ready"}} == 1)""",
        "1m",
        "warning",
        summary="{{ $labels.group }} measured {{ $value | humanize }} tok/s after its start: below the prediction's band.",
        means="Something on its nodes is slower than on others: power, a rail, another process; or the prediction is wrong.",
        look="`sparkfleet describe {{ $labels.deployment }}`: both numbers; power and clock on the Node dashboard.",
        do="`sparkfleet doctor`; if nodes and links are healthy, report the prediction with `describe --json`.",
    ),
    alert(
        "SlowUnderLoad",
        f"""(sum by (deployment, group) (sparkfleet:engine_generation_tokens:rate1m)
             < {_AT} sum by (deployment, group) (sparkfleet_predicted_total_tokens_per_second{{bound="low"}}))
            and {_AT} (sparkfleet_group_requests_running >= {_AT} sparkfleet_group_slots)""",
        "10m",
        "warning",
        summary="{{ $labels.group }} generates {{ $value | humanize }} tok/s with all slots in use, less than predicted.",
        means="Long prompts share its time with decoding, or something on its nodes is slow.",
        look="Prompt lengths and prefix cache on the Deployment dashboard; power and clock on the Node dashboard.",
        do="Long prompts: nothing is wrong. Otherwise `sparkfleet doctor`.",
    ),
    alert(
        "AcceptanceCollapsed",
        f"""sparkfleet:acceptance:ratio10m < {HALF} * avg_over_time(sparkfleet:acceptance:ratio10m[6h])
            and sum by (deployment, group) (delta(sparkfleet_draft_tokens{{kind="proposed"}}[10m])) >= {ENOUGH_DRAFTED}""",
        "10m",
        "warning",
        summary="{{ $labels.group }} accepts {{ $value | humanizePercentage }} of its draft tokens, less than half"
        " of before.",
        means="Speculation costs time without a gain: other texts than before, or a fault.",
        look="Acceptance by position on the Deployment dashboard: all positions or the late ones.",
        do="`sparkfleet describe {{ $labels.deployment }}` has the depth that is faster for the texts of the last days, as a"
        " line for its file; then `sparkfleet apply`.",
    ),
    alert(
        "QueueLong",
        # The gateway holds back what exceeds the slots; engines have queues only of what they were sent nevertheless.
        """sum by (deployment) (sparkfleet_group_requests_waiting
             or label_replace(sparkfleet_requests_waiting, "deployment", "$1", "model", "(.+)"))
            > sum by (deployment) (sparkfleet_group_slots)""",
        "5m",
        "warning",
        summary="{{ $labels.deployment }} has {{ $value }} requests waiting, more than its groups can run.",
        means="TTFT grows by a whole round of answers.",
        look="Requests by key on the Deployment dashboard: who sends them.",
        do="Add a replica: `sparkfleet scale {{ $labels.deployment }} N`; or limit the client: `sparkfleet keys limit`.",
    ),
    alert(
        "RequestsFail",
        f"sparkfleet:failures:ratio5m > {ERROR_SHARE}",
        "5m",
        "critical",
        summary="{{ $value | humanizePercentage }} of the requests for {{ $labels.model }} failed in five minutes.",
        means="Clients see 5xx: no group is ready, or engines break off.",
        look="`sparkfleet status`; failures by reason on the Gateway dashboard.",
        do="By the reason: not_ready waits for a start, engine_lost has an event of its group.",
    ),
)
