"""Invariants of deployments on demand, on one state each."""

from types import SimpleNamespace

import pytest
from demand_world import on_demand, wanted

from sparkfleet.controlplane.policy.state import GONE_S
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry, RoutingTable
from sparkfleet.lab.simulation.application import SimulatedApp
from sparkfleet.lab.simulation.checks import demand_invariants
from sparkfleet.lab.simulation.checks.demand_invariants import (
    IDLE_SLACK_S,
    LONGEST_START_S,
    PLACED_S,
    REFUSED_S,
    SLACK_S,
    START_KEPT_S,
    DemandRecord,
)
from sparkfleet.lab.simulation.clients import ModelUse
from sparkfleet.lab.simulation.fleet import SimulatedEngine
from sparkfleet.lab.simulation.plans import launch
from sparkfleet.lab.simulation.world import World

ONE = on_demand("d", 24, idle=60)
DEMANDED = {"d": ONE}
GROUP = ONE.groups[0]
LIMIT_S = LONGEST_START_S + GONE_S + SLACK_S
"""Longest wait for the only one on demand."""


def waits(record, now, since=0.0, is_possible=True, working_since=0.0):
    use = {"d": ModelUse(waiting_since=since)}
    return list(
        demand_invariants.waits_too_long(
            record, DEMANDED, use, lambda one: is_possible, working_since=working_since, now=now
        )
    )


def test_a_request_that_waits_longer_than_all_turns_take_is_found():
    record = DemandRecord()
    assert waits(record, 0.0) == waits(record, LIMIT_S) == []
    (found,) = waits(record, LIMIT_S + 1.0)
    assert found == "721.0 s: a request for d, which could be started, has waited for 721 s"


def test_the_time_of_a_wait_begins_when_it_is_possible_and_nothing_disturbs():
    late = LIMIT_S + 1.0
    assert waits(DemandRecord(), late) == [], "it is possible since now"
    assert waits(DemandRecord(possible_since={"d": 0.0}), late, since=None) == []
    assert waits(DemandRecord(possible_since={"d": 0.0}), late, working_since=2.0) == []
    for moment in ("disturbed_at", "answered_at"):
        assert waits(DemandRecord(possible_since={"d": 0.0}, **{moment: 2.0}), late) == []
    record = DemandRecord(possible_since={"d": 0.0})
    assert waits(record, late, is_possible=False) == waits(record, late) == []


def table(state, ready=False):
    groups = (GroupEntry(app="d--g1-0", ready=ready),)
    model = ModelEntry(name="d", deployment="d", state=state, on_demand=True, groups=groups)
    return RoutingTable(version=1, models={"d": model})


def refuses(record, now, shown=None, able=(ONE,), working_since=0.0):
    shown = table("failed") if shown is None else shown
    return list(
        demand_invariants.refuses_for_good(
            record, DEMANDED, shown, lambda one: able, working_since=working_since, now=now
        )
    )


def test_requests_that_are_refused_although_a_generation_may_start_are_found():
    record = DemandRecord()
    assert refuses(record, 0.0) == refuses(record, REFUSED_S) == []
    (found,) = refuses(record, REFUSED_S + 1.0)
    assert found == "121.0 s: requests for d have been refused for 121 s, and g1 may start"
    assert refuses(record, REFUSED_S + 1.0, working_since=2.0) == []


@pytest.mark.parametrize(
    "excuse", [{"shown": table("unloaded")}, {"shown": table("failed", ready=True)}, {"able": ()}]
)
def test_requests_that_wait_or_are_served_or_cannot_be_are_not_refused(excuse):
    record = DemandRecord(refused_since={"d": 0.0})
    assert refuses(record, REFUSED_S + 1.0, **excuse) == []
    assert refuses(record, REFUSED_S + 1.0) == [], "and the time begins anew"


def keeps(record, now, starts=None, is_loaded=False, working_since=0.0):
    starts = {GROUP: {"this": "a"}} if starts is None else starts
    return list(
        demand_invariants.keeps_starts(
            record, DEMANDED, starts, lambda name: is_loaded, working_since=working_since, now=now
        )
    )


