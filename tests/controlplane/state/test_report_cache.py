"""Reports and their age: a silent group shows as silent, not as its last report."""

from sparkfleet.controlplane.state.report_cache import ACTORS, REPLACED_S, STALE_S, ReportCache, ReportOrder
from sparkfleet.group.report import GroupPhase, GroupReport


def report(replica=0):
    return GroupReport(
        deployment="m", generation=1, replica=replica, phase=GroupPhase.READY, node="spark1", since=0.0
    )


def test_a_group_that_falls_silent_is_told_with_how_long():
    now = [1000.0]
    heard = ReportCache(lambda: now[0])
    heard.group(report(0))
    now[0] += STALE_S
    heard.group(report(1))
    assert [(one.replica, one.silent_s) for one in heard.groups()] == [(0, STALE_S), (1, 0.0)]
    assert [one.replica for one in heard.fresh()] == [1]
    heard.group(report(0))
    assert {one.silent_s for one in heard.groups()} == {0.0}


def test_a_report_of_the_same_phase_is_a_change_if_the_one_before_is_to_be_repeated():
    cache = ReportCache(lambda: 0.0)
    assert [cache.group(report()) for _ in range(2)] == [True, False]
    cache.repeat("m/g1/0")
    assert cache.newest("m/g1/0") == report(), "it is known meanwhile"
    assert [cache.group(report()) for _ in range(2)] == [True, False]
    cache.repeat("m/g1/0")
    cache.forget([])
    assert not cache._repeated


def test_a_speed_that_is_measured_later_changes_the_outline_and_load_does_not():
    cache, found = ReportCache(lambda: 0.0), []
    for changed in ({}, {"running": 3.0}, {"measured": {"decode_tps": 20.0}}):
        cache.group(report().model_copy(update=changed))
        found.append(cache.outline())
    assert found[0] == found[1] != found[2]


def by(actor, number, phase=GroupPhase.READY):
    return report().model_copy(update={"actor": actor, "number": number, "phase": phase})


def arrivals(cache, *reports):
    """The arrival of each, the newest ones stored."""
    found = []
    for one in reports:
        found.append(cache.order(one))
        if found[-1] is ReportOrder.NEWEST:
            cache.group(one)
    return found


def test_a_report_that_a_newer_one_of_its_actor_has_overtaken_is_not_the_newest():
    """`probing` arrived 0.6 ms after `ready`: the engine counted as not ready, and 69 requests got 503."""
    cache = ReportCache(lambda: 0.0)
    ready, probing = by("a", 5), by("a", 4, GroupPhase.PROBING)
    assert arrivals(cache, ready, probing, ready) == [
        ReportOrder.NEWEST,
        ReportOrder.OVERTAKEN,
        ReportOrder.NEWEST,
    ], "a report may be repeated"
    assert cache.newest("m/g1/0").phase is GroupPhase.READY


def test_an_actor_that_was_replaced_does_not_take_its_group_back():
    """A stopped process goes on after Serve has started another one in its place."""
    cache = ReportCache(lambda: 0.0)
    before, after = by("a", 9), by("b", 1, GroupPhase.PREPARING)
    failed = by("a", 10, GroupPhase.FAILED)
    assert arrivals(cache, before, after) == [ReportOrder.NEWEST] * 2
    assert arrivals(cache, before, failed, failed) == [
        ReportOrder.OVERTAKEN,
        ReportOrder.LATE,
        ReportOrder.OVERTAKEN,
    ]
    assert cache.newest("m/g1/0") == after


def test_of_two_actors_the_one_that_goes_on_reporting_wins():
    """After a restart of the controller the first report of an actor may come after those of the one that replaced it."""
    now = [0.0]
    cache = ReportCache(lambda: now[0])
    assert arrivals(cache, by("b", 1), by("a", 9)) == [ReportOrder.NEWEST] * 2
    assert arrivals(cache, by("b", 2)) == [ReportOrder.LATE]
    now[0] += REPLACED_S
    assert arrivals(cache, by("b", 3)) == [ReportOrder.NEWEST]
    assert arrivals(cache, by("a", 10, GroupPhase.FAILED)) == [ReportOrder.LATE]


def test_an_actor_that_has_failed_is_not_the_group_s_last():
    cache = ReportCache(lambda: 0.0)
    assert arrivals(cache, by("b", 1), by("a", 9, GroupPhase.FAILED), by("b", 2)) == [ReportOrder.NEWEST] * 3


def test_reports_of_a_release_without_numbers_are_newest_as_they_arrive():
    cache = ReportCache(lambda: 0.0)
    assert arrivals(cache, report(), by("a", 1), report(), by("a", 1)) == [ReportOrder.NEWEST] * 4


def test_the_numbers_of_a_few_actors_are_remembered_and_those_of_no_group_that_is_gone():
    cache = ReportCache(lambda: 0.0)
    failed = [by(str(n), 1, GroupPhase.FAILED) for n in range(2 * ACTORS)]
    assert set(arrivals(cache, *failed)) == {ReportOrder.NEWEST}
    assert len(cache._numbers["m/g1/0"]) == ACTORS
    cache.forget([])
    assert not cache._numbers
