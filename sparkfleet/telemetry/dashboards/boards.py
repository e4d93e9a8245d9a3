"""The four dashboards: Fleet, Deployment, Node, Gateway. Pure."""

from __future__ import annotations

from sparkfleet.engines.failure_signatures import LOW_BYTES
from sparkfleet.telemetry.alerts import SHORT_BYTES
from sparkfleet.telemetry.dashboards.panels import (
    BAD,
    GOOD,
    WARN,
    GrafanaDashboard,
    Panel,
    PanelQuery,
    PanelRow,
    Variable,
    one,
)

TOKENS_S = "suffix: tok/s"
_D = 'deployment=~"$deployment"'
_N = 'node=~"$node"'
_M = 'model=~"$model"'
NO_GPU = "no GPU on a node of CPUs"
NO_RAIL = "one node has no rails"
NO_DRAFTS = "no speculation"
NO_FAILURE = "nothing has failed"
NO_EXTERNAL = "no deployment has an external endpoint"
_IS_ON: tuple[tuple[str, float | None], ...] = ((BAD, None), (GOOD, 1))
_IS_OFF: tuple[tuple[str, float | None], ...] = ((GOOD, None), (BAD, 1))

FLEET = GrafanaDashboard(
    uid="sparkfleet-fleet",
    title="sparkfleet: Fleet",
    description="One look: is it alive, is it fast, is anything about to break.",
    variables=(),
    rows=(
        PanelRow(
            title="Now",
            panels=(
                Panel(
                    title="Nodes in the fleet",
                    description="Nodes whose Ray is part of the fleet.",
                    unit="short",
                    kind="stat",
                    span=4,
                    queries=(one("sum(sparkfleet_node_joined)", "of {{node}}"),),
                ),
                Panel(
                    title="Nodes are missing",
                    description="Nodes of the inventory that are not part of the fleet.",
                    unit="short",
                    kind="stat",
                    span=4,
                    limits=_IS_OFF,
                    queries=(one("sum(1 - sparkfleet_node_joined)"),),
                ),
                Panel(
                    title="Groups are ready",
                    description="Engines that serve.",
                    unit="short",
                    kind="stat",
                    span=4,
                    limits=_IS_ON,
                    queries=(one('sum(sparkfleet_group_state{state="ready"})'),),
                ),
                Panel(
                    title="Requests are in flight",
                    description="Requests that the gateways carry now.",
                    unit="short",
                    kind="stat",
                    span=4,
                    queries=(one("sum(sparkfleet_requests_in_flight)"),),
                ),
                Panel(
                    title="Tokens are generated",
                    description="Output of all engines, tokens per second.",
                    unit=TOKENS_S,
                    kind="stat",
                    span=4,
                    queries=(one("sum(sparkfleet:engine_generation_tokens:rate1m)"),),
                ),
                Panel(
                    title="Alerts are firing",
                    description="Alerts of sparkfleet that fire now; the runbook has a section for each.",
                    unit="short",
                    kind="stat",
                    span=4,
                    limits=_IS_OFF,
                    queries=(
                        one('count(ALERTS{alertstate="firing", alertname=~"Sparkfleet.*"}) or vector(0)'),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="Deployments",
            panels=(
                Panel(
                    title="Each deployment has one state",
                    description="The state of each deployment over time; ready is as it should be.",
                    unit="short",
                    kind="timeline",
                    span=12,
                    queries=(one("sparkfleet_deployment_state == 1", "{{deployment}} {{state}}"),),
                ),
                Panel(
                    title="This is what each group runs",
                    description="Candidate of each group: engine, shape, weights, speculation; and its rung.",
                    unit="short",
                    kind="table",
                    span=12,
                    queries=(one("sparkfleet_group_info", instant=True),),
                ),
                Panel(
                    title="Engines generate this many tokens",
                    description="Output of each group, by its engine's own counter.",
                    unit=TOKENS_S,
                    queries=(one("sparkfleet:engine_generation_tokens:rate1m", "{{group}}"),),
                ),
                Panel(
                    title="Half of the first tokens arrive within this time",
                    description="TTFT at the gateway, median of five minutes.",
                    unit="s",
                    queries=(one("sparkfleet:ttft_seconds:p50_5m", "{{model}}"),),
                ),
                Panel(
                    title="Requests run and wait",
                    description="Requests that the engines work on, and those in their queues.",
                    unit="short",
                    queries=(
                        one(
                            "sum by (deployment) (sparkfleet_group_requests_running)",
                            "{{deployment}} running",
                        ),
                        one(
                            "sum by (deployment) (sparkfleet_group_requests_waiting)",
                            "{{deployment}} waiting",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="Nodes",
            panels=(
                Panel(
                    title="Memory is available",
                    description="MemAvailable of each node: below 3 GiB a Spark is about to freeze.",
                    unit="bytes",
                    limits=((BAD, None), (WARN, LOW_BYTES), (GOOD, SHORT_BYTES)),
                    queries=(one("sparkfleet_node_memory_available_bytes", "{{node}}"),),
                ),
                Panel(
                    title="GPUs draw power",
                    description="A Spark that decodes draws 35 to 45 W; a few watts while busy is a wedge.",
                    unit="watt",
                    may_be_empty=NO_GPU,
                    queries=(one("sparkfleet_node_gpu_power_watts", "{{node}}"),),
                ),
                Panel(
                    title="A watt-hour yields this many tokens",
                    description="Output tokens per watt-hour of all GPUs.",
                    unit="short",
                    may_be_empty=NO_GPU,
                    queries=(one("sparkfleet:output_tokens_per_watt_hour", "tokens/Wh"),),
                ),
                Panel(
                    title="Rails carry RDMA",
                    description="Bytes that each node sends by RDMA; both rails of a cable should carry the same.",
                    unit="Bps",
                    span=12,
                    may_be_empty=NO_RAIL,
                    queries=(
                        one('sparkfleet:rail_rdma_bytes:rate1m{direction="sent"}', "{{node}} {{rdma}}"),
                    ),
                ),
                Panel(
                    title="Groups fail and are replaced",
                    description="Failures within an hour, by cause.",
                    unit="short",
                    span=12,
                    may_be_empty=NO_FAILURE,
                    queries=(
                        one(
                            "sum by (deployment, cause) (increase(sparkfleet_restarts_total[1h]))",
                            "{{deployment}} {{cause}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)


def _bounds(series: str) -> tuple[PanelQuery, ...]:
    bounds = ("low", "mid", "high")
    return tuple(one(f'{series}{{{_D}, bound="{b}"}}', f"{{{{group}}}} predicted {b}") for b in bounds)


DEPLOYMENT = GrafanaDashboard(
    uid="sparkfleet-deployment",
    title="sparkfleet: Deployment",
    description="One deployment: its speed, its load, its speculation, and what was predicted.",
    variables=(Variable(name="deployment", label="Deployment", series="sparkfleet_deployment_groups"),),
    rows=(
        PanelRow(
            title="Predicted and measured",
            panels=(
                Panel(
                    title="A request alone was measured against its prediction",
                    description="Output of the request that measures each group after its start, in the prediction's band.",
                    unit=TOKENS_S,
                    queries=(
                        one(f"sparkfleet_measured_decode_tokens_per_second{{{_D}}}", "{{group}} measured"),
                        *_bounds("sparkfleet_predicted_check_decode_tokens_per_second"),
                    ),
                ),
                Panel(
                    title="Its first token was measured against its prediction",
                    description="TTFT of the same request, in the prediction's band.",
                    unit="s",
                    queries=(
                        one(f"sparkfleet_measured_ttft_seconds{{{_D}}}", "{{group}} measured"),
                        *_bounds("sparkfleet_predicted_check_ttft_seconds"),
                    ),
                ),
                Panel(
                    title="All requests together are predicted this fast",
                    description="Output of all requests now, and as predicted at the planned concurrency.",
                    unit=TOKENS_S,
                    queries=(
                        one(f"sparkfleet:engine_generation_tokens:rate1m{{{_D}}}", "{{group}} now"),
                        *_bounds("sparkfleet_predicted_total_tokens_per_second"),
                    ),
                ),
                Panel(
                    title="Each rank was predicted to need this memory",
                    description="Predicted memory of one rank; the Node dashboard shows what is left.",
                    unit="bytes",
                    span=12,
                    queries=_bounds("sparkfleet_predicted_memory_bytes"),
                ),
                Panel(
                    title="Each group runs this rung of its ladder",
                    description="1 is the plan's choice; higher ones were taken because those above did not start.",
                    unit="short",
                    span=12,
                    limits=((GOOD, None), (WARN, 2)),
                    queries=(one(f"sparkfleet_group_rung{{{_D}}}", "{{group}}"),),
                ),
            ),
        ),
        PanelRow(
            title="Speed",
            panels=(
                Panel(
                    title="First tokens arrive within this time",
                    description="TTFT at the gateway: median and 95th percentile of five minutes.",
                    unit="s",
                    queries=(
                        one('sparkfleet:ttft_seconds:p50_5m{model=~"$deployment"}', "{{model}} p50"),
                        one('sparkfleet:ttft_seconds:p95_5m{model=~"$deployment"}', "{{model}} p95"),
                    ),
                ),
                Panel(
                    title="Tokens follow each other within this time",
                    description="ITL at the gateway, by chunks: a chunk of a speculating engine has several tokens.",
                    unit="s",
                    queries=(
                        one('sparkfleet:itl_seconds:p50_5m{model=~"$deployment"}', "{{model}} p50"),
                        one('sparkfleet:itl_seconds:p95_5m{model=~"$deployment"}', "{{model}} p95"),
                    ),
                ),
                Panel(
                    title="Prompts are read this fast",
                    description="Prompt tokens per second, cached ones included, by the engine's own counter.",
                    unit=TOKENS_S,
                    queries=(one(f"sparkfleet:engine_prompt_tokens:rate1m{{{_D}}}", "{{group}}"),),
                ),
            ),
        ),
        PanelRow(
            title="Load",
            panels=(
                Panel(
                    title="Lanes are in use",
                    description="Requests that run and wait, and those that the group is planned for.",
                    unit="short",
                    queries=(
                        one(f"sparkfleet_group_requests_running{{{_D}}}", "{{group}} running"),
                        one(f"sparkfleet_group_requests_waiting{{{_D}}}", "{{group}} waiting"),
                        one(f"sparkfleet_group_slots{{{_D}}}", "{{group}} planned"),
                    ),
                ),
                Panel(
                    title="The KV cache fills",
                    description="Share of the KV cache in use; at 100 % requests wait or lose theirs.",
                    unit="percentunit",
                    may_be_empty="an engine that does not report it",
                    queries=(one(f"sparkfleet:engine_kv_cache_used:ratio{{{_D}}}", "{{group}}"),),
                ),
                Panel(
                    title="Prompts are found in the prefix cache",
                    description="Share of prompt tokens that need no prefill.",
                    unit="percentunit",
                    may_be_empty="an engine without a prefix cache, or without requests",
                    queries=(one(f"sparkfleet:engine_prefix_cache_hits:ratio5m{{{_D}}}", "{{group}}"),),
                ),
                Panel(
                    title="These keys use it",
                    description="Output tokens per second of each API key.",
                    unit=TOKENS_S,
                    span=12,
                    queries=(
                        one(
                            'sum by (key) (rate(sparkfleet_key_tokens_total{model=~"$deployment", kind="output"}[5m]))',
                            "{{key}}",
                        ),
                    ),
                ),
                Panel(
                    title="Requests lose their KV cache to others",
                    description="Preemptions per second: more requests than the KV cache holds.",
                    unit="short",
                    span=12,
                    may_be_empty="an engine that does not report it",
                    queries=(one(f"sparkfleet:engine_preemptions:rate5m{{{_D}}}", "{{group}}"),),
                ),
            ),
        ),
        PanelRow(
            title="Speculation",
            panels=(
                Panel(
                    title="Draft tokens are accepted",
                    description="Share of proposed draft tokens that were accepted, over ten minutes.",
                    unit="percentunit",
                    may_be_empty=NO_DRAFTS,
                    queries=(one(f"sparkfleet:acceptance:ratio10m{{{_D}}}", "{{group}}"),),
                ),
                Panel(
                    title="Positions of the draft are accepted",
                    description="Accepted draft tokens per second by position: late ones that are never accepted cost time.",
                    unit="short",
                    may_be_empty=NO_DRAFTS,
                    queries=(
                        one(
                            f"sparkfleet:engine_accepted_by_position:rate5m{{{_D}}}", "{{group}} {{position}}"
                        ),
                    ),
                ),
                Panel(
                    title="A step was predicted to yield this many tokens",
                    description="Predicted tokens per step of speculative decoding.",
                    unit="short",
                    may_be_empty=NO_DRAFTS,
                    queries=(one(f"sparkfleet_predicted_tokens_per_step{{{_D}}}", "{{group}} predicted"),),
                ),
            ),
        ),
        PanelRow(
            title="Starts",
            panels=(
                Panel(
                    title="A start takes this long, by phase",
                    description="Mean duration of each phase of the starts of the last day.",
                    unit="s",
                    span=12,
                    queries=(
                        one(
                            f"""sum by (deployment, phase) (increase(sparkfleet_start_phase_seconds_sum{{{_D}}}[1d]))
                            / (sum by (deployment, phase) (increase(sparkfleet_start_phase_seconds_count{{{_D}}}[1d]))
                            > 0)""",
                            "{{deployment}} {{phase}}",
                        ),
                    ),
                    may_be_empty="no start within a day",
                ),
                Panel(
                    title="The canary read this after the start",
                    description="Perplexity of a known text and of the model's own answer, and shares of agreement.",
                    unit="short",
                    span=12,
                    may_be_empty="an engine that reports no probabilities",
                    queries=(one(f"sparkfleet_canary_reading{{{_D}}}", "{{group}} {{reading}}"),),
                ),
            ),
        ),
    ),
)

NODE = GrafanaDashboard(
    uid="sparkfleet-node",
    title="sparkfleet: Node",
    description="One node: its memory, its GPU, its disks, its rails.",
    variables=(Variable(name="node", label="Node", series="sparkfleet_node_joined"),),
    rows=(
        PanelRow(
            title="Memory",
            panels=(
                Panel(
                    title="Memory is available",
                    description="MemAvailable: engines and the host share it; below 3 GiB a Spark is about to freeze.",
                    unit="bytes",
                    limits=((BAD, None), (WARN, LOW_BYTES), (GOOD, SHORT_BYTES)),
                    queries=(one(f"sparkfleet_node_memory_available_bytes{{{_N}}}", "{{node}}"),),
                ),
                Panel(
                    title="Memory is used for this",
                    description="Memory that nothing accounts for (on a Spark the GPU driver's), files in memory, swap.",
                    unit="bytes",
                    queries=(
                        one(f"sparkfleet_node_memory_unaccounted_bytes{{{_N}}}", "{{node}} unaccounted"),
                        one(f"sparkfleet_node_memory_page_cache_bytes{{{_N}}}", "{{node}} page cache"),
                        one(f"sparkfleet_node_swap_used_bytes{{{_N}}}", "{{node}} swap"),
                    ),
                ),
                Panel(
                    title="Tasks wait for a resource",
                    description="Share of the last ten seconds in which tasks waited (PSI); memory comes before a freeze.",
                    unit="percentunit",
                    may_be_empty="a kernel without PSI",
                    queries=(
                        one(f"sparkfleet_node_pressure_ratio{{{_N}}}", "{{node}} {{resource}} {{share}}"),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="GPU",
            panels=(
                Panel(
                    title="The GPU draws power",
                    description="35 to 45 W while it decodes, up to 90 W in prefill; a few watts while busy is a wedge.",
                    unit="watt",
                    may_be_empty=NO_GPU,
                    queries=(one(f"sparkfleet_node_gpu_power_watts{{{_N}}}", "{{node}}"),),
                ),
                Panel(
                    title="The GPU runs at this clock",
                    description="2.35 to 2.45 GHz under load; pinned below 0.9 GHz while busy is a wedge.",
                    unit="hertz",
                    may_be_empty=NO_GPU,
                    queries=(
                        one(f"sparkfleet_node_gpu_clock_hertz{{{_N}}}", "{{node}}"),
                        one(f"sparkfleet_node_gpu_clock_max_hertz{{{_N}}}", "{{node}} highest"),
                    ),
                ),
                Panel(
                    title="The GPU is busy",
                    description="Share of time in which a kernel ran.",
                    unit="percentunit",
                    may_be_empty=NO_GPU,
                    queries=(one(f"sparkfleet_node_gpu_busy_ratio{{{_N}}}", "{{node}}"),),
                ),
                Panel(
                    title="It is this warm",
                    description="GPU, and the highest thermal zone; soaks stay at 65 to 82 °C.",
                    unit="celsius",
                    may_be_empty=NO_GPU,
                    queries=(
                        one(f"sparkfleet_node_gpu_temperature_celsius{{{_N}}}", "{{node}} GPU"),
                        one(f"sparkfleet_node_temperature_celsius{{{_N}}}", "{{node}} hottest zone"),
                    ),
                ),
                Panel(
                    title="Hardware holds the clock down",
                    description="1 while heat or the power supply limits the clock.",
                    unit="short",
                    limits=_IS_OFF,
                    may_be_empty=NO_GPU,
                    queries=(one(f"sparkfleet_node_gpu_throttled{{{_N}}}", "{{node}}"),),
                ),
                Panel(
                    title="The kernel's log has errors of the GPU",
                    description="Xid errors, and allocations that the driver failed (NV_ERR_NO_MEMORY), of this boot.",
                    unit="short",
                    limits=_IS_OFF,
                    may_be_empty="a kernel log that the fleet's user may not read",
                    queries=(
                        one(f"sum by (node, xid) (sparkfleet_node_gpu_xids{{{_N}}})", "{{node}} Xid {{xid}}"),
                        one(f"sparkfleet_node_gpu_allocation_failures{{{_N}}}", "{{node}} no memory"),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="Rails and disks",
            panels=(
                Panel(
                    title="Rails carry RDMA",
                    description="Bytes per second by RDMA, both directions. Both rails of a cable should carry the same.",
                    unit="Bps",
                    may_be_empty=NO_RAIL,
                    queries=(
                        one(f"sparkfleet:rail_rdma_bytes:rate1m{{{_N}}}", "{{node}} {{rdma}} {{direction}}"),
                    ),
                ),
                Panel(
                    title="Rails carry packets",
                    description="Bytes per second through the network stack: weights, Gloo, TCP.",
                    unit="Bps",
                    may_be_empty=NO_RAIL,
                    queries=(
                        one(f"sparkfleet:rail_bytes:rate1m{{{_N}}}", "{{node}} {{netdev}} {{direction}}"),
                    ),
                ),
                Panel(
                    title="Rails are up",
                    description="1 if the netdev has a carrier.",
                    unit="short",
                    limits=_IS_ON,
                    may_be_empty=NO_RAIL,
                    queries=(one(f"sparkfleet_rail_up{{{_N}}}", "{{node}} {{netdev}}"),),
                ),
                Panel(
                    title="Rails count errors",
                    description="Errors per second of netdevs and of RDMA, by kind.",
                    unit="short",
                    span=12,
                    may_be_empty=NO_RAIL,
                    queries=(
                        one(
                            f"sum by (node, netdev, kind) (rate(sparkfleet_rail_errors_total{{{_N}}}[5m]))",
                            "{{node}} {{netdev}} {{kind}}",
                        ),
                        one(
                            f"sum by (node, rdma, kind) (rate(sparkfleet_rail_rdma_errors_total{{{_N}}}[5m]))",
                            "{{node}} {{rdma}} {{kind}}",
                        ),
                    ),
                ),
                Panel(
                    title="Disks have room",
                    description="Free space for the fleet's user, by directory; two directories may be on one disk.",
                    unit="bytes",
                    span=12,
                    queries=(one(f"sparkfleet_node_disk_free_bytes{{{_N}}}", "{{node}} {{place}}"),),
                ),
            ),
        ),
    ),
)

GATEWAY = GrafanaDashboard(
    uid="sparkfleet-gateway",
    title="sparkfleet: Gateway",
    description="The endpoint: who calls it, how it answers.",
    variables=(Variable(name="model", label="Model", series="sparkfleet_requests_total"),),
    rows=(
        PanelRow(
            title="Requests",
            panels=(
                Panel(
                    title="Requests are answered, by status",
                    description="Requests per second by the status that the client saw; 499: it disconnected before.",
                    unit="reqps",
                    queries=(
                        one(f"sum by (status) (rate(sparkfleet_requests_total{{{_M}}}[1m]))", "{{status}}"),
                    ),
                ),
                Panel(
                    title="Requests fail for these reasons",
                    description="Failed or refused requests per second, by reason.",
                    unit="reqps",
                    may_be_empty=NO_FAILURE,
                    queries=(one(f"sum by (kind) (rate(sparkfleet_errors_total{{{_M}}}[5m]))", "{{kind}}"),),
                ),
                Panel(
                    title="Requests are in flight",
                    description="Requests that the gateways carry, by model.",
                    unit="short",
                    queries=(one(f"sum by (model) (sparkfleet_requests_in_flight{{{_M}}})", "{{model}}"),),
                ),
                Panel(
                    title="Requests were sent again to another engine",
                    description="Retries per second: an engine was lost before the first byte.",
                    unit="reqps",
                    may_be_empty=NO_FAILURE,
                    queries=(
                        one(f"sum by (model) (rate(sparkfleet_retries_total{{{_M}}}[5m]))", "{{model}}"),
                    ),
                ),
                Panel(
                    title="Requests left the fleet",
                    description="Requests per second that external endpoints of deployments answered.",
                    unit="reqps",
                    may_be_empty=NO_EXTERNAL,
                    queries=(
                        one(
                            f"sum by (model) (rate(sparkfleet_external_requests_total{{{_M}}}[5m]))",
                            "{{model}}",
                        ),
                    ),
                ),
                Panel(
                    title="These keys send requests",
                    description="Requests per second by API key.",
                    unit="reqps",
                    queries=(
                        one(f"sum by (key) (rate(sparkfleet_key_requests_total{{{_M}}}[5m]))", "{{key}}"),
                    ),
                ),
                Panel(
                    title="Paths of the API are used",
                    description="Requests per second by path.",
                    unit="reqps",
                    queries=(
                        one(f"sum by (path) (rate(sparkfleet_requests_total{{{_M}}}[5m]))", "{{path}}"),
                    ),
                ),
            ),
        ),
        PanelRow(
            title="Times and tokens",
            panels=(
                Panel(
                    title="First tokens arrive within this time",
                    description="TTFT of streamed answers: median and 95th percentile of five minutes.",
                    unit="s",
                    queries=(
                        one(f"sparkfleet:ttft_seconds:p50_5m{{{_M}}}", "{{model}} p50"),
                        one(f"sparkfleet:ttft_seconds:p95_5m{{{_M}}}", "{{model}} p95"),
                    ),
                ),
                Panel(
                    title="Answers are complete within this time",
                    description="From the request's headers to the end of its answer.",
                    unit="s",
                    queries=(
                        one(f"sparkfleet:request_seconds:p50_5m{{{_M}}}", "{{model}} p50"),
                        one(f"sparkfleet:request_seconds:p95_5m{{{_M}}}", "{{model}} p95"),
                    ),
                ),
                Panel(
                    title="Tokens go in and out",
                    description="Tokens per second of finished answers, as the engines count them.",
                    unit=TOKENS_S,
                    queries=(one(f"sparkfleet:tokens:rate1m{{{_M}}}", "{{model}} {{kind}}"),),
                ),
            ),
        ),
    ),
)

DASHBOARDS: tuple[GrafanaDashboard, ...] = (FLEET, DEPLOYMENT, NODE, GATEWAY)