def test_a_start_of_what_was_unloaded_is_found():
    record = DemandRecord()
    assert keeps(record, 0.0) == keeps(record, START_KEPT_S) == []
    (found,) = keeps(record, START_KEPT_S + 1.0)
    assert found == "61.0 s: the store has a start of d/g1/0, which was unloaded 61 s ago"


@pytest.mark.parametrize(
    "excuse", [{"starts": {}}, {"is_loaded": True}, {"working_since": 2.0}, {"starts": {("x", 1, 0): {}}}]
)
def test_a_start_of_what_is_loaded_is_not(excuse):
    assert keeps(DemandRecord(started_since={GROUP: 0.0}), START_KEPT_S + 1.0, **excuse) == []


@pytest.fixture
def world(tmp_path):
    """One node, with an engine that has been ready since 0.0, and a controller that knows of requests."""
    made = World(1, 1, tmp_path)
    made.fleet.nodes = {"this": made.fleet.nodes.pop("spark1")}
    made.fleet.engines[GROUP] = SimulatedEngine(GROUP, 0, ("this",), 1, ready=True)
    made.serve.apps[GROUP] = SimulatedApp(launch(ONE, GROUP, 0), status="running")
    return made


def knows(world, ready_since=0.0):
    """Lets the controller know since when a gateway has had it as ready; None: not at all."""
    present = {"d": SimpleNamespace(ready_since=ready_since)}
    demand = SimpleNamespace(present=lambda: present)
    world.processes.controller = SimpleNamespace(fleet=SimpleNamespace(demand=demand))


IDLE_S = ONE.spec.idle + IDLE_SLACK_S + 1.0


def unused(world, used_at=0.0, known_since=0.0, demanded=DEMANDED):
    world.time.seconds = IDLE_S
    return list(demand_invariants.runs_unused(demanded, {"d": ModelUse(used_at=used_at)}, world, known_since))


def test_an_engine_that_runs_longer_without_a_request_than_its_idle_is_found(world):
    knows(world)
    assert unused(world) == ["151.0 s: d/g1/0 has run without a request for 151 s, its idle is 60"]
    assert unused(world, used_at=1.0) == unused(world, known_since=1.0) == []
    assert unused(world, demanded={"d": on_demand("d", 24)}) == [], "it may stay for ever"
    knows(world, ready_since=None)
    assert unused(world) == [], "no gateway knows that it serves"
    knows(world)
    world.serve.apps[GROUP].status = "retiring"
    assert unused(world) == []


OTHER = ("e", 1, 0)
AT = 1000.0


def refused(world, demanded=DEMANDED, at=AT, hogged_at=float("-inf"), rung=0):
    given = launch(ONE, GROUP, 0).model_copy(update={"rung": rung})
    return list(demand_invariants.started_without_room([(at, given)], demanded, world, hogged_at))


def test_a_start_that_finds_too_little_memory_beside_others_is_found(world):
    world.serve.calls = [(AT - 1.0, "deploy", GROUP)]
    world.fleet.engines[OTHER] = SimulatedEngine(OTHER, 0, ("this",), 1, ready=True)
    assert refused(world) == ["1000.0 s: d/g1/0 was started without room beside e/g1/0"]
    assert refused(world, demanded={}) == refused(world, rung=1) == []
    assert refused(world, hogged_at=AT - LONGEST_START_S) == [], "something else took that memory"
    assert refused(world, at=AT + PLACED_S) == [], "it waited for a node"
    world.fleet.engines[OTHER].began_at = AT - 1.0
    assert refused(world) == [], "what is not on demand started meanwhile"
    assert len(refused(world, demanded={**DEMANDED, "e": wanted("e", 24)})) == 1
    world.serve.apps[GROUP].has_served = True
    assert refused(world, demanded={**DEMANDED, "e": wanted("e", 24)}) == []
