"""Panels and recording rules that have data in a Prometheus; each has data on one of two fleets of the tests.

The fleet of `test_observe.py` is this machine: no GPU, no rails, and engines that are real with `--real`. That of
`test_alerts.py` is two simulated Sparks, whose fake engines have few series of their own.
"""

import re

from sparkfleet.telemetry.dashboards.boards import DASHBOARDS
from sparkfleet.telemetry.recording import RECORDING

ONLY_SPARKS = {
    "GPUs draw power", "A watt-hour yields this many tokens", "Rails carry RDMA", "Rails carry packets", "Rails are up",
    "Rails count errors", "The GPU draws power", "The GPU runs at this clock", "The GPU is busy", "It is this warm",
    "Heat or power holds the clock down", "The kernel's log has errors of the GPU", "Groups fail and are replaced",
    "Requests together are this fast, by their number",
    "Draft tokens are accepted", "sparkfleet:acceptance:ratio10m",
    "sparkfleet:rail_bytes:rate1m", "sparkfleet:rail_rdma_bytes:rate1m", "sparkfleet:gpu_power_watts",
    "sparkfleet:output_tokens_per_watt_hour", "sparkfleet:check_decode:ratio", "sparkfleet:check_ttft:ratio",
}  # fmt: skip
"""Seen by `test_alerts.py` alone: GPUs, rails, predictions for a Spark, engines that are lost."""
ONLY_REAL = {
    "The KV cache fills", "Prompts are found in the prefix cache", "Requests lose their KV cache to others",
    "Positions of the draft are accepted", "A step yields this many tokens", "The canary read this after the start",
    "sparkfleet:engine_kv_cache_used:ratio", "sparkfleet:engine_prefix_cache_hits:ratio5m",
    "sparkfleet:engine_preemptions:rate5m", "sparkfleet:engine_accepted_by_position:rate5m",
    "sparkfleet:engine_tokens_per_step", "sparkfleet:engine_ttft_seconds:p50_5m", "sparkfleet:engine_ttft_seconds:p95_5m",
    "sparkfleet:engine_itl_seconds:p50_5m", "sparkfleet:engine_itl_seconds:p95_5m",
}  # fmt: skip
"""Seen by `test_observe.py --real` alone: series of real engines."""
OUTSIDE = {"Requests left the fleet", "Requests were sent again to another engine"}
"""Seen by `test_observe.py` alone, with external endpoints."""

ON_DEMAND = {
    "A start of them takes this long",
    "Models were unloaded, by reason",
    "Requests waited this long for a start",
}
"""Seen by `test_observe.py` alone, with deployments on demand."""


def substituted(expr):
    """An expression of a dashboard with every value for its variables."""
    return re.sub(r"\$\w+", ".*", expr)


def without_data(query, absent, during=""):
    """Titles of panels and names of recording rules that have no data.

    Args:
        query: gives the values of an expression.
        absent: those that this fleet cannot have.
        during: data at any time of this long counts, such as "30m"; "": only data of now.
    """

    def has_data(expr):
        expr = substituted(expr)
        return bool(query(f"count_over_time(({expr})[{during}:5s])" if during else expr))

    found = {
        panel.title
        for board in DASHBOARDS
        for panel in board.panels
        if panel.title not in absent and not any(has_data(one.expr) for one in panel.queries)
    }
    rules = {rule.record for group in RECORDING for rule in group.rules if rule.engine in ("", "vllm")}
    return sorted(found | {name for name in rules - absent if not has_data(name)})
