"""Groups that were given up because memory was not free: they start again once it is, a few times, beside what serves."""

from dataclasses import replace

import pytest
from policy_world import PolicyWorld, application, desired, seen

from sparkfleet.controlplane.policy.actions import GiveUp, LadderStep, RestartGroup, StartGroup
from sparkfleet.controlplane.policy.decide import decide, is_at_rest
from sparkfleet.controlplane.policy.fallback import BREAKER_FAILURES, RESTARTS, STARVED
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


class Refusals(PolicyWorld):
    """A group that comes up, dies for its memory soon, and finds that memory taken at the restart that follows."""

    def __init__(self, **fields):
        self.taken = False
        super().__init__(given_up(**fields), start=lambda group: FULL if self.taken else None)

    def dies(self):
        """It dies, is refused its memory, and has it free again."""
        (app,) = self.state.apps
        died = Diagnosis(cause=Cause.MEMORY, summary="out of memory")
        self.state = replace(self.state, apps=(application(app.group, "starting"),))
        self._report(app, GroupPhase.FAILED, diagnosis=died)
        self.taken = True
        actions = self.round()
        self.taken = False
        return [*actions, *(action for _ in range(3) for action in self.round())]


def test_one_that_is_refused_its_memory_after_each_failure_is_ended_after_the_fifth():
    """It went on so without end: its failures were forgotten when it was given up, and its refusals when it was ready."""
    world = Refusals()
    world.round()
    for _ in range(BREAKER_FAILURES - 1):
        ends = [one.standing for one in world.dies() if isinstance(one, GiveUp)]
        assert [one.refused for one in ends] == [1]
        assert world.state.apps[0].status == "running"
    (last,) = [one for one in world.dies() if isinstance(one, GiveUp)]
    assert last.reason.startswith("it came up and failed 5 times within 10 minutes")
    assert world.state.apps == ()


def test_one_that_dies_for_memory_twice_takes_a_rung_that_needs_less_once_that_may_be_used():
    """The rung below was on a drained node when it was refused its memory."""
    two = desired("a", rungs=2, nodes=(("this",), ("that",)))
    world = Refusals(desired={"a": two}, standings={}, apps=(application(GROUP, "running"),))
    world.state = replace(world.state, drained=frozenset({"that"}), available={"this": 10 * NEED})
    for _ in range(STARVED):
        world.dies()
    assert (len(world.state.standing(GROUP).starved), world.state.standing(GROUP).rung) == (STARVED, 0)


def test_one_that_is_ended_for_its_failures_is_not_started_again_although_it_was_refused_its_memory():
    """Its node was away while it failed for the fifth time and was refused; both were reported at once."""
    falls = (NOW.unix,) * BREAKER_FAILURES
    standing = Standing(rung=1, falls=falls, refused=1, restarts=RESTARTS - 1)
    state = given_up(standings={GROUP: standing}, apps=(application(GROUP, "starting"),))
    (give_up, _) = decide(state, NOW)
    assert (give_up.standing.given_up, give_up.standing.refused) == (True, 0)
    ended = after(replace(state, apps=()), [give_up], NOW)
    assert decide(ended, NOW) == []


@pytest.mark.parametrize(("refused", "is_bound"), [(1, True), (0, False)])
def test_a_start_that_takes_its_node_down_after_a_refusal_is_not_taken_to_another_node(refused, is_bound):
    """Its node was there to refuse it. One that fails right after a failure may have lost its node by that."""
    elsewhere = desired("a", rungs=2, nodes=(("that",), ("this",)))
    state = FleetState(
        desired={"a": elsewhere},
        apps=(application(GROUP, "starting"),),
        standings={GROUP: Standing(falls=(NOW.unix - 60.0,), refused=refused, tries=1)},
        starts={GROUP: {"that": "first"}},
        nodes=seen(9_990.0, this="first", that="second"),
    )
    (counted,) = [one for one in decide(state, NOW) if hasattr(one, "standing")]
    assert (counted.standing.given_up, bool(counted.standing.bound)) == (is_bound, is_bound)
    assert counted.standing.rung == (0 if is_bound else 1)


def test_ready_it_may_be_refused_and_fail_as_often_again():
    state = given_up(standings={GROUP: Standing(rung=1, refused=2, restarts=2)})
    ready = GroupReport(deployment="a", generation=1, phase=GroupPhase.READY, node="this", since=0.0, rung=1)
    (kept,) = [one for one in on_report(state, ready, NOW) if hasattr(one, "standing")]
    assert kept.standing == Standing(rung=1)
