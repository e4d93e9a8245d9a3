"""Each rule of the policy: without it the simulation finds a violation, and with it the same seed has none."""

from dataclasses import dataclass, field

import pytest
from simulation_seeds import NEVER, seed_with

from sparkfleet.controlplane import observed_fleet
from sparkfleet.controlplane.policy import decide as policy
from sparkfleet.controlplane.policy import fallback
from sparkfleet.lab.simulation import faults, gateway_exchange
from sparkfleet.lab.simulation.run import simulate


@dataclass(frozen=True)
class RuleCase:
    """A run in which a rule matters."""

    words: str
    """The violation without it."""
    faults: tuple[str, ...]
    """The only kinds of faults, so that few seeds have to be tried."""
    seed: int
    """One that finds it, tried first."""
    races: tuple[str, ...] = ()
    """The only kinds of races."""
    given: dict[str, float] = field(default_factory=dict)
    """Arguments of the run that differ from `GIVEN`."""
    full: bool = True
    """True if it takes seconds."""


GIVEN = {
    "hours": 1.0,
    "nodes": 2,
    "fault_every_s": 60.0,
    "drain_every_s": NEVER,
    "race_every_s": NEVER,
}
RACED = {"race_every_s": 300.0}
FAILS = ("rung does not start", "engine died", "applied")
NO_REASON = "does not start, and no reason is recorded"
NOT_BROUGHT_BACK = "served last, has its memory free, and does not start"

CASES = {
    "forget_ended": RuleCase("the store still knows", ("applied", "edited", "removed"), 0),
    "count_lost_starts": RuleCase(
        "took a node down 4 times", ("rung takes its node down", "applied", "edited"), 1
    ),
    "end_unloaded_starts": RuleCase(
        "the store has a start of",
        ("node rebooted", "controller killed in a round"),
        2,
        given={"fault_every_s": 300.0, "demand_every_s": 200.0},
    ),
    "end_barred": RuleCase(
        "waits for a drained node, and the store has its start",
        ("node rebooted", "applied"),
        3,
        given={"drain_every_s": 600.0},
    ),
    "load_requested": RuleCase(
        "which could be started, has waited for",
        ("applied",),
        0,
        given={"hours": 0.5, "nodes": 1, "fault_every_s": 1200.0, "demand_every_s": 300.0},
    ),
    "retire_unwanted": RuleCase("runs without a deployment", ("applied", "removed"), 0, full=False),
    "wait_for_memory": RuleCase(
        NO_REASON, ("node reports nothing", "node off for long", "applied", "edited"), 4
    ),
    "retire_replaced": RuleCase("runs without a deployment", ("applied", "edited"), 1),
    "make_room": RuleCase(NO_REASON, ("applied", "edited"), 0),
    "keep_groups_up": RuleCase("is wanted and does not serve", ("rung does not start", "applied"), 2),
    "end_older": RuleCase(NOT_BROUGHT_BACK, FAILS, 1),
    "leave_gone_nodes": RuleCase("waits for ['spark", ("node off for long", "applied"), 0),
    "start_missing": RuleCase(NO_REASON, ("applied",), 0, full=False),
    "retry_refused": RuleCase(
        "is given up, and the memory it needs is free", ("memory taken", "engine died", "applied"), 0
    ),
    "bring_back": RuleCase(NOT_BROUGHT_BACK, FAILS, 2),
    "stop_what_is_given_up": RuleCase(
        "is given up and its application goes on", ("rung takes its node down", "engine died", "applied"), 10
    ),
    "answer_failure": RuleCase("is wanted and does not serve", ("rung does not start", "applied"), 2),
    "answer_restarts": RuleCase("did not start 15 times", FAILS, 14),
    "break_circle": RuleCase(
        "died 9 times at rung",
        ("applied", "edited"),
        3,
        races=("rung dies again and again",),
        given={**RACED, "hours": 0.5},
    ),
    "take_less_memory": RuleCase(
        "at which its memory ran out 3 times",
        ("applied",),
        1,
        races=("rung dies again and again",),
        given=RACED,
    ),
}
"""By the name of the rule: of the policy, or of `fallback` for one group."""

OTHERS = {"follow_rungs", "unload_unused"}
"""Rules with a test of their own: a call of Serve has to fail at one moment (`test_simulation`), and requests have to end
while others go on (`test_demand`)."""


def test_each_rule_of_the_policy_has_a_case():
    rules = [rule.__name__ for rule in (*policy.RULES, *fallback.GROUP_RULES)]
    assert sorted(rules) == sorted(CASES.keys() | OTHERS)


@pytest.fixture
def only(monkeypatch):
    """Leaves only these kinds of faults and races, and lets all answers be short."""

    def leave(kinds, races=()):
        monkeypatch.setattr(faults, "FAULTS", {kind: faults.FAULTS[kind] for kind in kinds})
        monkeypatch.setattr(faults, "RACES", {race: faults.RACES[race] for race in races})
        monkeypatch.setattr(gateway_exchange, "LONG_ANSWERS", 0.0)

    return leave


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "rule", [pytest.param(name, marks=[pytest.mark.full] * one.full) for name, one in CASES.items()]
)
def test_a_policy_without_one_of_its_rules_is_found(rule, only, monkeypatch):
    """Without this nobody would know that the invariants can fail, or that the rule is needed."""
    case = CASES[rule]
    only(case.faults, case.races)
    given = {**GIVEN, **case.given}
    with monkeypatch.context() as patch:
        for module, rules in ((policy, "RULES"), (fallback, "GROUP_RULES")):
            rest = tuple(one for one in getattr(module, rules) if one.__name__ != rule)
            patch.setattr(module, rules, rest)
        seed = seed_with(case.words, (case.seed, *range(60)), **given)
    assert simulate(seed, **given).violations == []


def test_a_start_without_the_boot_of_a_node_that_reports_it_is_found(only, monkeypatch):
    only(("node reports nothing", "applied"))
    with monkeypatch.context() as patch:
        patch.setattr(observed_fleet, "learnt_boots", lambda starts, nodes: {})
        seed = seed_with("starts without the boot of", range(60), **GIVEN)
    assert simulate(seed, **GIVEN).violations == []
