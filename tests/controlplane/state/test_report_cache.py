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


def test_a_report_that_is_taken_back_changes_the_phase_once_more():
    cache = ReportCache(lambda: 0.0)
    starting = report().model_copy(update={"phase": GroupPhase.STARTING})
    for before in (None, starting):
        assert cache.group(report())
        cache.take_back(report(), before)
        assert cache.newest("m/g1/0") is before
    assert cache.group(report())
    cache.take_back(starting, None)  # a later phase has come meanwhile
    assert cache.newest("m/g1/0") == report()
