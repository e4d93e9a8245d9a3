"""Invariants of nodes that are gone or drained, on one state each."""

import pytest
from policy_world import desired

from sparkfleet.controlplane.policy.ladder import TOOK_DOWN
from sparkfleet.controlplane.policy.state import GONE_S
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.group.report import GroupPhase
from sparkfleet.lab.simulation.application import SimulatedApp
from sparkfleet.lab.simulation.checks import node_invariants
from sparkfleet.lab.simulation.checks.node_invariants import LEAVES_S
from sparkfleet.lab.simulation.fleet import SimulatedEngine, SimulatedFleet
from sparkfleet.lab.simulation.plans import launch
from sparkfleet.lab.simulation.timeline import Timeline

TINY, OLDER = ("tiny", 2, 0), ("tiny", 1, 0)
ONE = desired("tiny", 2, rungs=2, nodes=(("this",), ("that",)))
"""A group that can leave its node."""
WANTED = {"tiny": ONE}
STAYS = {"tiny": desired("tiny", 2)}
"""One that cannot."""
NOW = 10_000.0
LONG_S = GONE_S + LEAVES_S + 1.0
NONE = frozenset()


def fleet(away_s=None, name="this"):
    made = SimulatedFleet(("this", "that"), Timeline())
    made.time.seconds = NOW
    if away_s is not None:
        made.nodes[name].up, made.nodes[name].away_since = False, NOW - away_s
    return made


def waiting(machines, wanted=WANTED, standing=None, since=0.0, working_since=0.0, drained=NONE):
    standings = {TINY: standing} if standing else {}
    return list(
        node_invariants.stays_on_gone_nodes(
            wanted, standings, machines, {TINY: since}, working_since, drained=drained
        )
    )


def test_a_group_that_stays_on_a_node_that_is_gone_is_found():
    assert waiting(fleet(LONG_S)) == ["10000.0 s: tiny/g2/0 waits for ['this']"]
    assert waiting(fleet(LONG_S - 1.0)) == waiting(fleet()) == []


@pytest.mark.parametrize(
    "excuse",
    [
        {"wanted": STAYS},
        {"standing": Standing(rung=1)},
        {"standing": Standing(given_up=True)},
        {"since": NOW - 1.0},
        {"working_since": NOW - 1.0},
        {"drained": frozenset({"that"})},
    ],
)
def test_one_that_cannot_leave_it_or_had_no_time_to_is_not(excuse):
    assert waiting(fleet(LONG_S), **excuse) == []


def test_one_for_which_an_older_group_serves_waits():
    machines = fleet(LONG_S)
    machines.engines[OLDER] = SimulatedEngine(OLDER, 0, ("that",), 1, ready=True)
    assert waiting(machines) == []


def test_an_engine_that_is_started_on_a_drained_node_is_found():
    began = [(NOW, TINY, ("this", "that"))]
    assert list(node_invariants.begun_on_drained(began, NONE)) == []
    (found,) = node_invariants.begun_on_drained(began, frozenset({"that"}))
    assert found == "10000.0 s: tiny/g2/0 was started on ['that']: drained"


@pytest.mark.parametrize(
    ("before", "after", "drained", "is_found"),
    [(0, 1, "that", True), (0, 1, "this", False), (1, 1, "that", False), (1, 0, "this", False)],
)
def test_a_group_that_falls_to_a_rung_on_a_drained_node_is_found(before, after, drained, is_found):
    rungs = ({TINY: Standing(rung=before)}, {TINY: Standing(rung=after)})
    found = list(node_invariants.falls_on_drained(WANTED, *rungs, frozenset({drained}), NOW))
    assert found == ["10000.0 s: tiny/g2/0 took rung 2 on ['that']: drained"] * is_found


class Applications:
    """Serve with one application, which waits since a moment."""

    def __init__(self, since=NOW - LEAVES_S - 1.0, phase=GroupPhase.BARRED, status="starting"):
        self.apps = {TINY: SimulatedApp(launch(ONE, TINY, 0), status=status, phase=phase, barred_since=since)}


def barred(serve, wanted=WANTED, standing=None, machines=None, drained="this", working_since=0.0):
    return list(
        node_invariants.stays_on_drained_nodes(
            wanted,
            {TINY: standing} if standing else {},
            machines or fleet(),
            serve,
            drained=frozenset({drained}),
            working_since=working_since,
        )
    )


def test_a_group_that_waits_for_a_drained_node_although_it_can_leave_it_is_found():
    assert barred(Applications()) == ["10000.0 s: tiny/g2/0 waits for ['this']: drained"]


@pytest.mark.parametrize(
    ("serve", "excuse"),
    [
        (Applications(NOW - LEAVES_S), {}),
        (Applications(phase=GroupPhase.STARTING), {}),
        (Applications(status="retiring"), {}),
        (Applications(), {"wanted": STAYS}),
        (Applications(), {"standing": Standing(bound=TOOK_DOWN, given_up=True)}),
        (Applications(), {"drained": "that"}),
        (Applications(), {"machines": fleet(1.0, "that")}),
        (Applications(), {"working_since": NOW - 1.0}),
    ],
)
def test_one_that_cannot_or_had_no_time_to_is_not_found(serve, excuse):
    assert barred(serve, **excuse) == []
