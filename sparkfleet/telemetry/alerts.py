"""Alerts on the fleet. Each has a section of its name in docs/runbook.md, and a promtool test. Pure.

Limits of nodes are those of `doctor` and of the group's memory watch, so that alerts and checks agree.
"""

from __future__ import annotations

from sparkfleet.doctor.thresholds import (
    DISK_LOW_GB,
    HOT_GPU_C,
    HOT_ZONE_C,
    PRESSURE_PERCENT,
    WEDGED_CLOCK_MHZ,
    WEDGED_POWER_W,
    WEDGED_UTIL_PERCENT,
)
from sparkfleet.engines.failure_signatures import LOW_BYTES
from sparkfleet.telemetry.rule_values import AlertRule, AlertSeverity, RuleGroup
from sparkfleet.units import GB

SHORT_BYTES = 2 * LOW_BYTES
"""MemAvailable that is worth a look before it is critical."""
DISK_SHARE = 0.05
DISK_BYTES = int(DISK_LOW_GB * GB)
ERROR_SHARE = 0.05
THROTTLED_SHARE = 0.05
"""Share of half an hour in which heat or power holds a GPU's clock down. A Spark that decoded 56 % slower than its twin had
5.0 % of 16 hours (Avarok-Cybersecurity/atlas pull request 569), sound ones none in soaks (doctor/thresholds.py)."""
ENOUGH_DRAFTED = 500
"""Draft tokens of ten minutes from which their acceptance is judged: about a hundred drafts of five. A share of 0.6 then has
a standard error of 0.05 if drafts are independent; a fall to the half is six of those. A single short answer has fewer."""
DAY_S = 86_400
EXPIRY_S = 7 * DAY_S
"""Time before a key's end at which its owner is reminded. A day after the end the reminder ends too."""
LOPSIDED = 0.2
"""Share of the busier rail's bytes below which the other one counts as idle; healthy pairs differ by a few per cent."""
BUSY_RAIL_BYTES_S = 50_000_000
"""Traffic of the busier rail from which lopsidedness means anything."""
HALF = 0.5
_SENT = """label_replace(rate(sparkfleet_rail_rdma_bytes_total{direction="sent"}[5m]),
    "port", "$1", "rdma", ".*(f[0-9]+)")"""
"""RDMA that a node sends, with the QSFP port of the rail: the PCIe function that ends the name of a ConnectX' device
(rocep1s0f0 and roceP2p1s0f0 are the two rails of one cable)."""
_AT = "on (deployment, group)"
_AVAILABLE = "last_over_time(sparkfleet_node_memory_available_bytes[1m])"
"""With the last value while a node that is short of memory answers late: an alert begins to wait again after each gap."""
_FREE = 'last_over_time(sparkfleet_node_disk_free_bytes{place=~"root|home|hub"}[2m])'
"""The same for a disk."""
SAME_S = 60
"""Times of an error that are no further apart are of the same one, before and after its node's clock was set."""


def _for_an_hour(series: str, by: str) -> str:
    """Seconds since the last error, for an hour from its first reading on, by a series with the time of the last error.

    Times, unlike counts, are new after a reboot and after a gap. An error was known if a reading of an hour ago or, after a
    gap, of up to a day before it has it.
    """
    last = f"max by ({by}) (last_over_time({series}[1h]))"
    known = f"max by ({by}) (last_over_time({series}[1d] offset 1h)) + {SAME_S}"
    return f"time() - ({last} > ({known} or {last} - 1))"


def _alert(
    name: str, expr: str, lasts: str, severity: AlertSeverity, *, summary: str, means: str, look: str, do: str
) -> AlertRule:
    return AlertRule(
        name=f"Sparkfleet{name}",
        expr=" ".join(expr.split()),
        lasts=lasts,
        severity=severity,
        summary=summary,
        means=means,
        look=look,
        do=do,
    )


