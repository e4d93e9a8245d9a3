"""Reports and their age: a silent group shows as silent, not as its last report."""

from sparkfleet.controlplane.state.report_cache import STALE_S, ReportCache
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
