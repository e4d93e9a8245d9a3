"""RequestDemand as gateways report it: merged, since when requests wait, and nothing concluded from silence."""

from sparkfleet.controlplane.state.demand import RequestDemand
from sparkfleet.controlplane.state.demand_cache import AGAIN_S, LOAD_S, DemandCache
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


def test_the_longest_start_counts_from_the_one_on_with_which_it_became_ready():
    cache = DemandCache(lambda: 100.0)
    ready = report(a=OnDemandUse(in_flight=1, ready_s=1.0))
    cache.started("a", 222.0)
    cache.take(ready)
    assert cache.present()["a"].longest_start_s == 222.0
    cache.started("a", 60.0)
    assert cache.present()["a"].longest_start_s == 222.0, "an edit was started beside it"
    cache.started("a", 300.0)
    assert cache.present()["a"].longest_start_s == 300.0
    cache.take(report(a=OnDemandUse(in_flight=1, waiting=1)))
    cache.started("a", 90.0)
    cache.take(ready)
    assert cache.present()["a"].longest_start_s == 90.0, "it had ended"


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


def test_a_request_that_comes_again_has_its_place_in_the_line_again():
    """A client that has waited for 570 s gets a 503, and asks again; a gateway that is replaced cuts all of them."""
    now = [100.0]
    cache = DemandCache(lambda: now[0])
    cache.take(report(a=OnDemandUse(in_flight=1, waiting=1)))
    now[0] = 670.0
    cache.take(report(a=OnDemandUse(idle_s=0.1)))
    assert cache.present()["a"].waiting_since is None
    now[0] += AGAIN_S - 1
    assert cache.take(report(a=OnDemandUse(in_flight=1, waiting=1)))
    assert cache.present()["a"].waiting_since == 100.0
    now[0] += 5
    cache.take(report(a=OnDemandUse()))
    now[0] += AGAIN_S
    cache.take(report(a=OnDemandUse(in_flight=1, waiting=1)))
    assert cache.present()["a"].waiting_since == now[0], "it came too late"


def test_after_its_turn_a_deployment_goes_to_the_end_of_the_line():
    now = [100.0]
    cache = DemandCache(lambda: now[0])
    cache.take(report(a=OnDemandUse(in_flight=1, waiting=1)))
    for use in (
        OnDemandUse(in_flight=1, ready_s=0.1),
        OnDemandUse(idle_s=1.0),
        OnDemandUse(in_flight=1, waiting=1),
    ):
        now[0] += 5
        cache.take(report(a=use))
    assert cache.present()["a"].waiting_since == 115.0


def test_a_load_is_a_request_that_waits_until_it_is_ready_and_the_use_of_that_moment():
    now = [100.0]
    cache = DemandCache(lambda: now[0])
    cache.take(report(a=OnDemandUse(idle_s=50.0)))
    assert cache.load("a", "me")
    assert cache.present() == {"a": RequestDemand(0, 100.0, 100.0, 0.0, None, "me")}
    now[0] = 110.0
    assert not cache.load("a", "me")
    now[0] = 120.0
    cache.take(report(a=OnDemandUse(idle_s=70.0, ready_s=1.0)))
    assert cache.present() == {"a": RequestDemand(0, None, 120.0, 0.0, 119.0)}
    now[0] = 125.0
    cache.take(report(a=OnDemandUse(idle_s=75.0, ready_s=6.0)))
    assert cache.present()["a"].unused_s == 5.0


def test_a_load_whose_command_has_gone_ends():
    now = [100.0]
    cache = DemandCache(lambda: now[0])
    cache.load("a", "me")
    assert cache.present()["a"].waiting_since == 100.0, "also before a gateway has reported"
    now[0] += LOAD_S
    assert cache.present() == {}
    cache.load("a", "me")
    cache.unload("a")
    assert cache.present() == {}


def test_a_request_of_a_report_from_before_an_unload_starts_nothing_again():
    """It was answered meanwhile; an `apply` right after the `unload` found the deployment loaded again."""
    cache = DemandCache(lambda: 100.0)
    cache.take(report("one", a=OnDemandUse(in_flight=1, waiting=1), b=OnDemandUse(in_flight=1, waiting=1)))
    cache.unload("a")
    assert {name: one.waiting_since for name, one in cache.present().items()} == {"b": 100.0}
    cache.take(report("one", a=OnDemandUse(in_flight=1, waiting=1)))
    assert cache.present()["a"].waiting_since == 100.0, "one that waits still is reported again"


def test_a_load_that_lasts_is_neither_shortened_by_a_command_beside_it_nor_by_the_end_of_that():
    now = [100.0]
    cache = DemandCache(lambda: now[0])
    assert cache.load("a", "boss (page)", 600.0)
    assert not cache.load("a", "me")
    now[0] += LOAD_S + 500.0
    assert cache.present()["a"].loaded_by == "boss (page)"
    cache.take(report(a=OnDemandUse(idle_s=1.0, ready_s=0.5)))
    assert cache.present()["a"].loaded_by == "", "it is ready"
    cache.load("b", "boss (page)", 600.0)
    now[0] += 601.0
    assert "b" not in cache.present()
