import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparkfleet import __version__
from sparkfleet.telemetry.metrics import PATHS, GatewayMetrics, path_label


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
