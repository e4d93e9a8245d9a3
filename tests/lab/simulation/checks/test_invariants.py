"""Invariants that hold after each step, on one step each."""

from types import SimpleNamespace

import pytest
from policy_world import desired

from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.controlplane.state.event import Event
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry, RoutingTable
from sparkfleet.lab.simulation.application import SimulatedApp
from sparkfleet.lab.simulation.checks import invariants
from sparkfleet.lab.simulation.fleet import SimulatedEngine, SimulatedFleet
from sparkfleet.lab.simulation.plans import launch
from sparkfleet.lab.simulation.timeline import Timeline

TINY = ("tiny", 1, 0)
ONE = desired("tiny", rungs=2)
WANTED = {"tiny": ONE}
NOW = 1000.0


def fleet(*engines):
    made = SimulatedFleet(("this", "that"), Timeline())
    made.time.seconds = NOW
    made.engines = {one.group: one for one in engines}
    return made


def engine(group=TINY, **fields):
    return SimulatedEngine(group, 0, ("this",), 1, **{"ready": True, **fields})


@pytest.mark.parametrize(
    ("ready", "engines", "ended_at", "is_found"),
    [
        (True, (), NOW - invariants.STALE_TABLE_S - 1.0, True),
        (True, (engine(ready=False),), NOW - invariants.STALE_TABLE_S - 1.0, True),
        (True, (), NOW - invariants.STALE_TABLE_S, False),
        (False, (), NOW - invariants.STALE_TABLE_S - 1.0, False),
        (True, (engine(),), NOW - invariants.STALE_TABLE_S - 1.0, False),
    ],
)
def test_a_group_that_a_table_names_as_ready_long_after_its_end_is_found(ready, engines, ended_at, is_found):
    entry = GroupEntry(app="tiny--g1-0", ready=ready)
    model = ModelEntry(name="tiny", deployment="tiny", state="ready", groups=(entry,))
    table = RoutingTable(version=1, models={"tiny": model})
    found = list(invariants.not_ready_in_table(table, fleet(*engines), {TINY: ended_at}))
    assert found == ["1000.0 s: the table names tiny--g1-0 as ready; its engine ended 31 s ago"] * is_found


@pytest.mark.parametrize(
    ("held", "content", "back_at", "is_found"),
    [
        (True, "right", NOW - invariants.BACK_S - 1.0, True),
        (False, "right", NOW - invariants.BACK_S - 1.0, False),
        (True, "away", NOW - invariants.BACK_S - 1.0, False),
        (True, "right", NOW - invariants.BACK_S, False),
    ],
)
def test_a_controller_that_waits_for_a_store_that_is_back_is_found(held, content, back_at, is_found):
    place = SimpleNamespace(content=content, back_at=back_at)
    found = list(invariants.waits_for_nothing(held, place, NOW))
    assert found == ["1000.0 s: the controller waits for its store, which came back 11 s ago"] * is_found


@pytest.mark.parametrize(
    ("count", "call", "at", "is_found"),
    [
        (invariants.STORM + 1, "deploy", NOW, True),
        (invariants.STORM, "deploy", NOW, False),
        (invariants.STORM + 1, "retire", NOW, False),
        (invariants.STORM + 1, "deploy", NOW - invariants.STORM_S, False),
    ],
)
def test_a_group_that_is_deployed_again_and_again_is_found(count, call, at, is_found):
    serve = SimpleNamespace(calls=[(at, call, TINY)] * count)
    found = list(invariants.start_storms(serve, NOW))
    assert found == ["1000.0 s: ('tiny', 1, 0) was deployed 41 times in 600 s"] * is_found


def test_calls_for_several_groups_are_no_storm_of_one():
    other = ("tiny", 1, 1)
    calls = [(NOW, "deploy", group) for group in (TINY, other) for _ in range(invariants.STORM)]
    assert list(invariants.start_storms(SimpleNamespace(calls=calls), NOW)) == []


