"""RequestDemand as gateways report it: merged, since when requests wait, and nothing concluded from silence."""

from sparkfleet.controlplane.state.demand import RequestDemand
from sparkfleet.controlplane.state.demand_cache import DemandCache
from sparkfleet.controlplane.state.report_cache import STALE_S
from sparkfleet.gateway.report import GatewayReport, OnDemandUse


def report(replica="one", **uses):
    return GatewayReport(replica=replica, url="", metrics_url="", at=0.0, on_demand=uses)


def test_the_time_since_which_requests_wait_is_kept_until_none_does():
    now = [10.0]
    cache = DemandCache(lambda: now[0])
    assert not cache.take(report(a=OnDemandUse(idle_s=4.0)))
    assert cache.present() == {"a": RequestDemand(0, None, 6.0, 4.0, None)}
    now[0] = 12.0
    assert cache.take(report(a=OnDemandUse(in_flight=1, waiting=1))), "the first that waits is news"
    now[0] = 15.0
    assert not cache.take(report(a=OnDemandUse(in_flight=2, waiting=2)))
    assert cache.present() == {"a": RequestDemand(2, 12.0, 15.0, 0.0, None)}
    now[0] = 16.0
    cache.take(report(a=OnDemandUse(in_flight=2, ready_s=0.5)))
    assert cache.present() == {"a": RequestDemand(2, None, 16.0, 0.0, 15.5)}


def test_two_replicas_count_together_and_the_later_use_counts():
    now = [100.0]
    cache = DemandCache(lambda: now[0])
    cache.take(report("old", a=OnDemandUse(in_flight=1, waiting=1)))
    cache.take(report("new", a=OnDemandUse(idle_s=50.0)))
    assert cache.present() == {"a": RequestDemand(1, 100.0, 100.0, 0.0, None)}
    cache.take(report("old", a=OnDemandUse(idle_s=2.0, ready_s=60.0)))
    cache.take(report("new", a=OnDemandUse(idle_s=50.0, ready_s=50.0)))
    assert cache.present() == {"a": RequestDemand(0, None, 98.0, 2.0, 40.0)}


def test_of_a_gateway_that_is_silent_nothing_is_concluded():
    now = [100.0]
    cache = DemandCache(lambda: now[0])
    cache.take(report(a=OnDemandUse(idle_s=50.0)))
    now[0] += STALE_S
    assert (cache.present(), cache.outline()) == ({}, [])


def test_seconds_without_a_request_are_those_of_the_report():
    """A request may have come since it was sent."""
    now = [100.0]
    cache = DemandCache(lambda: now[0])
    cache.take(report(a=OnDemandUse(idle_s=6.0)))
    now[0] += 9.0
    assert cache.present()["a"].unused_s == 6.0


def test_the_outline_changes_with_what_the_policy_depends_on_alone():
    now = [100.0]
    cache = DemandCache(lambda: now[0])
    cache.take(report(a=OnDemandUse(in_flight=1)))
    before = cache.outline()
    now[0] = 101.0
    cache.take(report(a=OnDemandUse(in_flight=7)))
    assert cache.outline() == before
    cache.take(report(a=OnDemandUse(idle_s=0.5)))
    assert cache.outline() != before
