"""Invariants of what may not last while the controller works, on one state each."""

import pytest
from policy_world import desired

from sparkfleet.controlplane.policy.fallback import STARVED
from sparkfleet.controlplane.policy.state import Pending
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.group.report import GroupPhase
from sparkfleet.lab.simulation.application import SimulatedApp
from sparkfleet.lab.simulation.checks.lasting_states import (
    LastingState,
    LastingStates,
    barred_starts,
    given_up_and_runs,
    starving,
    unexplained_waits,
    unknown_boots,
    unwanted,
)
from sparkfleet.lab.simulation.fleet import SimulatedNode
from sparkfleet.lab.simulation.plans import launch
from sparkfleet.lab.simulation.world import World

TINY = ("tiny", 1, 0)
ONE = desired("tiny")
WANTED = {"tiny": ONE}
NODES = {name: SimulatedNode(name) for name in ("this", "that")}


def app(status="starting", **fields):
    return SimulatedApp(launch(ONE, TINY, 0), status=status, **fields)


def groups(found):
    return [one.group for one in found]


@pytest.fixture
def lasting(tmp_path):
    """Violations of each step in which the group is in one state."""
    states = LastingStates(World(1, 1, tmp_path))
    state = LastingState(TINY, "runs without a deployment", 100.0)
    return lambda now, found=(state,), working=0.0: list(states.too_long(found, now, working))


def test_a_state_that_lasts_longer_than_it_may_is_found(lasting):
    assert lasting(50.0) == lasting(150.0) == []
    assert lasting(151.0) == ["151.0 s: tiny/g1/0 runs without a deployment, for 101 s"]


def test_the_time_of_a_state_begins_anew_after_a_break_and_while_no_controller_works(lasting):
    assert lasting(0.0) == lasting(90.0, ()) == lasting(95.0) == lasting(190.0) == []
    assert lasting(196.0, working=97.0) == []
    assert len(lasting(198.0, working=97.0)) == 1


def test_a_world_is_read_and_the_time_counts_from_the_first_step(tmp_path):
    world = World(1, 1, tmp_path)
    states = LastingStates(world)
    world.serve.apps[TINY] = app("running")
    assert list(states.broken({}, 0.0)) == []
    world.time.move_to(1000.0)
    assert list(states.broken({}, 0.0)) == ["1000.0 s: tiny/g1/0 runs without a deployment, for 1000 s"]


@pytest.mark.parametrize(
    ("status", "is_found"), [("running", True), ("starting", True), ("failed", True), ("retiring", False)]
)
def test_a_group_without_a_deployment_is_found_unless_it_ends(status, is_found):
    assert groups(unwanted({}, {TINY: app(status)})) == [TINY] * is_found
    assert groups(unwanted(WANTED, {TINY: app(status)})) == []


@pytest.mark.parametrize(
    ("status", "is_found"), [("running", True), ("starting", True), ("failed", False), ("retiring", False)]
)
def test_a_given_up_group_that_runs_on_is_found(status, is_found):
    apps = {TINY: app(status)}
    assert groups(given_up_and_runs(WANTED, {TINY: Standing(given_up=True)}, apps)) == [TINY] * is_found
    assert groups(given_up_and_runs(WANTED, {}, apps)) == []


def test_a_start_of_a_group_that_waits_for_a_drained_node_is_found_once_its_nodes_report():
    starts, barred = {TINY: {"this": "a"}}, {TINY: app(phase=GroupPhase.BARRED)}
    assert groups(barred_starts(starts, barred, NODES)) == [TINY]
    assert groups(barred_starts({}, barred, NODES)) == []
    assert groups(barred_starts(starts, {TINY: app(phase=GroupPhase.STARTING)}, NODES)) == []
    for silent in (SimulatedNode("this", slow_report=True), SimulatedNode("this", up=False)):
        assert groups(barred_starts(starts, barred, {"this": silent})) == []


def test_a_start_without_the_boot_of_a_node_that_reports_it_is_found():
    starts = {TINY: {"this": "a", "that": ""}}
    (found,) = unknown_boots(starts, NODES)
    assert found.words == "starts without the boot of that"
    assert groups(unknown_boots({TINY: {"this": "a", "that": "b"}}, NODES)) == []
    assert groups(unknown_boots(starts, {**NODES, "that": SimulatedNode("that", cut=True)})) == []


def less_below():
    """A deployment whose second rung needs less memory, on another node."""
    one = desired("tiny", rungs=2, nodes=(("this",), ("that",)))
    (group,) = one.plan.groups
    need = [
        rung.prediction.memory_bytes_per_rank.model_copy(update={"mid": mid, "high": mid})
        for rung, mid in zip(group.ladder, (2.0, 1.0), strict=True)
    ]
    ladder = tuple(
        rung.model_copy(
            update={"prediction": rung.prediction.model_copy(update={"memory_bytes_per_rank": band})}
        )
        for rung, band in zip(group.ladder, need, strict=True)
    )
    groups = (group.model_copy(update={"ladder": ladder}),)
    return {"tiny": one.model_copy(update={"plan": one.plan.model_copy(update={"groups": groups})})}


OFTEN = [float(at) for at in range(STARVED + 1)]


@pytest.mark.parametrize(
    ("status", "starved", "absent", "rung", "is_found"),
    [
        ("starting", OFTEN, (), 0, True),
        ("running", OFTEN, (), 0, False),
        ("starting", OFTEN[1:], (), 0, False),
        ("starting", OFTEN, ("that",), 0, False),
        ("starting", OFTEN, (), 1, False),
    ],
)
def test_a_group_whose_memory_runs_out_at_a_rung_although_one_needs_less_is_found(
    status, starved, absent, rung, is_found
):
    apps, standings = {TINY: app(status, starved=list(starved))}, {TINY: Standing(rung=rung)}
    assert groups(starving(less_below(), standings, apps, absent, 0.0)) == [TINY] * is_found
    assert groups(starving(less_below(), standings, apps, absent, OFTEN[-1])) == [], "they count no longer"


def test_a_group_that_does_not_start_without_a_reason_for_people_is_found():
    assert groups(unexplained_waits(WANTED, {}, {}, Pending())) == [TINY]
    assert groups(unexplained_waits(WANTED, {}, {TINY: app("failed")}, Pending())) == []
    older = {(TINY[0], TINY[1] - 1, 0): app("retiring")}
    assert groups(unexplained_waits(WANTED, {}, older, Pending())) == [], "its requests end first, in minutes"
    assert groups(unexplained_waits(WANTED, {TINY: Standing(given_up=True)}, {}, Pending())) == []
    for explained in (Pending(waiting={TINY: "why"}), Pending(recorded={"tiny/g1": "why"})):
        assert groups(unexplained_waits(WANTED, {}, {}, explained)) == []
    assert groups(unexplained_waits(WANTED, {}, {}, Pending(recorded={"tiny/g2": "why"}))) == [TINY]


def test_a_group_that_waits_for_a_sibling_that_starts_needs_no_reason():
    two, sibling = {"tiny": desired("tiny", groups=2)}, ("tiny", 1, 1)
    assert groups(unexplained_waits(two, {}, {sibling: app("starting")}, Pending())) == []
    assert groups(unexplained_waits(two, {}, {sibling: app("running")}, Pending())) == [TINY]


def test_one_on_demand_needs_no_reason():
    spec = ONE.spec.model_copy(update={"on_demand": True})
    one = ONE.model_copy(update={"spec": spec})
    assert groups(unexplained_waits({"tiny": one}, {}, {}, Pending())) == []
