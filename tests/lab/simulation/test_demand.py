"""Deployments on demand in the simulation: their invariants hold, and a policy without one of its rules is found."""

from functools import cache

import pytest
from simulation_seeds import NEVER, seed_with

from sparkfleet.controlplane.policy import claim_room, on_demand
from sparkfleet.controlplane.policy import decide as policy
from sparkfleet.controlplane.policy.memory_admission import FreeMemory
from sparkfleet.lab.simulation.demand_events import DEMANDS, REQUESTS
from sparkfleet.lab.simulation.run import DEMAND_EVERY_S, simulate

OFTEN = {"hours": 1.0, "nodes": 1, "fault_every_s": 300.0, "demand_every_s": 60.0}
"""One node, which holds few of them at once, with many requests, and faults that leave time for their answers."""
SEEDS = range(10)
"""Seeds that are tried for each mistake."""


@cache
def violations_without_a_mistake(seed):
    return tuple(simulate(seed, **OFTEN).violations)


def without(rule):
    return tuple(one for one in policy.RULES if one.__name__ != rule)


@pytest.mark.parametrize(("seed", "nodes"), [(1, 1), (2, 2), (3, 3)])
def test_the_invariants_of_deployments_on_demand_hold(seed, nodes):
    report = simulate(seed, hours=1.0, nodes=nodes, demand_every_s=DEMAND_EVERY_S)
    assert report.violations == []
    assert len(report.faults.keys() & REQUESTS.keys()) > len(REQUESTS) / 2


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_they_hold_for_hundreds_of_hours(nodes):
    given = {"hours": 3.0, "nodes": nodes, "demand_every_s": DEMAND_EVERY_S}
    failed = {seed: found for seed in range(1000, 1025) if (found := simulate(seed, **given).violations)}
    assert failed == {}


def test_a_seed_with_requests_replays_exactly_and_one_without_is_as_before():
    one, two = simulate(7, hours=0.5, demand_every_s=60.0), simulate(7, hours=0.5, demand_every_s=60.0)
    assert (one.log, one.rounds, one.ends) == (two.log, two.rounds, two.ends)
    assert one.faults.keys() & DEMANDS.keys()
    assert not simulate(7, hours=0.5).faults.keys() & DEMANDS.keys()


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_policy_that_never_ends_what_is_unused_is_found(monkeypatch):
    words = "has run without a request for"
    with monkeypatch.context() as patch:
        patch.setattr(policy, "RULES", without("unload_unused"))
        seed = seed_with(words, SEEDS, **OFTEN)
    assert not [found for found in violations_without_a_mistake(seed) if words in found]


MISTAKES = {
    "what is used never ends": (
        claim_room.ClaimRoom,
        "_may_end",
        lambda room, one: room._state.demand[one.name].unused_s >= claim_room.UNUSED_S,
        "which could be started, has waited for",
    ),
    "what is used ends at once": (
        claim_room.ClaimRoom,
        "_may_end",
        lambda room, one: True,
        "is used and was ended for",
    ),
    "all end for one": (claim_room, "fewest", lambda state, lacking, holders: list(holders), "was ended for"),
    "memory that is given back does not count": (
        claim_room,
        "given_back",
        lambda *_: {},
        "which fits beside it",
    ),
    "nodes that are away or drained do not count": (on_demand, "obstacle", lambda *_: "", "away or drained"),
    "memory does not count": (FreeMemory, "holds", lambda *_, unknown=None: True, "was started without room"),
}


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_their_turns_is_found(mistake, monkeypatch):
    where, name, replacement, words = MISTAKES[mistake]
    with monkeypatch.context() as patch:
        patch.setattr(where, name, replacement)
        seed = seed_with(words, SEEDS, **OFTEN)
    assert not [found for found in violations_without_a_mistake(seed) if words in found]


def test_a_fleet_without_faults_serves_every_request():
    given = {"fault_every_s": NEVER, "drain_every_s": NEVER, "race_every_s": NEVER}
    assert simulate(1, hours=2.0, demand_every_s=60.0, **given).violations == []
