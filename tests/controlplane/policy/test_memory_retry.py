"""Groups that were given up because memory was not free: they start again once it is, a few times, beside what serves."""

from dataclasses import replace

import pytest
from policy_world import application, desired, seen

from sparkfleet.controlplane.policy.actions import LadderStep, RestartGroup, StartGroup
from sparkfleet.controlplane.policy.decide import decide, is_at_rest
from sparkfleet.controlplane.policy.ladder import RETRIES, step
from sparkfleet.controlplane.policy.memory_retry import refused
from sparkfleet.controlplane.policy.phase_change import on_report
from sparkfleet.controlplane.policy.state import FleetState, Now
from sparkfleet.controlplane.policy.state_after import after
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.group.report import GroupPhase, GroupReport

NOW = Now.at(10_000.0)
GROUP = ("a", 1, 0)
ONE = desired("a", rungs=2)
NEED = int(ONE.plan.groups[0].ladder[1].prediction.memory_bytes_per_rank.high)
FULL = Diagnosis(cause=Cause.MEMORY, summary="not enough memory is free", began=False)
GIVEN_UP = Standing(rung=1, tries=1, given_up=True, refused=1, passed=("one", "two"))


def given_up(**fields):
    made = FleetState(
        desired={"a": ONE},
        apps=(application(GROUP, "failed"),),
        standings={GROUP: GIVEN_UP},
        nodes=seen(9_990.0, this="first"),
        available={"this": NEED},
    )
    return replace(made, **fields)


def test_the_end_of_a_ladder_by_memory_that_was_not_free_is_kept_and_counted():
    plan = ONE.plan.groups[0]
    taken = step(plan, Standing(rung=1), FULL)
    assert (taken.verb, taken.standing.refused) == ("end", 1)
    assert "it starts once more when that memory is free" in taken.words
    for other in (None, FULL.model_copy(update={"began": True}), Diagnosis(cause=Cause.FLAG, summary="no")):
        assert step(plan, Standing(rung=1, refused=2), other).standing.refused == 0
    last = step(plan, Standing(rung=1, refused=RETRIES), FULL)
    assert last.standing.refused == RETRIES + 1
    assert last.words.endswith("`sparkfleet apply` tries once more")
    assert step(plan, Standing(refused=2), FULL).standing.refused == 2, "the next rung keeps the count"


def test_one_that_left_a_lost_node_starts_there_again_if_that_is_back_first():
    moved = given_up(standings={GROUP: GIVEN_UP.model_copy(update={"vacated": (0,)})})
    need = int(ONE.plan.groups[0].ladder[0].prediction.memory_bytes_per_rank.high)
    kept, restarted = decide(replace(moved, available={"this": max(need, NEED)}), NOW)
    assert kept.standing == Standing(rung=0, refused=1)
    assert isinstance(restarted, RestartGroup)


def test_it_starts_again_at_its_rung_once_the_memory_is_free():
    kept, restarted = decide(given_up(), NOW)
    assert (type(kept), type(restarted)) == (LadderStep, RestartGroup)
    assert kept.standing == Standing(rung=1, refused=1, passed=("one",))
    assert kept.reason.endswith("is free again: it starts once more (1 of 3 times since it was ready)")
    assert decide(given_up(available={"this": NEED - 1}), NOW) == []
    assert decide(given_up(available={}), NOW) == []


def test_without_an_application_it_is_started_in_the_next_round():
    state = given_up(apps=())
    (kept,) = decide(state, NOW)
    assert isinstance(kept, LadderStep)
    (started,) = decide(after(state, [kept], NOW), NOW)
    assert isinstance(started, StartGroup)


@pytest.mark.parametrize(
    "fields",
    [
        {"standings": {GROUP: GIVEN_UP.model_copy(update={"refused": RETRIES + 1})}},
        {"standings": {GROUP: GIVEN_UP.model_copy(update={"refused": 0})}},
        {"apps": (application(GROUP, "retiring"),)},
        {"drained": frozenset({"this"})},
        {"paused": True, "apps": ()},
        {
            "desired": {"a": ONE, "b": desired("b")},
            "apps": (application(GROUP, "failed"), application(("b", 1, 0), "starting")),
            "starts": {("b", 1, 0): {"this": "first"}},
        },
        {
            "desired": {"a": ONE, "b": desired("b")},
            "apps": (application(GROUP, "failed"), application(("b", 1, 0), "starting")),
            "reports": (
                GroupReport(deployment="b", generation=1, phase=GroupPhase.STARTING, node="this", since=0.0),
            ),
        },
        {"apps": (application(GROUP, "failed"), application(("a", 0, 0), "running"))},
    ],
    ids=[
        "often",
        "other cause",
        "retiring",
        "drained",
        "paused",
        "another starts",
        "another loads",
        "an older one",
    ],
)
def test_it_is_left_alone(fields):
    state = given_up(**fields)
    assert not [one for one in decide(state, NOW) if isinstance(one, LadderStep | RestartGroup | StartGroup)]


def test_of_two_one_starts_at_a_time():
    two = desired("a", groups=2, rungs=2)
    groups = dict.fromkeys(two.groups, GIVEN_UP)
    apps = tuple(application(group, "failed") for group in two.groups)
    state = given_up(desired={"a": two}, apps=apps, standings=groups, available={"this": 10 * NEED})
    actions = decide(state, NOW)
    assert {one.group for one in actions} == {GROUP}
    assert decide(after(state, actions, NOW), NOW) == []


def test_while_it_waits_the_memory_is_looked_at_in_every_round():
    waits = given_up(available={})
    assert refused(waits) == [(ONE, GROUP)]
    assert not is_at_rest(waits)
    assert is_at_rest(given_up(standings={}))


def test_ready_it_may_be_refused_and_fail_as_often_again():
    state = given_up(standings={GROUP: Standing(rung=1, refused=2, restarts=2)})
    ready = GroupReport(deployment="a", generation=1, phase=GroupPhase.READY, node="this", since=0.0, rung=1)
    (kept,) = [one for one in on_report(state, ready, NOW) if hasattr(one, "standing")]
    assert kept.standing == Standing(rung=1)
