"""Invariants of a simulated fleet in which nothing changes any more."""

from types import SimpleNamespace

import pytest
from controller_world import report
from demand_states import wanted
from policy_world import desired

from sparkfleet.controlplane.policy.ladder import RETRIES
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.group.report import GroupPhase
from sparkfleet.lab.simulation.checks.settled_invariants import (
    SERVED_LONG_S,
    everything_wanted,
    nothing_unwanted,
    refused_although_free,
    remembers_ended,
    served_and_stays_away,
)
from sparkfleet.lab.simulation.fleet import MEMORY, SimulatedEngine, SimulatedFleet
from sparkfleet.lab.simulation.timeline import Timeline
from sparkfleet.units import GIB

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


GIVEN_UP = Standing(given_up=True)
WANTED = {"tiny": wanted("tiny", 20, on_demand=False, generation=2)}


def fleet(*ready, hog=0):
    """One node, with an engine that serves for each of these groups."""
    made = SimulatedFleet(("this",), Timeline())
    made.engines = {group: SimulatedEngine(group, 0, ("this",), 1, ready=True) for group in ready}
    made.nodes["this"].hog = hog
    return made


def applications(*groups, status="running"):
    return SimpleNamespace(apps={group: SimpleNamespace(status=status) for group in groups})


def test_an_application_of_an_older_generation_is_found_unless_the_newer_one_is_given_up():
    (found,) = nothing_unwanted(WANTED, {}, applications(OLDER, NEWER), fleet(OLDER, NEWER))
    assert found == "0.0 s: ('tiny', 1, 0) runs without a deployment"
    assert list(nothing_unwanted(WANTED, {}, applications(NEWER), fleet(NEWER))) == []
    assert list(nothing_unwanted(WANTED, {NEWER: GIVEN_UP}, applications(OLDER), fleet(OLDER))) == []
    assert len(list(nothing_unwanted({}, {}, applications(OLDER), fleet()))) == 1


def test_an_engine_without_an_application_is_found():
    (found,) = nothing_unwanted(WANTED, {}, applications(), fleet(NEWER))
    assert found == "0.0 s: an engine of ('tiny', 2, 0) runs without an application"


def test_a_group_that_is_wanted_and_does_not_serve_is_found_unless_it_has_no_room():
    def found(standings, *ready, hog=0):
        return list(everything_wanted(WANTED, standings, fleet(*ready, hog=hog)))

    words = ["0.0 s: tiny/g2/0 is wanted and does not serve"]
    assert found({}) == found({}, OLDER) == found({}, hog=MEMORY) == words
    assert found({NEWER: GIVEN_UP}) == words, "there is room for it"
    assert found({}, NEWER) == found({NEWER: GIVEN_UP}, hog=MEMORY) == []


@pytest.mark.parametrize(
    ("standings", "there", "hog", "is_found"),
    [
        ({NEWER: GIVEN_UP}, (), 0, True),
        ({}, (), 0, False),
        ({NEWER: GIVEN_UP, OLDER: GIVEN_UP}, (), 0, False),
        ({NEWER: GIVEN_UP}, (OLDER,), 0, False),
        ({NEWER: GIVEN_UP}, (), MEMORY, False),
    ],
)
def test_a_generation_that_served_last_and_does_not_start_is_found(standings, there, hog, is_found):
    served = desired("tiny", 1)
    found = list(
        served_and_stays_away(WANTED, standings, applications(*there), fleet(hog=hog), lambda one: served)
    )
    words = "tiny/g1/0 served last, has its memory free, and does not start"
    assert found == [f"0.0 s: {words}"] * is_found
    assert list(served_and_stays_away(WANTED, standings, applications(), fleet(), lambda one: None)) == []


@pytest.mark.parametrize(
    ("standing", "there", "hog", "is_found"),
    [
        (Standing(given_up=True, refused=1), (), 0, True),
        (Standing(given_up=True, refused=RETRIES), (), 0, True),
        (Standing(given_up=True, refused=RETRIES + 1), (), 0, False),
        (GIVEN_UP, (), 0, False),
        (Standing(refused=1), (), 0, False),
        (Standing(given_up=True, refused=1), (OLDER,), 0, False),
        (Standing(given_up=True, refused=1), (), MEMORY, False),
    ],
)
def test_a_group_that_stays_given_up_while_its_memory_is_free_is_found(standing, there, hog, is_found):
    found = list(refused_although_free(WANTED, {NEWER: standing}, applications(*there), fleet(hog=hog)))
    assert found == ["0.0 s: tiny/g2/0 is given up, and the memory it needs is free"] * is_found


NODE = "spark1"


def two_groups(first_gib, second_gib):
    """A deployment on demand to which an edit has added a group on the same node."""
    first, second = (wanted("c", gib, nodes=(NODE,)) for gib in (first_gib, second_gib))
    groups = (*first.plan.groups, *second.plan.groups)
    return first.model_copy(update={"plan": first.plan.model_copy(update={"groups": groups})})


@pytest.mark.parametrize(
    ("always_gib", "on_demand", "is_found"),
    [(25, False, False), (7, False, True), (25, True, True)],
    ids=["no room beside it", "room beside it", "it may end"],
)
def test_a_group_of_one_on_demand_may_wait_if_its_node_has_no_room_for_all_beside_what_runs_always(
    always_gib, on_demand, is_found
):
    """An alarm of the checker (seed 480102): 46 and 57 GiB on a node of 111, beside 25 of a deployment that runs always."""
    c, a = two_groups(46, 57), wanted("a", always_gib, nodes=(NODE,), on_demand=on_demand)
    fleet = SimulatedFleet((NODE,), Timeline())
    for group, gib in ((c.groups[0], 46), (a.groups[0], always_gib)):
        fleet.engines[group] = SimulatedEngine(group, 0, (NODE,), gib * GIB, ready=True)
    found = list(everything_wanted({"c": c, "a": a}, {}, fleet))
    assert found == ["0.0 s: c/g1/1 is wanted and does not serve"] * is_found
