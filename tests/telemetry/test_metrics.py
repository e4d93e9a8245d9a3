import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparkfleet import __version__
from sparkfleet.telemetry.metrics import PATHS, ControlMetrics, GatewayMetrics, path_label

GATEWAY = {
    "sparkfleet_requests": ("counter", {"model", "path", "status"}),
    "sparkfleet_requests_in_flight": ("gauge", {"model"}),
    "sparkfleet_ttft_seconds": ("histogram", {"model"}),
    "sparkfleet_itl_seconds": ("histogram", {"model"}),
    "sparkfleet_request_seconds": ("histogram", {"model"}),
    "sparkfleet_tokens": ("counter", {"model", "kind"}),
    "sparkfleet_stream_chunks": ("counter", {"model"}),
    "sparkfleet_errors": ("counter", {"model", "kind"}),
    "sparkfleet_retries": ("counter", {"model"}),
    "sparkfleet_build_info": ("gauge", {"version"}),
}
CONTROL = {
    "sparkfleet_group_state": ("gauge", {"deployment", "group", "state"}),
    "sparkfleet_starts": ("counter", {"deployment", "outcome"}),
    "sparkfleet_start_seconds": ("histogram", {"deployment"}),
    "sparkfleet_restarts": ("counter", {"deployment"}),
    "sparkfleet_draft_tokens": ("gauge", {"deployment", "group", "kind"}),
    "sparkfleet_node_joined": ("gauge", {"node"}),
    "sparkfleet_node_memory_available_bytes": ("gauge", {"node"}),
    "sparkfleet_build_info": ("gauge", {"version"}),
}


@pytest.mark.parametrize(("make", "expected"), [(GatewayMetrics, GATEWAY), (ControlMetrics, CONTROL)])
def test_names_types_and_labels_are_those_that_dashboards_use(
    make: type[GatewayMetrics | ControlMetrics], expected: dict[str, tuple[str, set[str]]]
) -> None:
    metrics = make()
    labels = {m.name: set(c._labelnames) for c in metrics.registry._collector_to_names for m in c.describe()}  # type: ignore[attr-defined]
    types = {m.name: m.type for c in metrics.registry._collector_to_names for m in c.describe()}  # type: ignore[attr-defined]
    assert {name: (types[name], labels[name]) for name in types} == expected


def test_two_of_a_kind_live_in_one_process() -> None:
    first, second = GatewayMetrics(), GatewayMetrics()
    first.retries.labels("m").inc()
    assert second.registry.get_sample_value("sparkfleet_retries_total", {"model": "m"}) is None


def test_both_share_a_registry_only_apart_from_the_version() -> None:
    registry = CollectorRegistry()
    assert GatewayMetrics(registry).registry is registry
    assert registry.get_sample_value("sparkfleet_build_info", {"version": __version__}) == 1


@pytest.mark.parametrize("name", ["sparkfleet_ttft_seconds", "sparkfleet_itl_seconds"])
def test_the_buckets_go_from_a_millisecond_to_two_minutes(name: str) -> None:
    metrics = GatewayMetrics()
    metrics.ttft.labels("m").observe(0.0005)
    metrics.itl.labels("m").observe(119)
    families = {f.name: f for f in text_string_to_metric_families(generate_latest(metrics.registry).decode())}
    bounds = [float(s.labels["le"]) for s in families[name].samples if s.name.endswith("_bucket")]
    assert (bounds[0], bounds[-2], bounds[-1]) == (0.001, 120.0, float("inf"))
    assert bounds == sorted(bounds)


def test_paths_are_labels_only_where_they_are_known() -> None:
    assert all(path_label(path) == path for path in PATHS)
    assert {path_label(path) for path in ("/v1/x", "/v1/models/tiny", "", "/v1/chat/completions/")} == {
        "other"
    }


def test_a_group_is_in_one_state() -> None:
    metrics = ControlMetrics()
    known = ("starting", "ready", "failed")
    for state in ("starting", "ready"):
        metrics.show_state("d", "g", state, known)

    def value(state: str) -> float | None:
        labels = {"deployment": "d", "group": "g", "state": state}
        return metrics.registry.get_sample_value("sparkfleet_group_state", labels)

    assert [value(state) for state in known] == [0, 1, 0]
