"""Properties of the policy in every state, and its results round by round."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from control_values import plan
from controller_world import report
from hypothesis import given
from hypothesis import strategies as st
from policy_world import NODES, PolicyWorld, application, desired, observed, seen

from sparkfleet.controlplane import policy
from sparkfleet.controlplane.policy.actions import (
    EndGroup,
    GiveUp,
    MoveGroup,
    NextRung,
    RestartGroup,
    RetireGroup,
    StartGroup,
    TryAgain,
    WaitForNodes,
)
from sparkfleet.controlplane.policy.decide import decide, is_at_rest
from sparkfleet.controlplane.policy.fallback import ANSWER_S, BREAKER_FAILURES, RESTARTS
from sparkfleet.controlplane.policy.phase_change import on_report
from sparkfleet.controlplane.policy.rollout import forget_ended
from sparkfleet.controlplane.policy.state import GONE_S, FleetState, Now, Pending
from sparkfleet.controlplane.policy.state_after import after
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.group.group_name import short_name
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.planner.types.plan import GroupShape

NOW = Now.at(10_000.0)
TINY = ("tiny", 1, 0)
VALUES = tuple(
    f"sparkfleet.controlplane.{name}" for name in ("policy", "state.demand", "state.desired", "state.status")
)


def test_the_policy_reaches_no_clock_no_disk_and_no_log():
    """Also not by a module that does: what it imports of the house are values."""
    files = list(Path(policy.__file__).parent.glob("*.py"))
    assert len(files) > 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                first = name.partition(".")[0]
                allowed = {"__future__", "collections", "dataclasses", "functools", "typing", "sparkfleet"}
                assert first in allowed, f"{file.name} imports {name}"
                if name.startswith("sparkfleet.controlplane."):
                    assert name.startswith(VALUES), f"{file.name} imports {name}"


# --- any state

causes = st.one_of(st.none(), st.sampled_from(list(Cause)))
names = st.sampled_from(("a", "b"))
keys = st.tuples(names, st.integers(1, 3), st.integers(0, 1))
boots = st.sampled_from(("", "first", "second"))
ladders = st.sampled_from(
    ((("this",),), (("that",),), (("this", "that"), ("this",)), (("that",), ("this",), ("that",)))
)
moments = st.lists(st.floats(0, 10_000), max_size=6).map(tuple)


def on_that():
    """A candidate on node `that`."""
    return plan().groups[0].choice.candidate.model_copy(update={"shape": GroupShape(nodes=("that",))})


@st.composite
def reports(draw):
    name, generation, replica = draw(keys)
    cause = draw(causes)
    return GroupReport(
        deployment=name,
        generation=generation,
        replica=replica,
        phase=draw(st.sampled_from(list(GroupPhase))),
        node="this",
        since=0.0,
        rung=draw(st.integers(0, 2)),
        diagnosis=Diagnosis(cause=cause, summary="so it was") if cause else None,
        was_starting=draw(st.booleans()),
    )


@st.composite
def standings(draw):
    rung = draw(st.integers(0, 2))
    return Standing(
        rung=rung,
        tries=draw(st.integers(0, 2)),
        given_up=draw(st.booleans()),
        restarts=draw(st.integers(0, RESTARTS + 1)),
        falls=draw(moments),
        starved=draw(moments),
        passed=("why",) * rung,
    )


@st.composite
def states(draw):
    wanted = [desired(name, draw(st.integers(1, 3)), 2, 3, draw(ladders)) for name in draw(st.sets(names))]
    statuses = st.sampled_from(("starting", "running", "failed", "retiring"))
    apps = draw(st.dictionaries(keys, statuses, max_size=6))
    told = draw(st.lists(reports(), max_size=5, unique_by=lambda one: one.group))
    away = draw(st.sampled_from((None, "", "first", "second")))
    looked_at = draw(st.sampled_from((0.0, 9_900.0, 10_000.0)))
    return FleetState(
        desired={one.name: one for one in wanted},
        apps=tuple(application(group, status) for group, status in apps.items()),
        reports=tuple(told),
        fresh=frozenset(one.name for one in told),
        standings=draw(st.dictionaries(keys, standings(), max_size=6)),
        starts=draw(st.dictionaries(keys, st.dictionaries(st.sampled_from(NODES), boots, min_size=1))),
        older=dict.fromkeys(draw(st.sets(keys, max_size=2)), on_that()),
        nodes=seen(looked_at, this=draw(boots), that=away),
        available=draw(st.dictionaries(st.sampled_from(NODES), st.integers(0, 3))),
        pending=Pending(
            counted=draw(st.frozensets(keys, max_size=2)),
            failed_at=draw(st.dictionaries(keys, st.floats(0, 10_000), max_size=2)),
            answered={application(group, "failed").name: 0.0 for group in draw(st.sets(keys, max_size=2))},
        ),
        drained=frozenset(draw(st.sets(st.sampled_from(NODES)))),
        paused=draw(st.booleans()),
    )


@given(states())
def test_no_wanted_group_is_ended_unless_it_is_given_up_and_every_action_has_a_reason(state):
    actions = decide(state, NOW)
    kept = after(state, actions, NOW)
    for action in actions:
        assert action.reason
        if isinstance(action, EndGroup):
            assert kept.standing(action.group).given_up
        if isinstance(action, RetireGroup):
            if state.desired_of(action.group) is not None:
                # A start that was given up and serves all the same.
                assert kept.standing(action.group).given_up
                assert "given up" in action.reason
                continue
            wanted = state.to_run.get(action.group[0])
            named = (
                [f"generation {wanted.generation}", *map(short_name, wanted.groups)] if wanted else ["wanted"]
            )
            assert any(words in action.reason for words in named)


@given(states(), st.floats(10_000, 1e7))
def test_a_state_at_rest_without_an_action_never_gets_one_by_time(state, later):
    pending = replace(state.pending, answered={}, failed_at={})
    resting = replace(state, starts={}, pending=pending, nodes=seen(9_900.0, this="first", that="first"))
    if is_at_rest(resting) and not decide(resting, Now.at(10_000.0)):
        assert decide(resting, Now.at(later)) == []


@given(states())
def test_the_same_actions_done_twice_change_nothing_more(state):
    actions = decide(state, NOW)
    once = after(state, actions, NOW)
    assert after(once, actions, NOW) == once
    apps = observed(state.apps, actions)
    assert observed(apps, actions) == apps


@given(states())
def test_what_is_given_up_is_neither_started_nor_taken_further(state):
    given_up = {group for group, standing in state.standings.items() if standing.given_up}
    for action in decide(state, NOW):
        if isinstance(action, StartGroup | RestartGroup | GiveUp):
            assert action.group not in given_up


@given(states(), causes)
def test_it_comes_to_rest_nothing_unwanted_stays_and_attempts_are_bounded(state, cause):
    """Every start ends in the same way; nodes are there."""
    diagnosis = Diagnosis(cause=cause, summary="so it is") if cause else None
    world = PolicyWorld(
        replace(state, available=dict.fromkeys(NODES, 1 << 40)), start=lambda group: diagnosis
    )
    for waits_s in (0.0, ANSWER_S):
        world.seconds += waits_s
        for _ in range(40):
            last = world.round()
    assert last == []
    wanted = {group for one in state.to_run.values() for group in one.groups}
    there = {app.group: app for app in world.state.apps}
    assert all(name in state.to_run for name, *_ in there)
    for group in wanted:
        standing = world.state.standing(group)
        ended = standing.given_up or (group in there and there[group].status == "running")
        held = world.state.has_given_up(world.state.to_run[group[0]])
        assert ended or held, (group, standing, there.get(group))
        # Two tries of each of three rungs, and one more for what had begun before.
        assert world.began.count(group) <= 2 * 3 + 2


# --- one rule at a time


@pytest.mark.parametrize(("status", "moves"), [("starting", True), ("running", False)])
def test_a_group_that_runs_again_after_its_failed_starts_keeps_its_rung(status, moves):
    state = FleetState(
        desired={"tiny": desired("tiny", rungs=2)},
        apps=(application(TINY, status),),
        standings={TINY: Standing(restarts=RESTARTS)},
        nodes=seen(NOW.steady, this="first"),
    )
    assert any(isinstance(action, NextRung) for action in decide(state, NOW)) is moves


def test_the_cause_of_a_failure_while_it_served_is_not_that_of_a_failed_start():
    diagnosis = Diagnosis(cause=Cause.KNOWN, summary="so it was")
    told = report(phase=GroupPhase.FAILED, diagnosis=diagnosis, was_starting=False)
    state = FleetState(
        desired={"tiny": desired("tiny", rungs=2)},
        apps=(application(TINY, "failed"),),
        reports=(told,),
        nodes=seen(NOW.steady, this="first"),
    )
    taken = decide(state, NOW)[0]
    assert isinstance(taken, NextRung)
    assert "(it did not start)" in taken.reason


def test_failures_of_a_group_count_on_at_the_rung_that_it_moves_to():
    """Without them it would come up and fail as often at each rung."""
    falls = (NOW.unix - 1.0,)
    nodes = replace(seen(NOW.steady, this="first", that=None), away_since={"that": NOW.steady - GONE_S})
    state = FleetState(
        desired={"tiny": desired("tiny", rungs=2, nodes=(("that",), ("this",)))},
        apps=(application(TINY, "starting"),),
        standings={TINY: Standing(falls=falls)},
        nodes=nodes,
    )
    move = decide(state, NOW)[0]
    assert isinstance(move, MoveGroup)
    assert (move.standing.rung, move.standing.falls) == (1, falls)


def test_an_answer_without_effect_is_given_again():
    """The start that answered a failure failed between two readings, and its reports were lost."""
    app = application(TINY, "failed")
    state = FleetState(
        desired={"tiny": desired("tiny", rungs=2)},
        apps=(app,),
        nodes=seen(this="first"),
        pending=Pending(answered={app.name: NOW.steady}),
    )
    assert decide(state, NOW) == []
    assert decide(state, Now.at(NOW.steady + ANSWER_S - 1)) == []
    actions = decide(state, Now.at(NOW.steady + ANSWER_S))
    assert [a.group for a in actions if isinstance(a, RestartGroup)] == [TINY]


@pytest.mark.parametrize(("cause", "starts"), [(Cause.MEMORY, 3), (Cause.TRANSIENT, 6)])
def test_a_group_that_never_starts_has_each_rung_tried_as_often_as_its_cause_allows(cause, starts):
    state = FleetState(desired={"tiny": desired("tiny", rungs=3)}, nodes=seen(this="first"))
    world = PolicyWorld(state, start=lambda group: Diagnosis(cause=cause, summary="so it is"))
    done = [action for _ in range(20) for action in world.round()]
    assert world.began == [TINY] * starts
    (end,) = (action for action in done if isinstance(action, GiveUp))
    assert "none of 3 rungs started" in end.reason


def test_five_falls_within_ten_minutes_end_a_group_and_four_do_not():
    falls = tuple(NOW.unix - 100 * at for at in range(BREAKER_FAILURES))
    base = FleetState(desired={"tiny": desired("tiny")}, apps=(application(TINY, "starting"),))
    tripped = replace(base, standings={TINY: Standing(falls=falls)})
    serves_again = replace(tripped, apps=(application(TINY, "running"),))
    assert decide(serves_again, NOW) == [], "its requests were cut, and nothing served"
    give_up, end = decide(tripped, NOW)
    assert give_up.standing.given_up
    assert "5 times within 10 minutes" in give_up.reason
    assert end == EndGroup(group=TINY, reason=give_up.reason)
    old = (*falls[1:], NOW.unix - 601)
    assert decide(replace(base, standings={TINY: Standing(falls=old)}), NOW) == []


OLDER, NEWER = ("tiny", 1, 0), ("tiny", 2, 0)


def replacing(**fields):
    """Generation 2 starts while generation 1 is constructed again by Serve, on a node that was restarted meanwhile."""
    return FleetState(
        desired={"tiny": desired("tiny", 2)},
        apps=(application(OLDER, "starting"), application(NEWER, "starting")),
        older={OLDER: on_that()},
        starts={OLDER: {"that": "first"}},
        nodes=seen(this="first", that="second"),
        **fields,
    )


def test_an_older_group_whose_start_takes_its_node_down_twice_is_given_up():
    once = decide(replacing(), NOW)
    (again,) = (action for action in once if action.group == OLDER)
    assert (type(again), again.standing.tries) == (TryAgain, 1)
    kept = after(replacing(), once, NOW)
    assert kept.starts[OLDER] == {"that": "second"}, "its next start is counted from here"
    assert decide(kept, NOW) == []
    twice = decide(replacing(standings={OLDER: again.standing}), NOW)
    assert [(type(action), action.group) for action in twice] == [
        (GiveUp, OLDER),
        (EndGroup, OLDER),
        (EndGroup, OLDER),
    ]
    assert "that went away while it was starting" in twice[0].reason
    assert "generation 2 replaces it" in twice[0].reason


def test_a_lost_start_of_an_older_group_counts_before_it_has_reported_to_a_new_controller():
    state = replace(replacing(), older={})
    (again,) = (action for action in decide(state, NOW) if action.group == OLDER)
    assert (type(again), again.nodes, again.standing.tries) == (TryAgain, ("that",), 1)


def test_the_starts_of_an_older_group_are_kept_with_their_nodes_and_end_when_it_is_ready():
    state = replace(replacing(standings={OLDER: Standing(tries=1)}), starts={})
    report = GroupReport(
        deployment="tiny", generation=1, replica=0, phase=GroupPhase.STARTING, node="that", since=0.0
    )
    (begin,) = on_report(state, report, NOW)
    assert (begin.group, begin.nodes) == (OLDER, ("that",))
    assert on_report(replace(state, paused=True), report, NOW) == [], "it reports for a moment while it stops"
    ready = report.model_copy(update={"phase": GroupPhase.READY})
    served = after(state, [begin, *on_report(state, ready, NOW)], NOW)
    assert served.starts == {}
    assert served.standing(OLDER).tries == 0


def test_only_what_is_no_longer_desired_and_has_ended_is_forgotten():
    state = replacing(
        standings={OLDER: Standing(), NEWER: Standing(), ("gone", 1, 0): Standing(given_up=True)}
    )
    assert [a.group for a in forget_ended(state, NOW)] == [("gone", 1, 0)]
    serves = report(2, phase=GroupPhase.READY, since=0.0)
    ended = replace(state, apps=(application(NEWER, "running"),), reports=(serves,))
    kept = after(ended, forget_ended(ended, NOW), NOW)
    assert (list(kept.standings), kept.starts) == ([NEWER], {})
    down = replace(ended, paused=True, apps=())
    assert NEWER in after(down, forget_ended(down, NOW), NOW).standings


@pytest.mark.parametrize("serves", [True, False])
def test_the_failed_start_of_a_group_that_has_ended_does_not_keep_the_fleet_from_its_rest(serves):
    """Its failure was reported when its generation had been replaced."""
    failed = {("tiny", 0, 0): NOW.steady, NEWER: NOW.steady}
    apps = (application(NEWER, "running" if serves else "starting"),)
    state = replace(replacing(), apps=apps, starts={}, pending=Pending(failed_at=failed))
    assert after(state, forget_ended(state, NOW), NOW).pending.failed_at == {NEWER: NOW.steady}


@pytest.mark.parametrize(("older", "verdict"), [(GroupPhase.FAILED, [OLDER]), (GroupPhase.READY, [])])
def test_a_generation_waits_for_a_gone_node_only_while_what_it_replaces_serves(older, verdict):
    """A group that it carried over served, and it waited for as long as the node was away."""
    carried = ("tiny", 1, 1)
    newest = desired("tiny", 2, 2, 2, (("that",), ("this",))).model_copy(update={"members": ((2, 0), (1, 1))})
    phases = {OLDER: older, carried: GroupPhase.READY}
    reports = tuple(
        GroupReport(deployment=name, generation=at, replica=index, phase=phase, node="this", since=0.0)
        for (name, at, index), phase in phases.items()
    )
    state = FleetState(
        desired={"tiny": newest},
        apps=(application(OLDER, "starting"), application(carried, "running")),
        reports=reports,
        fresh=frozenset(one.name for one in reports),
        nodes=replace(seen(NOW.steady, this="first", that=None), away_since={"that": NOW.steady - GONE_S}),
        available={"this": 100},
    )
    assert [a.group for a in decide(state, NOW) if isinstance(a, RetireGroup)] == verdict


def test_only_the_first_rule_that_applies_to_a_group_decides():
    """It was given up in the round before: its falls and its failed starts are no longer looked at."""
    standing = Standing(given_up=True, restarts=RESTARTS, falls=(NOW.unix,) * BREAKER_FAILURES)
    state = FleetState(
        desired={"tiny": desired("tiny")},
        apps=(application(TINY, "starting"),),
        standings={TINY: standing},
    )
    assert decide(state, NOW) == [EndGroup(group=TINY, reason="it is given up")]


def test_a_failed_start_is_followed_by_the_first_rung_whose_nodes_are_there():
    """It failed at the first rung, and the second one needs a node that is gone: it is restarted once."""
    nodes = seen(NOW.steady, this="first", that=None)
    state = FleetState(
        desired={"tiny": desired("tiny", rungs=3, nodes=(("this",), ("that",), ("this",)))},
        apps=(application(TINY, "failed"),),
        reports=(phase_report(GroupPhase.FAILED),),
        nodes=replace(nodes, away_since={"that": 0.0}),
    )
    taken, restart = decide(state, NOW)
    assert (taken.standing.rung, taken.standing.passed[1]) == (2, "that is gone")
    assert (type(restart), restart.nodes, restart.answers) == (RestartGroup, ("this",), True)
    assert after(state, [taken, restart], NOW).starts == {TINY: {"this": "first"}}


def test_a_group_that_has_moved_goes_back_when_its_new_node_is_lost_in_turn():
    """A rung that was left for a lost node has not failed, and a stored plan has no other below."""
    state = FleetState(
        desired={"tiny": desired("tiny", rungs=2, nodes=(("that",), ("other",)))},
        apps=(application(TINY, "starting"),),
        standings={TINY: Standing(rung=1, passed=("that is gone",), vacated=(0,))},
        nodes=replace(seen(NOW.steady, this="first", that="second", other=None), away_since={"other": 0.0}),
    )
    moved, restart = decide(state, NOW)
    assert moved.standing == Standing(rung=0)
    assert moved.reason.startswith("other is gone; next: that · ")
    assert restart.nodes == ("that",)
    away = {"other": 0.0, "that": NOW.steady}
    waits = decide(replace(state, nodes=replace(state.nodes, away_since=away)), NOW)
    assert [type(one) for one in waits] == [WaitForNodes], "that has just gone, too"


def phase_report(phase):
    return GroupReport(
        deployment=TINY[0], generation=TINY[1], replica=TINY[2], phase=phase, node="this", since=0.0
    )


@pytest.mark.parametrize("reports", [(), (phase_report(GroupPhase.READY),)])
def test_a_group_whose_actor_ended_before_it_reported_keeps_its_rung_once(reports):
    """An engine of that rung may serve, left by Ray's last head: the next rung would end it."""
    state = FleetState(
        desired={"tiny": desired("tiny", rungs=2)},
        apps=(application(TINY, "failed"),),
        reports=reports,
        nodes=seen(this="first"),
    )
    again, restart = decide(state, NOW)
    assert (type(again), again.standing.rung, again.standing.tries) == (TryAgain, 0, 1)
    assert "before it had reported anything" in again.reason
    assert (type(restart), restart.answers) == (RestartGroup, True)
    lower, _ = decide(replace(state, standings={TINY: again.standing}), NOW)
    assert (type(lower), lower.standing.rung) == (NextRung, 1), (
        "what ends its actor each time is not waited for"
    )


@pytest.mark.parametrize("phase", [GroupPhase.STARTING, GroupPhase.PROBING, GroupPhase.FAILED])
def test_a_start_that_was_reported_and_failed_without_a_cause_takes_the_next_rung(phase):
    state = FleetState(
        desired={"tiny": desired("tiny", rungs=2)},
        apps=(application(TINY, "failed"),),
        reports=(phase_report(phase),),
        nodes=seen(this="first"),
    )
    lower, _ = decide(state, NOW)
    assert (type(lower), lower.standing.rung) == (NextRung, 1)
