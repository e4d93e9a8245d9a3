"""Deployments on demand in the simulation: their invariants hold, and a policy without one of its rules is found."""

from functools import cache

import pytest
from simulation_seeds import NEVER, seed_with

from sparkfleet.controlplane.policy import decide as policy
from sparkfleet.controlplane.policy import memory_admission, start_choice
from sparkfleet.controlplane.policy.demand import claim_room, on_demand
from sparkfleet.controlplane.policy.memory_admission import FreeMemory
from sparkfleet.group.report import GroupPhase
from sparkfleet.lab.simulation import demand_events, faults, gateway_exchange, run, users
from sparkfleet.lab.simulation.demand_events import DEMANDS, REQUESTS
from sparkfleet.lab.simulation.run import DEMAND_EVERY_S, simulate

OFTEN = {"hours": 1.0, "nodes": 1, "fault_every_s": 300.0, "demand_every_s": 60.0}
"""One node, which holds few of them at once, with many requests, and faults that leave time for their answers."""
RESTARTS = {"hours": 1.0, "nodes": 2, "fault_every_s": 300.0, "demand_every_s": 200.0, "drain_every_s": NEVER}
"""Two nodes, so that one of them restarts while the other one's boot is the same, and time without requests after that."""
RESTART_FAULTS = ("node rebooted", "controller killed in a round")
SEEDS = range(10)
"""Seeds that are tried for each mistake."""


@cache
def violations_without_a_mistake(seed):
    return tuple(simulate(seed, **OFTEN).violations)


@cache
def held(seed, nodes):
    """A run of which the invariants are checked, and which a replay is compared with."""
    return simulate(seed, hours=1.0, nodes=nodes, demand_every_s=DEMAND_EVERY_S)


def without(rule):
    return tuple(one for one in policy.RULES if one.__name__ != rule)


@pytest.mark.parametrize(("seed", "nodes"), [(1, 1), (2, 2), (3, 3)])
def test_the_invariants_of_deployments_on_demand_hold(seed, nodes):
    report = held(seed, nodes)
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
    one, two = held(2, 2), simulate(2, hours=1.0, nodes=2, demand_every_s=DEMAND_EVERY_S)
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


@pytest.fixture
def restarts(monkeypatch):
    """Options of a run in which nodes and controllers restart, and nothing else fails."""
    monkeypatch.setattr(faults, "FAULTS", {kind: faults.FAULTS[kind] for kind in RESTART_FAULTS})
    monkeypatch.setattr(gateway_exchange, "LONG_ANSWERS", 0.0)
    return {**RESTARTS, "race_every_s": NEVER}


@pytest.mark.full
def test_a_policy_that_counts_memory_as_held_that_a_restarted_node_has_lost_is_found(restarts, monkeypatch):
    def reported_ready(state, app, will_take=memory_admission._will_take):
        report = state.report(app.group)
        return will_take(state, app) and not (report is not None and report.phase is GroupPhase.READY)

    with monkeypatch.context() as patch:
        patch.setattr(memory_admission, "_will_take", reported_ready)
        seed = seed_with("was started without room", range(20), **restarts)
    assert simulate(seed, **restarts).violations == []


@pytest.fixture
def drains(monkeypatch):
    """Options of a run in which nodes of loaded deployments are drained that nobody moves, and nothing else happens. Two
    nodes: the last one is not drained."""
    kind = "node of one on demand is drained"
    monkeypatch.setattr(demand_events, "DEMANDS", {**REQUESTS, kind: DEMANDS[kind]})
    monkeypatch.setattr(users, "MOVES", 0.0)
    never = dict.fromkeys(("fault_every_s", "drain_every_s", "race_every_s"), NEVER)
    return {"hours": 1.0, "nodes": 2, "demand_every_s": 60.0, **never}


@pytest.mark.full
def test_a_policy_that_ends_one_for_another_whose_node_is_drained_is_found(drains, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(on_demand, "obstacle", lambda *_: "")
        seed = seed_with("away or drained", SEEDS, **drains)
    assert simulate(seed, **drains).violations == []


@pytest.mark.full
def test_a_policy_that_forgets_the_generation_that_served_before_a_broken_edit_is_found(monkeypatch):
    kind = "one on demand gets an edit that does not start"
    monkeypatch.setattr(demand_events, "DEMANDS", {**REQUESTS, kind: DEMANDS[kind]})
    never = dict.fromkeys(("fault_every_s", "drain_every_s", "race_every_s"), NEVER)
    given = {"hours": 1.0, "nodes": 1, "demand_every_s": 60.0, **never}
    with monkeypatch.context() as patch:
        patch.setattr(start_choice, "_generations", lambda state, desired: [desired])
        seed = seed_with("have been refused for", (1, 2), **given)
    assert simulate(seed, **given).violations == []


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
    "all end for one": (
        claim_room,
        "fewest",
        lambda lacking, holders: [one for one, _ in holders],
        "was ended for",
    ),
    "memory that is given back does not count": (
        claim_room,
        "given_back",
        lambda *_: {},
        "which fits beside it",
    ),
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


@pytest.mark.parametrize(
    ("hours", "demand_every_s"), [(0.5, 150.0), pytest.param(2.0, 60.0, marks=pytest.mark.full)]
)
def test_a_fleet_without_faults_serves_every_request(hours, demand_every_s):
    given = {"fault_every_s": NEVER, "drain_every_s": NEVER, "race_every_s": NEVER}
    assert simulate(1, hours=hours, demand_every_s=demand_every_s, **given).violations == []


@pytest.mark.full
def test_a_fleet_that_never_rests_is_found(monkeypatch):
    monkeypatch.setattr(run, "is_at_rest", lambda state: False)
    never = dict.fromkeys(("fault_every_s", "drain_every_s", "race_every_s"), NEVER)
    (found,) = simulate(1, hours=0.1, nodes=1, demand_every_s=300.0, **never).violations
    assert "the fleet does not rest" in found
