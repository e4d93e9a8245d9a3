"""The dashboard Deployment. Pure."""

from __future__ import annotations

from sparkfleet.telemetry.dashboards.panels import (
    GOOD,
    NO_DRAFTS,
    TOKENS_S,
    WARN,
    GrafanaDashboard,
    PanelQuery,
    Variable,
    one,
    panel,
    row,
)

_D = 'deployment=~"$deployment"'


def _bounds(series: str) -> tuple[PanelQuery, ...]:
    bounds = ("low", "mid", "high")
    return tuple(one(f'{series}{{{_D}, bound="{b}"}}', f"{{{{group}}}} predicted {b}") for b in bounds)


def _at_once(least: int, most: int | None) -> PanelQuery:
    """Output while so many requests run; None: or more."""
    below = "" if most is None else f" < {most + 1}"
    expr = f"""avg_over_time((sparkfleet:engine_generation_tokens:rate1m{{{_D}}}
        and on (deployment, group) (sparkfleet_group_requests_running{{{_D}}} >= {least}{below}))[1h:1m])"""
    number = f"{least} or more" if most is None else f"{least}" if most == least else f"{least} to {most}"
    return one(expr, f"{{{{group}}}} with {number}")


DEPLOYMENT = GrafanaDashboard(
    uid="sparkfleet-deployment",
    title="sparkfleet: Deployment",
    description="One deployment: its speed, its load, its speculation, and what was predicted.",
    variables=(Variable(name="deployment", label="Deployment", series="sparkfleet_deployment_groups"),),
    rows=(
        row(
            "Predicted and measured",
            panel(
                "A request alone was measured against its prediction",
                "Output of the request that measures each group after its start, in the prediction's band.",
                TOKENS_S,
                one(f"sparkfleet_measured_decode_tokens_per_second{{{_D}}}", "{{group}} measured"),
                *_bounds("sparkfleet_predicted_check_decode_tokens_per_second"),
            ),
            panel(
                "Its first token was measured against its prediction",
                "TTFT of the same request, in the prediction's band.",
                "s",
                one(f"sparkfleet_measured_ttft_seconds{{{_D}}}", "{{group}} measured"),
                *_bounds("sparkfleet_predicted_check_ttft_seconds"),
            ),
            panel(
                "All requests together are predicted this fast",
                "Output of all requests now, and as predicted at the planned concurrency.",
                TOKENS_S,
                one(f"sparkfleet:engine_generation_tokens:rate1m{{{_D}}}", "{{group}} now"),
                *_bounds("sparkfleet_predicted_total_tokens_per_second"),
            ),
            panel(
                "Each rank takes this memory, against its prediction",
                "What its processes and the GPU's driver hold for it; the Node dashboard shows what is left.",
                "bytes",
                one(f"sparkfleet_rank_memory_bytes{{{_D}}}", "{{group}} rank {{rank}} on {{node}}"),
                *_bounds("sparkfleet_predicted_memory_bytes"),
                span=12,
            ),
            panel(
                "Each group runs this rung of its ladder",
                "1 is the plan's choice; higher ones were taken because those above did not start.",
                "short",
                one(f"sparkfleet_group_rung{{{_D}}}", "{{group}}"),
                span=12,
                limits=((GOOD, None), (WARN, 2)),
            ),
        ),
        row(
            "Speed",
            panel(
                "First tokens arrive within this time",
                "TTFT at the gateway: median and 95th percentile of five minutes.",
                "s",
                one('sparkfleet:ttft_seconds:p50_5m{model=~"$deployment"}', "{{model}} p50"),
                one('sparkfleet:ttft_seconds:p95_5m{model=~"$deployment"}', "{{model}} p95"),
                span=12,
            ),
            panel(
                "Tokens follow each other within this time",
                "ITL at the gateway, by chunks: a chunk of a speculating engine has several tokens.",
                "s",
                one('sparkfleet:itl_seconds:p50_5m{model=~"$deployment"}', "{{model}} p50"),
                one('sparkfleet:itl_seconds:p95_5m{model=~"$deployment"}', "{{model}} p95"),
                span=12,
            ),
            panel(
                "Prompts are read this fast",
                "Prompt tokens per second, cached ones included, by the engine's own counter.",
                TOKENS_S,
                one(f"sparkfleet:engine_prompt_tokens:rate1m{{{_D}}}", "{{group}}"),
                span=12,
            ),
            panel(
                "Requests together are this fast, by their number",
                "Output of a group while so many requests ran on it, mean of the last hour.",
                TOKENS_S,
                *(_at_once(least, most) for least, most in ((1, 1), (2, 4), (5, 16), (17, None))),
                span=12,
                may_be_empty="no request within the hour",
            ),
        ),
        row(
            "Load",
            panel(
                "Lanes are in use",
                "Requests that run, wait, and fit by the plan; and those that the gateway holds until a slot is free. "
                "Of a custom workload open connections run.",
                "short",
                one(f"sparkfleet_group_requests_running{{{_D}}}", "{{group}} running"),
                one(f"sparkfleet_group_requests_waiting{{{_D}}}", "{{group}} waiting"),
                one(f"sparkfleet_group_slots{{{_D}}}", "{{group}} planned"),
                one(
                    'sum by (model) (sparkfleet_requests_waiting{model=~"$deployment"})',
                    "{{model}} at the gateway",
                ),
            ),
            panel(
                "The KV cache fills",
                "Share of the KV cache in use; at 100 % requests wait or lose theirs.",
                "percentunit",
                one(f"sparkfleet:engine_kv_cache_used:ratio{{{_D}}}", "{{group}}"),
                may_be_empty="an engine that does not report it",
            ),
            panel(
                "Prompts are found in the prefix cache",
                "Share of prompt tokens that need no prefill.",
                "percentunit",
                one(f"sparkfleet:engine_prefix_cache_hits:ratio5m{{{_D}}}", "{{group}}"),
                may_be_empty="an engine without a prefix cache, or without requests",
            ),
            panel(
                "These keys use it",
                "Output tokens per second of each API key.",
                TOKENS_S,
                one(
                    'sum by (key) (rate(sparkfleet_key_tokens_total{model=~"$deployment", kind="output"}[5m]))',
                    "{{key}}",
                ),
                span=12,
            ),
            panel(
                "Requests lose their KV cache to others",
                "Preemptions per second: more requests than the KV cache holds.",
                "short",
                one(f"sparkfleet:engine_preemptions:rate5m{{{_D}}}", "{{group}}"),
                span=12,
                may_be_empty="an engine that does not report it",
            ),
        ),
        row(
            "Speculation",
            panel(
                "Draft tokens are accepted",
                "Share of proposed draft tokens that were accepted, over ten minutes.",
                "percentunit",
                one(f"sparkfleet:acceptance:ratio10m{{{_D}}}", "{{group}}"),
                may_be_empty=NO_DRAFTS,
            ),
            panel(
                "Positions of the draft are accepted",
                "Accepted draft tokens per second by position: late ones that are never accepted cost time.",
                "short",
                one(f"sparkfleet:engine_accepted_by_position:rate5m{{{_D}}}", "{{group}} {{position}}"),
                may_be_empty=NO_DRAFTS,
            ),
            panel(
                "A step yields this many tokens",
                "Acceptance length: accepted draft tokens and the one that the target adds, measured and predicted.",
                "short",
                one(f"sparkfleet:engine_tokens_per_step{{{_D}}}", "{{group}} measured"),
                one(f"sparkfleet_predicted_tokens_per_step{{{_D}}}", "{{group}} predicted"),
                may_be_empty=NO_DRAFTS,
            ),
        ),
        row(
            "Starts",
            panel(
                "A start takes this long, by phase",
                "Mean duration of each phase of the starts since the controller began.",
                "s",
                one(
                    # Not `increase`: that of a series which begins with its first start is 0.
                    f"""sum by (deployment, phase) (sparkfleet_start_phase_seconds_sum{{{_D}}})
                            / (sum by (deployment, phase) (sparkfleet_start_phase_seconds_count{{{_D}}}) > 0)""",
                    "{{deployment}} {{phase}}",
                ),
                span=12,
                may_be_empty="no start since the controller began",
            ),
            panel(
                "The canary read this after the start",
                "Perplexity of a known text and of the model's own answer, and shares of agreement.",
                "short",
                one(f"sparkfleet_canary_reading{{{_D}}}", "{{group}} {{reading}}"),
                span=12,
                may_be_empty="an engine that reports no probabilities",
            ),
        ),
    ),
)