DEPLOYMENTS = (
    _alert(
        "DeploymentFailed",
        'sparkfleet_deployment_state{state="failed"} == 1',
        "30s",
        "critical",
        summary="{{ $labels.deployment }} has failed.",
        means="Its group was given up, or waits for a node that may never return; requests get 503.",
        look="`sparkfleet describe {{ $labels.deployment }}`: the reason, and the rungs that were tried.",
        do="Mend the cause, then `sparkfleet apply --retry` with its file.",
    ),
    _alert(
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
    _alert(
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
    _alert(
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
    _alert(
        "RestartBreakerOpen",
        "sparkfleet_group_given_up == 1",
        "0s",
        "critical",
        summary="{{ $labels.group }} is not started again.",
        means="It failed five times in ten minutes, or no rung of its ladder started.",
        look="`sparkfleet describe {{ $labels.deployment }}`: the cause of each failure.",
        do="Mend the cause, then `sparkfleet apply --retry` with its file.",
    ),
    _alert(
        "RestartingOften",
        "sum by (deployment) (increase(sparkfleet_restarts_total[1h])) > 2.5",
        "0s",
        "warning",
        summary="{{ $labels.deployment }} failed {{ $value | humanize }} times within an hour.",
        means="Each time its requests were cut and its weights were loaded again.",
        look="`sparkfleet events {{ $labels.deployment }}`: each failure has its cause; memory shows on the Node dashboard.",
        do="Memory: a smaller context or concurrency. A known issue: `sparkfleet explain` has the remedy.",
    ),
    _alert(
        "LowerRung",
        "sparkfleet_group_rung > 1",
        "5m",
        "info",
        summary="{{ $labels.group }} runs at rung {{ $value }} of its ladder.",
        means="The plan's choice did not start here, or lost a node; this one may be slower.",
        look="`sparkfleet describe {{ $labels.deployment }}`: why each rung above was left.",
        do="Mend it and `sparkfleet apply FILE --retry`, after a lost node without `--retry`; or keep it: it serves.",
    ),
    _alert(
        "WrongOutput",
        _for_an_hour("sparkfleet_canary_failure_timestamp_seconds", "deployment"),
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
    _alert(
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
    _alert(
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
    _alert(
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
    _alert(
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
    _alert(
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

NODES = (
    _alert(
        "NodeLost",
        "sparkfleet_node_joined == 0 unless on (node) sparkfleet_node_drained == 1",
        "1m",
        "critical",
        summary="{{ $labels.node }} is not part of the fleet.",
        means="After four minutes its groups go on with other nodes if their plans have a place there; else they wait.",
        look="Its power, its network, and `sparkfleet status`.",
        do="Start it; it joins by itself if `up` ran there. Otherwise `sparkfleet up`.",
    ),
    _alert(
        "MemoryCritical",
        f"{_AVAILABLE} < {LOW_BYTES}",
        "10s",
        "critical",
        summary="{{ $labels.node }} has {{ $value | humanize1024 }}B of memory left.",
        means="A Spark does not run out of memory politely: the host freezes.",
        look="`sparkfleet doctor`: which processes hold memory, and how much nothing accounts for.",
        do="Stop what is not sparkfleet's, or `sparkfleet delete` a deployment. Below 3 GiB its newest group is stopped.",
    ),
    _alert(
        "MemoryLow",
        f"{_AVAILABLE} < {SHORT_BYTES} and {_AVAILABLE} >= {LOW_BYTES}",
        "5m",
        "warning",
        summary="{{ $labels.node }} has {{ $value | humanize1024 }}B of memory left.",
        means="The engines' own peaks may take it below the floor, at which the newest group is stopped.",
        look="The Node dashboard: page cache, engines, or memory that nothing accounts for.",
        do="A smaller context or concurrency; a restart of the node if the driver has leaked.",
    ),
    _alert(
        "MemoryPressure",
        f'avg_over_time(sparkfleet_node_pressure_ratio{{resource="memory", share="full"}}[1m]) > {PRESSURE_PERCENT / 100}',
        "1m",
        "warning",
        summary="All tasks of {{ $labels.node }} waited for memory {{ $value | humanizePercentage }} of the time.",
        means="The host swaps or reclaims pages, which comes before it freezes.",
        look="Swap and page cache on the Node dashboard.",
        do="Stop what is not needed, or `sparkfleet delete` a deployment; then `sudo swapoff -a` until the next boot.",
    ),
    _alert(
        "GpuAllocationFailed",
        _for_an_hour("sparkfleet_node_gpu_allocation_failure_timestamp_seconds", "node"),
        "0s",
        "critical",
        summary="{{ $labels.node }}: the driver failed to allocate memory {{ $value | humanizeDuration }} ago"
        " (NV_ERR_NO_MEMORY).",
        means="This comes before the host freezes.",
        look="`journalctl -k -b -g NV_ERR_NO_MEMORY` on the node; `-b -1` for the boot before.",
        do="Start nothing new; free memory, or `sparkfleet restart` the deployment with the most in `sparkfleet top`.",
    ),
    _alert(
        "GpuXid",
        _for_an_hour("sparkfleet_node_gpu_xid_timestamp_seconds", "node, xid"),
        "0s",
        "critical",
        summary="{{ $labels.node }}: the GPU reported Xid {{ $labels.xid }} {{ $value | humanizeDuration }} ago.",
        means="The driver saw an error of the GPU or of a program on it.",
        look="`journalctl -k -b -g Xid` on the node, `-b -1` for the boot before; NVIDIA's list of Xid errors.",
        do="Xid 79 and 119: power off and on. 13 and 31: a program's fault, so another image.",
    ),
    _alert(
        "GpuUnread",
        "last_over_time(sparkfleet_node_gpu_readable[2m]) == 0",
        "1m",
        "critical",
        summary="{{ $labels.node }}: the GPU cannot be read.",
        means="The driver has lost it or hangs: engines on the node stop or hang, and none starts. Its heat, power and clock"
        " are not known, so GpuHot, GpuThrottled and PowerWedge cannot fire.",
        look="`sparkfleet doctor {{ $labels.node }}`: the reason.",
        do="`sudo reboot` on the node, by its power button if that hangs. If it is not found then either, shut down and"
        " unplug the power for five minutes.",
    ),
    _alert(
        "KernelLogUnread",
        "last_over_time(sparkfleet_node_kernel_log_readable[2m]) == 0",
        "10m",
        "warning",
        summary="{{ $labels.node }}: the kernel's log has not been readable for ten minutes.",
        means="Xid errors and failed allocations of the GPU are not known, so GpuXid and GpuAllocationFailed cannot fire.",
        look="`sparkfleet doctor {{ $labels.node }}`: the reason.",
        do="The fleet's user needs the group: `sudo usermod -aG systemd-journal USER` on the node, then reboot it. If"
        " `journalctl -k -b` hangs or takes long: `sudo journalctl --vacuum-size=500M`.",
    ),
    _alert(
        "PowerWedge",
        # Half of the time that it waits, so that a node which is switched off alerts for nothing.
        f"""(last_over_time(sparkfleet_node_gpu_busy_ratio[1m]) > {WEDGED_UTIL_PERCENT / 100}
             and last_over_time(sparkfleet_node_gpu_power_watts[1m]) < {WEDGED_POWER_W})
            and last_over_time(sparkfleet_node_gpu_clock_hertz[1m]) < {int(WEDGED_CLOCK_MHZ)}e6""",
        "2m",
        "critical",
        summary="{{ $labels.node }}: the GPU is {{ $value | humanizePercentage }} busy at a few watts and a low clock.",
        means="The power controller is wedged: everything is three times as slow. A reboot does not help.",
        look="`nvidia-smi` on the node: busy, a few watts, a clock below 900 MHz, no throttle reason.",
        do="Shut down, unplug the supply from the wall and the Spark for five minutes, boot. A reboot does not help.",
    ),
    _alert(
        "GpuThrottled",
        f"avg_over_time(sparkfleet_node_gpu_throttled[30m]) > {THROTTLED_SHARE:g}",
        "5m",
        "warning",
        summary="{{ $labels.node }}: heat or the power supply held the GPU's clock down in {{ $value | humanizePercentage }}"
        " of the last half hour.",
        means="Its engines are slower than predicted, and those over several nodes as slow as their slowest.",
        look="`sparkfleet doctor`: the reason; temperature on the Node dashboard.",
        do="Airflow, and the power supply that came with the Spark.",
    ),
    _alert(
        "GpuHot",
        f"last_over_time(sparkfleet_node_gpu_temperature_celsius[2m]) > {HOT_GPU_C:g}",
        "5m",
        "warning",
        summary="{{ $labels.node }}: the GPU has {{ $value }} °C.",
        means="Soaks stay below 82 °C; it will throttle.",
        look="Temperature on the Node dashboard, beside that of its neighbours.",
        do="Airflow: Sparks that stand on each other heat each other.",
    ),
    _alert(
        "NodeHot",
        f"last_over_time(sparkfleet_node_temperature_celsius[2m]) >= {HOT_ZONE_C:g}",
        "5m",
        "warning",
        summary="{{ $labels.node }}: its hottest thermal zone has {{ $value }} °C.",
        means="The fans run too slowly for the load; a Spark powers off at about 105 °C, and leaves no line in its log.",
        look="`sparkfleet doctor {{ $labels.node }}`; `fwupdmgr get-devices` on the node: the firmware 0x0300… of the"
        " embedded controller (EC) is known for it.",
        do="`sudo nvidia-smi -lgc 200,2150` on the node at once; then airflow, and the EC's firmware.",
    ),
    _alert(
        "DiskLow",
        f"""({_FREE} < {DISK_BYTES})
            or ({_FREE} < {DISK_SHARE} * last_over_time(sparkfleet_node_disk_total_bytes[2m]))""",
        "10m",
        "warning",
        summary="{{ $labels.node }}: {{ $value | humanize }}B are free on the disk of {{ $labels.place }}"
        " (hub: models; home: logs, and the head's store).",
        means="Weights and images cannot be staged, or logs end; on the head, nothing can be applied.",
        look="`sparkfleet models list` and `df -h` on the node.",
        do="`sparkfleet prune` removes models and images that no deployment uses, after showing them.",
    ),
)

RAILS = (
    _alert(
        "RailDown",
        # Not by the carrier alone: a neighbour's reboot takes it away as well, and NodeLost names that.
        "sparkfleet_rail_lost == 1",
        "30s",
        "critical",
        summary="{{ $labels.node }}: {{ $labels.netdev }} has no carrier, and the nodes at its ends are up.",
        means="Groups over this link have half of its bandwidth, or none.",
        look="`sparkfleet fabric plan` and the cable.",
        do="Plug it in again; try another cable.",
    ),
    _alert(
        "RailFlaps",
        # A cable that is plugged in again, or a neighbour's reboot, is two changes, of which Prometheus extrapolates a
        # little more. The node's own reboot begins the count again.
        """increase(sparkfleet_rail_carrier_changes_total[10m]) > 2.5
            unless resets(sparkfleet_rail_carrier_changes_total[10m]) > 0""",
        "0s",
        "warning",
        summary="{{ $labels.node }}: the carrier of {{ $labels.netdev }} changed {{ $value | humanize }} times"
        " in 10 minutes.",
        means="A cable or a port is failing.",
        look="`dmesg` on both ends for mlx5 lines.",
        do="Plug it in again; try another cable.",
    ),
    _alert(
        "RailLopsided",
        f"""(min by (node, port) ({_SENT}) < {LOPSIDED} * max by (node, port) ({_SENT}))
            and max by (node, port) ({_SENT}) > {BUSY_RAIL_BYTES_S}""",
        "5m",
        "warning",
        summary="{{ $labels.node }}: one rail of a cable carries nearly everything, the other {{ $value | humanize }}B/s.",
        means="The other half of the cable's bandwidth is unused: NCCL was given one device, or a rail fails.",
        look="Both rails on the Node dashboard; NCCL's variables in `sparkfleet describe NAME` of what runs there.",
        do="`sparkfleet doctor`; a group whose own `env` sets NCCL_IB_HCA to one device uses one.",
    ),
    _alert(
        "RailErrors",
        """sum by (node, netdev) (rate(sparkfleet_rail_errors_total{kind!="rx_dropped"}[5m])) > 1""",
        "5m",
        "warning",
        summary="{{ $labels.node }}: {{ $labels.netdev }} counts {{ $value | humanize }} errors per second.",
        means="A cable or a transceiver is failing; collectives wait for retransmissions.",
        look="Errors by kind on the Node dashboard.",
        do="Plug it in again, then `sparkfleet fabric measure`.",
    ),
)

CERTIFICATE_DAYS = 14
"""Both the gateway and certbot renew a certificate 30 days before its end: one with fewer days is not renewed."""

CONTROLLER = (
    _alert(
        "CertificateExpires",
        f"sparkfleet_certificate_expiry_timestamp_seconds - time() < {CERTIFICATE_DAYS} * 86400",
        "1h",
        "warning",
        summary="The certificate of {{ $labels.endpoint }} has {{ $value | humanizeDuration }} left.",
        means="Clients refuse the endpoint from its end on.",
        look="`sparkfleet status`: the certificate, and the reason if newer files cannot be used.",
        do="Renew its files on the head, which are read within seconds; or set `gateway: {tls: generated}`.",
    ),
    _alert(
        "ControllerGone",
        'absent(up{job="controller"} == 1)',
        "2m",
        "critical",
        summary="The controller's metrics have been missing for two minutes.",
        means="Nothing is restarted or planned again while it is away; engines and gateways go on.",
        look="`sparkfleet status`: it distinguishes down (as after your own `sparkfleet down`), unreachable, held and no"
        " controller.",
        do="The section above with the condition's name.",
    ),
    _alert(
        "TargetMissing",
        'up{job=~"gateway|vllm|sglang|trtllm|llama.cpp"} == 0',
        "2m",
        "warning",
        summary="{{ $labels.job }} at {{ $labels.instance }} does not answer Prometheus.",
        means="Its figures are missing; the process may hang or be gone.",
        look="`sparkfleet status`; the target's page in Prometheus has the error.",
        do="A gateway or group that hangs is replaced by itself; an error 401 is a stale token file.",
    ),
    _alert(
        "ControllerTrouble",
        "sparkfleet_controller_trouble == 1",
        "30s",
        "critical",
        summary="The controller's own work fails or does not end.",
        means="Nothing is restarted or planned again until it works.",
        look="`sparkfleet status`: the reason; `logs/controller.log` on the head has more.",
        do="By the reason; a full disk and an unreadable store have sections above. If Ray Serve does not answer, the"
        " reason has the `kill` of its process on the head: Ray starts another one, and engines go on.",
    ),
    _alert(
        "ControllerWarning",
        "sparkfleet_controller_warnings > 0",
        "1m",
        "warning",
        summary="The controller reports {{ $value }} troubles in which it works on.",
        means="A rail without a carrier, a node or an entry that does not answer, a full disk, or a copy of its store that"
        " could not be made.",
        look="`sparkfleet status`: it names them.",
        do="By the reason; a full disk has a section above.",
    ),
    _alert(
        "KeyExpires",
        f"sparkfleet_key_expires_seconds - time() < {EXPIRY_S} > {-DAY_S}",
        "0s",
        "warning",
        summary="The API key {{ $labels.key }} expires in {{ $value | humanizeDuration }}; below zero it has expired.",
        means="After that, requests with it are refused with 401.",
        look="`sparkfleet keys list`: its expiry and its last use.",
        do="`sparkfleet keys limit {{ $labels.key }} --expires 90d` gives it a later end."
        " If nobody uses it: `sparkfleet keys revoke {{ $labels.key }}`.",
    ),
)

EVERY_ALERT: tuple[AlertRule, ...] = (*DEPLOYMENTS, *SPEED, *NODES, *RAILS, *CONTROLLER)
"""In the order of the file."""
ALERTS = tuple(
    RuleGroup(name=f"sparkfleet-{name}", interval="15s", rules=rules)
    for name, rules in (
        ("deployments", DEPLOYMENTS),
        ("speed", SPEED),
        ("nodes", NODES),
        ("rails", RAILS),
        ("controller", CONTROLLER),
    )
)
