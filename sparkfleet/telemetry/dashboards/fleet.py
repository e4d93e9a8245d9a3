"""The dashboard Fleet. Pure."""

from __future__ import annotations

from sparkfleet.engines.failure_signatures import LOW_BYTES
from sparkfleet.telemetry.alerts.node_alerts import SHORT_BYTES
from sparkfleet.telemetry.dashboards.panels import (
    BAD,
    GOOD,
    IS_OFF,
    IS_ON,
    NO_FAILURE,
    NO_GPU,
    NO_RAIL,
    NOT_ON_DEMAND,
    TOKENS_S,
    WARN,
    GrafanaDashboard,
    one,
    panel,
    row,
)

FLEET = GrafanaDashboard(
    uid="sparkfleet-fleet",
    title="sparkfleet: Fleet",
    description="One look: is it alive, is it fast, is anything about to break.",
    variables=(),
    rows=(
        row(
            "Now",
            panel(
                "Nodes are in the fleet",
                "Nodes whose Ray is part of the fleet.",
                "short",
                one("sum(sparkfleet_node_joined)"),
                kind="stat",
                span=3,
            ),
            panel(
                "Nodes are missing",
                "Nodes of the inventory that are not part of the fleet.",
                "short",
                one("sum(1 - sparkfleet_node_joined)"),
                kind="stat",
                span=3,
                limits=IS_OFF,
            ),
            panel(
                "Groups are ready",
                "Engines that serve.",
                "short",
                one('sum(sparkfleet_group_state{state="ready"})'),
                kind="stat",
                span=3,
                limits=IS_ON,
            ),
            panel(
                "The endpoint answers",
                "Gateways that answer Prometheus; clients reach no model if there are none.",
                "short",
                one('sum(up{job="gateway"}) or vector(0)'),
                kind="stat",
                span=3,
                limits=IS_ON,
            ),
            panel(
                "Requests are in flight",
                "Requests that the gateways carry now.",
                "short",
                one("sum(sparkfleet_requests_in_flight)"),
                kind="stat",
                span=4,
            ),
            panel(
                "Tokens are generated",
                "Output of all engines, tokens per second.",
                TOKENS_S,
                one("sum(sparkfleet:engine_generation_tokens:rate1m)"),
                kind="stat",
                span=4,
            ),
            panel(
                "Alerts are firing",
                "Alerts of sparkfleet that fire now; the runbook has a section for each.",
                "short",
                one('count(ALERTS{alertstate="firing", alertname=~"Sparkfleet.*"}) or vector(0)'),
                kind="stat",
                span=4,
                limits=IS_OFF,
            ),
        ),
        row(
            "Deployments",
            panel(
                "Each deployment has one state",
                "The state of each deployment over time; ready is as it should be.",
                "short",
                one("sparkfleet_deployment_state == 1", "{{deployment}} {{state}}"),
                kind="timeline",
                span=8,
            ),
            panel(
                "This is what each group runs",
                "Candidate of each group: engine, shape with its nodes, weights and speculation.",
                "short",
                one("sparkfleet_group_info", instant=True),
                kind="table",
                span=16,
                columns=("group", "engine", "engine_version", "shape", "quant", "speculation"),
            ),
            panel(
                "Engines generate this many tokens",
                "Output of each group, by its engine's own counter.",
                TOKENS_S,
                one("sparkfleet:engine_generation_tokens:rate1m", "{{group}}"),
            ),
            panel(
                "Half of the first tokens arrive within this time",
                "TTFT at the gateway, median of five minutes.",
                "s",
                one("sparkfleet:ttft_seconds:p50_5m", "{{model}}"),
            ),
            panel(
                "Requests run and wait",
                "Requests that the engines work on or queue, and those that the gateway holds until a slot is free, "
                "or their model on demand has started. Of a custom workload open connections.",
                "short",
                one(
                    "sum by (deployment) (sparkfleet_group_requests_running)",
                    "{{deployment}} running",
                ),
                one(
                    "sum by (deployment) (sparkfleet_group_requests_waiting)",
                    "{{deployment}} waiting",
                ),
                one("sum by (model) (sparkfleet_requests_waiting)", "{{model}} waiting at the gateway"),
            ),
        ),
        row(
            "On demand",
            panel(
                "Requests waited this long for a start",
                "Time until their model served, or they were refused: median and 95th percentile of an hour.",
                "s",
                *(
                    one(
                        f"histogram_quantile({share}, sum by (model, le)"
                        " (increase(sparkfleet_start_wait_seconds_bucket[1h]))) > 0",
                        f"{{{{model}}}} {name}",
                    )
                    for share, name in ((0.5, "p50"), (0.95, "p95"))
                ),
                may_be_empty=NOT_ON_DEMAND,
            ),
            panel(
                "Models were unloaded, by reason",
                "Ends within an hour. Many of `other`, which means that another model needed the memory, beside long waits:"
                " a Spark of its own for one of them, or fewer bits, so that both fit.",
                "short",
                one(
                    "sum by (deployment, reason) (increase(sparkfleet_unloads_total[1h])) > 0",
                    "{{deployment}} {{reason}}",
                ),
                may_be_empty=NOT_ON_DEMAND,
            ),
            panel(
                "A start of them takes this long",
                "Mean of the starts of what is on demand since the controller began: a request for one waits as long.",
                "s",
                one(
                    """sum by (deployment) (sparkfleet_start_seconds_sum)
                        / (sum by (deployment) (sparkfleet_start_seconds_count) > 0)
                        and on (deployment) sparkfleet_unloads_total""",
                    "{{deployment}}",
                ),
                may_be_empty=NOT_ON_DEMAND,
            ),
        ),
        row(
            "Nodes",
            panel(
                "Memory is available",
                "MemAvailable of each node: below 3 GiB a Spark is about to freeze.",
                "bytes",
                one("sparkfleet_node_memory_available_bytes", "{{node}}"),
                limits=((BAD, None), (WARN, LOW_BYTES), (GOOD, SHORT_BYTES)),
            ),
            panel(
                "GPUs draw power",
                "A Spark that decodes draws 35 to 45 W, an idle one 4 to 12; a few watts while busy is a wedge. Not the"
                " wall's: a cabled Spark draws about 50 W there while nothing is served, 20 of them for its ConnectX-7.",
                "watt",
                one("sparkfleet_node_gpu_power_watts", "{{node}}"),
                one(
                    """sum(sparkfleet_node_gpu_power_watts unless on (node) sparkfleet_rank_memory_bytes)
                        or 0 * sum(sparkfleet_node_gpu_power_watts)""",
                    "all without an engine",
                ),
                may_be_empty=NO_GPU,
            ),
            panel(
                "A watt-hour yields this many tokens",
                "Output tokens per watt-hour of all GPUs.",
                "short",
                one("sparkfleet:output_tokens_per_watt_hour", "tokens/Wh"),
                may_be_empty=NO_GPU,
            ),
            panel(
                "Rails carry RDMA",
                "Bytes that each node sends by RDMA; both rails of a cable should carry the same.",
                "Bps",
                one('sparkfleet:rail_rdma_bytes:rate1m{direction="sent"}', "{{node}} {{rdma}}"),
                span=12,
                may_be_empty=NO_RAIL,
            ),
            panel(
                "Groups fail and are replaced",
                "Failures within an hour, by cause.",
                "short",
                one(
                    "sum by (deployment, cause) (increase(sparkfleet_restarts_total[1h]))",
                    "{{deployment}} {{cause}}",
                ),
                span=12,
                may_be_empty=NO_FAILURE,
            ),
        ),
    ),
)
