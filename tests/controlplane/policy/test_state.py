"""The snapshot of a fleet: since when nodes are away, and what a report counts for."""

from dataclasses import replace

import pytest
from controller_world import report
from policy_world import seen

from sparkfleet.controlplane.policy.decide import is_at_rest
from sparkfleet.controlplane.policy.state import GONE_S, FleetState, Now, Pending
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.group.report import GroupPhase

TINY = ("tiny", 1, 0)


def read(nodes, at, *, joined):
    return nodes.seen([NodeReport(name="that", joined=joined)], at, Now.at(at))


def test_a_node_is_gone_after_a_while_from_its_first_absence_on():
    nodes = read(read(seen(), 100.0, joined=False), 100.0 + GONE_S - 1, joined=False)
    assert nodes.gone(Now.at(100.0 + GONE_S - 1)) == frozenset(), "it may be booting"
    assert nodes.gone(Now.at(100.0 + GONE_S)) == {"that"}
    back = read(read(nodes, 200.0, joined=True), 100.0 + GONE_S, joined=False)
    assert back.gone(Now.at(100.0 + GONE_S)) == frozenset()


@pytest.mark.parametrize(
    ("phase", "fresh", "ready"),
    [(GroupPhase.READY, True, True), (GroupPhase.READY, False, False), (GroupPhase.PROBING, True, False)],
)
def test_a_silent_group_is_not_ready(phase, fresh, ready):
    told = report(phase=phase)
    state = FleetState(reports=(told,), fresh=frozenset({told.name} if fresh else ()))
    assert state.is_ready(TINY) is ready


def test_a_group_that_took_another_rung_no_longer_waits_for_the_drained_node_of_the_first():
    state = FleetState(reports=(report(phase=GroupPhase.BARRED, rung=0),))
    assert state.is_barred(TINY)
    assert not replace(state, standings={TINY: Standing(rung=1)}).is_barred(TINY)


@pytest.mark.parametrize(
    "fields",
    [
        {"starts": {TINY: {"this": "first"}}},
        {"pending": Pending(answered={"tiny--g1-0": 0.0})},
        {"pending": Pending(failed_at={TINY: 0.0})},
        {"nodes": read(seen(), 1.0, joined=False)},
        {"nodes": replace(seen(), looked_at=None)},
    ],
    ids=["a start", "an answer", "a failure", "an absent node", "no reading"],
)
def test_a_fleet_in_which_time_matters_is_not_at_rest(fields):
    rests = FleetState(nodes=seen())
    assert is_at_rest(rests)
    assert not is_at_rest(replace(rests, **fields))
