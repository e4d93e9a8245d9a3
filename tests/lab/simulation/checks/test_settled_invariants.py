"""Invariants of a simulated fleet in which nothing changes any more."""

from types import SimpleNamespace

import pytest
from controller_world import report
from policy_world import desired

from sparkfleet.group.report import GroupPhase
from sparkfleet.lab.simulation.checks.settled_invariants import SERVED_LONG_S, remembers_ended

OLDER, NEWER = ("tiny", 1, 0), ("tiny", 2, 0)
NOW = 10_000.0


@pytest.mark.parametrize(
    ("status", "served_s", "found"),
    [
        ("running", SERVED_LONG_S + 1.0, ["the store still knows tiny/g1/0, which has ended"]),
        ("running", 1.0, []),
        ("starting", SERVED_LONG_S + 1.0, []),
    ],
)
def test_what_has_ended_is_remembered_until_what_replaced_it_has_served_for_long(status, served_s, found):
    ready = report(2, phase=GroupPhase.READY, since=NOW - served_s)
    serve = SimpleNamespace(apps={NEWER: SimpleNamespace(status=status, report=ready)})
    assert list(remembers_ended({"tiny": desired("tiny", 2)}, [OLDER, NEWER], serve, NOW)) == found
    assert list(remembers_ended({}, [OLDER], serve, NOW)) == [
        "the store still knows tiny/g1/0, which has ended"
    ]
