import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparkfleet import __version__
from sparkfleet.telemetry.catalogue import ITL
from sparkfleet.telemetry.loop_series import Times
from sparkfleet.telemetry.metrics import GatewayMetrics


def test_two_of_a_kind_live_in_one_process() -> None:
    first, second = GatewayMetrics(), GatewayMetrics()
    first.retries[("m",)] += 1
    assert second.registry.get_sample_value("sparkfleet_retries_total", {"model": "m"}) is None


def test_both_share_a_registry_only_apart_from_the_version() -> None:
    registry = CollectorRegistry()
    assert GatewayMetrics(registry).registry is registry
    assert registry.get_sample_value("sparkfleet_build_info", {"version": __version__}) == 1


@pytest.mark.parametrize("name", ["sparkfleet_ttft_seconds", "sparkfleet_itl_seconds"])
def test_the_buckets_go_from_a_millisecond_to_two_minutes(name: str) -> None:
    metrics = GatewayMetrics()
    metrics.ttft["m"].observe(0.0005)
    metrics.itl["m"].observe(119)
    families = {f.name: f for f in text_string_to_metric_families(generate_latest(metrics.registry).decode())}
    bounds = [float(s.labels["le"]) for s in families[name].samples if s.name.endswith("_bucket")]
    assert (bounds[0], bounds[-2], bounds[-1]) == (0.001, 120.0, float("inf"))
    assert bounds == sorted(bounds)


def test_times_between_tokens_are_exposed_as_by_the_librarys_histogram():
    registry, own = CollectorRegistry(), GatewayMetrics()
    theirs = Histogram(ITL.name, ITL.meaning, ITL.labels, buckets=ITL.buckets, registry=registry)
    for seconds in (0.0, ITL.buckets[0], ITL.buckets[0] * 1.01, ITL.buckets[-1], 1e6, 0.02, 0.02):
        for one in (own.itl["tiny"], theirs.labels("tiny")):
            one.observe(seconds)

    def lines(page):
        text = generate_latest(page).decode().splitlines()
        return [line for line in text if ITL.name in line and "_created" not in line]

    assert lines(own.registry) == lines(registry)


def test_many_times_at_once_are_counted_as_one_by_one():
    seconds, each, at_once = [0.0, 0.001, 0.02, 0.02, 500.0], Times(ITL.buckets), Times(ITL.buckets)
    for one in seconds:
        each.observe(one)
    at_once.observe_all(seconds)
    assert at_once.cumulated() == each.cumulated()
    assert at_once.sum_s == pytest.approx(each.sum_s)


def test_a_total_begins_at_nothing_and_is_exposed_once_it_is_counted():
    metrics = GatewayMetrics()
    value = metrics.registry.get_sample_value
    labels = {"model": "tiny", "path": "/v1/models", "status": "200"}
    assert value("sparkfleet_requests_total", labels) is None
    metrics.requests["tiny", "/v1/models", "200"] += 2
    metrics.requests["tiny", "/v1/models", "404"] += 1
    assert value("sparkfleet_requests_total", labels) == 2
    metrics.in_flight[("tiny",)] += 0
    assert value("sparkfleet_requests_in_flight", {"model": "tiny"}) == 0