def test_a_rung_that_takes_its_node_down_more_often_than_it_may_be_tried_is_found():
    def found(times):
        return list(invariants.wedged_again(SimpleNamespace(wedged={(TINY, 1): times}), NOW))

    assert found(invariants.WEDGES) == []
    assert found(invariants.WEDGES + 1) == ["1000.0 s: ('tiny', 1, 0) took a node down 4 times at rung 2"]


def test_a_process_that_acts_after_a_newer_one_is_found():
    assert list(invariants.older_acts([(1.0, 1), (2.0, 2), (3.0, 2)])) == []
    (found,) = invariants.older_acts([(1.0, 1), (2.0, 2), (3.0, 1)])
    assert found == "3.0 s: process 1 of the controller acts beside process 2"


def event(kind="retire", at=10.0, subject="tiny/g1/0"):
    return Event(id=1, at=at, deployment="tiny", generation=1, subject=subject, kind=kind, message="")


@pytest.mark.parametrize(
    ("ended", "why", "wanted", "events", "is_found"),
    [
        (engine(), "retired", WANTED, (), True),
        (engine(), "deployed over", WANTED, (), True),
        (engine(), "retired", WANTED, (event(at=4.0),), True),  # of an earlier end
        (engine(), "retired", WANTED, (event(subject="tiny/g1/1"),), True),
        (engine(), "retired", WANTED, (event(kind="deploy"),), True),
        (engine(), "retired", WANTED, (event(),), False),
        (engine(), "it died", WANTED, (), False),
        (engine(ready=False), "retired", WANTED, (), False),
        (engine(hurt="hangs"), "retired", WANTED, (), False),
        (engine(), "retired", {}, (), False),
    ],
)
def test_a_well_and_wanted_engine_that_is_ended_without_an_event_is_found(
    ended, why, wanted, events, is_found
):
    found = list(invariants.ended_without_reason([(NOW, ended, why)], wanted, lambda: events, {TINY: 5.0}))
    words = f"1000.0 s: the engine of tiny/g1/0 was ready, well and wanted, and was ended: {why}"
    assert found == [words] * is_found


@pytest.mark.parametrize(
    ("rung", "status", "standing", "is_found"),
    [
        (0, "running", Standing(rung=1), True),
        (0, "starting", Standing(rung=1), True),
        (1, "running", Standing(rung=1), False),
        (0, "failed", Standing(rung=1), False),
        (0, "running", Standing(rung=1, given_up=True), False),
    ],
)
def test_a_group_that_runs_at_another_rung_than_the_stored_one_is_found(rung, status, standing, is_found):
    serve = SimpleNamespace(apps={TINY: SimulatedApp(launch(ONE, TINY, rung), status=status)})
    assert list(invariants.at_another_rung(WANTED, {TINY: standing}, serve)) == [TINY] * is_found


NEW = desired("tiny", 2)


@pytest.mark.parametrize(
    ("retired", "apps", "standings", "is_found"),
    [
        (engine(), {}, {}, False),  # the one that is missing needs its node
        (SimulatedEngine(TINY, 0, ("that",), 1, ready=True), {}, {}, True),
        (engine(), {NEW.groups[0]: SimpleNamespace(has_served=False)}, {}, True),
        (engine(), {NEW.groups[0]: SimpleNamespace(has_served=True)}, {}, False),
        (engine(ready=False), {NEW.groups[0]: SimpleNamespace(has_served=False)}, {}, False),
        (
            engine(),
            {NEW.groups[0]: SimpleNamespace(has_served=False)},
            {TINY: Standing(given_up=True)},
            False,
        ),
    ],
)
def test_an_older_group_that_ends_before_its_turn_is_found(retired, apps, standings, is_found):
    serve = SimpleNamespace(apps=apps)
    found = list(invariants.ended_out_of_turn([(NOW, retired)], {"tiny": NEW}, standings, serve))
    words = "tiny/g1/0 served and ended, and no desired group that is missing needs their nodes"
    assert found == [f"1000.0 s: {words}"] * is_found
