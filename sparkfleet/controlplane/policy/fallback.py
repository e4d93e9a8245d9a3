"""Fallback: groups that do not start, do not stay up, or are planned on nodes that are gone.

A failed start is tried again, takes the next rung of its ladder, or ends it. The rung of a group, its last word and what is
being started are in the store: a controller that comes back, or its whole node, goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkfleet.controlplane.desired import Desired, GroupKey, Standing
from sparkfleet.controlplane.policy.actions import (
    Action,
    EndAttempt,
    EndGroup,
    FailAttempt,
    GiveUp,
    LadderStep,
    MoveGroup,
    NextRung,
    RememberFailure,
    RestartGroup,
    StopWaiting,
    TryAgain,
    WaitForNodes,
)
from sparkfleet.controlplane.policy.after import after
from sparkfleet.controlplane.policy.ladder import (
    instead,
    passed_by,
    rung_with_less,
    rung_without,
    step,
    what,
)
from sparkfleet.controlplane.policy.pending_starts import away, lost, went_away
from sparkfleet.controlplane.policy.state import FleetState, Now, nodes_of
from sparkfleet.controlplane.state.status import App
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.planner.rules.failure_memory import fingerprint

BREAKER_FAILURES = 5
BREAKER_S = 600.0
"""A group that was ready and failed this often within this time is stopped for good: it would only crash again."""

STARVED = 2
STARVED_S = 3600.0
"""Memory that ran out this often within this time, while a group served, is no accident: it takes a rung that needs less.
The window is long because the load of a large model alone takes a quarter of an hour."""

RESTARTS = 3
"""Starts in a row that fail without an end: Serve gives up a group that never started, and goes on with one that has."""

GAVE_UP = "It is not started again, so that the node stays up; `sparkfleet apply` tries once more."
"""Added to the reason if a group took its node down."""


@dataclass(frozen=True)
class FallbackCase:
    """A group of a wanted generation, as the rules of fallback see it."""

    state: FleetState
    now: Now
    app: App
    desired: Desired

    @property
    def group(self) -> GroupKey:
        """Its key."""
        return self.app.group

    @property
    def standing(self) -> Standing:
        """Its place on its ladder."""
        return self.state.standing(self.group)


# --- starts that took their node down, before anything is started again


def count_lost_starts(state: FleetState, now: Now) -> list[Action]:
    """A start whose node was restarted meanwhile has failed, whether or not anybody is left to report it."""
    there = {app.group: app for app in state.apps}
    return [
        action
        for group, diagnosis in lost(state.starts, state.nodes).items()
        for action in _count_lost(state, now, group, there.get(group), diagnosis)
    ]


def _count_lost(
    state: FleetState, now: Now, group: GroupKey, app: App | None, diagnosis: Diagnosis
) -> list[Action]:
    desired = state.desired_of(group)
    if desired is None or state.standing(group).given_up:
        return [EndAttempt(group=group, reason="it is not started any more")]
    if app is not None and not _is_under_way(state, app):
        return []
    taken = _step(state, desired, group, diagnosis, GAVE_UP)
    if app is None or not any(isinstance(action, NextRung) for action in taken):
        return taken  # Serve goes on by itself at the same rung
    return [*taken, _restart(after(state, taken, now), desired, group, diagnosis.says)]


def _is_under_way(state: FleetState, app: App) -> bool:
    """True if neither Serve nor the group has reported that its start failed: that is answered by `answer_failures`."""
    return app.status not in ("failed", "retiring") and app.group not in state.pending.failed_at


# --- groups that have an application: the first rule that applies to one decides


def keep_groups_up(state: FleetState, now: Now) -> list[Action]:
    """The first rule that applies to a group of a wanted generation decides what becomes of it."""
    return [
        action
        for app in state.mine()
        for action in _first(FallbackCase(state, now, app, state.wanted[app.deployment]))
    ]


def _first(one: FallbackCase) -> list[Action]:
    found = (rule(one) for rule in GROUP_RULES)
    return next((actions for actions in found if actions is not None), [])


def stop_what_is_given_up(one: FallbackCase) -> list[Action] | None:
    """It took its node down, or the controller died before it had stopped it."""
    if not one.standing.given_up:
        return None
    if one.app.status in ("failed", "retiring"):
        return []  # what has ended keeps its last words
    return [EndGroup(group=one.group, reason="it is given up")]


def answer_failure(one: FallbackCase) -> list[Action] | None:
    """Serve has given it up: once more, the next rung, or the end of its ladder."""
    if one.app.status != "failed":
        return None
    return [] if one.app.name in one.state.pending.answered else _answer(one)


def answer_restarts(one: FallbackCase) -> list[Action] | None:
    """Serve goes on starting it, and it fails each time: it goes down its ladder as if Serve had given it up."""
    if one.standing.restarts < RESTARTS or one.app.status == "running":
        return None
    taken = _answer(one)
    ends = any(isinstance(action, GiveUp) for action in taken)
    return [*taken, EndGroup(group=one.group, reason="no rung of its ladder starts")] if ends else taken


def break_circle(one: FallbackCase) -> list[Action] | None:
    """It comes up and fails again and again."""
    if sum(at > one.now.unix - BREAKER_S for at in one.standing.falls) < BREAKER_FAILURES:
        return None
    words = (
        f"it came up and failed {BREAKER_FAILURES} times within {BREAKER_S / 60:.0f} minutes, so it is not started"
        " again; `sparkfleet apply` tries once more"
    )
    standing = one.standing.model_copy(update={"given_up": True})
    return [
        GiveUp(group=one.group, standing=standing, reason=words),
        EndGroup(group=one.group, reason=words),
    ]


def take_less_memory(one: FallbackCase) -> list[Action] | None:
    """Its memory ran out again and again while it served, and a rung needs less."""
    if sum(at > one.now.unix - STARVED_S for at in one.standing.starved) < STARVED:
        return None
    plan = one.desired.plan.groups[one.app.replica]
    rung = rung_with_less(plan, one.standing.rung, one.state.nodes.away_since)
    why = f"memory ran out {STARVED} times within {STARVED_S / 60:.0f} minutes while it served"
    return None if rung is None else _move(one, rung, why)


GROUP_RULES: tuple[Callable[[FallbackCase], list[Action] | None], ...] = (
    stop_what_is_given_up,
    answer_failure,
    answer_restarts,
    break_circle,
    take_less_memory,
)
"""None: the rule does not apply."""


def _answer(one: FallbackCase) -> list[Action]:
    """Restart it, once a failure that is not counted yet is counted; only keep the failure as long as nodes are asked."""
    if one.app.status == "failed" and one.group in one.state.pending.counted:
        return [_restart(one.state, one.desired, one.group, "its failure is counted", answers=True)]
    report = one.state.report(one.group)
    diagnosis, said = (report.diagnosis, report.detail) if report else (None, "")
    if report and not report.was_starting:
        diagnosis = None  # of how it fell while it served, not of why it does not start
    if diagnosis is None or diagnosis.cause in (Cause.TRANSIENT, Cause.UNKNOWN):
        missing = away(one.state, one.group, nodes_of(one.desired, one.app.replica, one.standing), one.now)
        if missing is None:
            return _ask_nodes(one)
        diagnosis, said = (went_away(missing), GAVE_UP) if missing else (diagnosis, said)
    taken = _step(one.state, one.desired, one.group, diagnosis, said or one.app.message)
    if any(isinstance(action, GiveUp) for action in taken):
        return taken
    why = str(diagnosis) if diagnosis else "it did not start"
    answers = one.app.status == "failed"
    return [*taken, _restart(after(one.state, taken, one.now), one.desired, one.group, why, answers=answers)]


def _ask_nodes(one: FallbackCase) -> list[Action]:
    if one.group in one.state.pending.failed_at:
        return []
    return [FailAttempt(group=one.group, reason="its nodes are looked at before its failure is answered")]


def _restart(
    state: FleetState, desired: Desired, group: GroupKey, why: str, *, answers: bool = False
) -> RestartGroup:
    """Start a group again, at the rung where it is in `state`."""
    nodes = nodes_of(desired, group[2], state.standing(group))
    return RestartGroup(group=group, nodes=nodes, reason=why, answers=answers)


def _step(
    state: FleetState, desired: Desired, group: GroupKey, diagnosis: Diagnosis | None, said: str
) -> list[Action]:
    """Count a start that failed.

    Args:
        state: before it is counted.
        desired: the group's deployment.
        group: which.
        diagnosis: why it failed, if that is known.
        said: added to the reason if there is no rung left.
    """
    plan, before = desired.plan.groups[group[2]], state.standing(group)
    taken = step(plan, before, diagnosis)
    if taken.verb == "end":
        kept: Action = GiveUp(group=group, standing=taken.standing, reason=f"{taken.words}. {said}")
    else:
        kept = _rung_kept(desired, group, taken.standing, taken.words, again=taken.verb == "again")
    if taken.verb == "again" or diagnosis is None or not diagnosis.lasts_s:
        return [kept]
    failed = plan.ladder[min(before.rung, len(plan.ladder) - 1)].candidate
    mark = fingerprint(failed, desired.plan.drivers)
    return [RememberFailure(fingerprint=mark, lasts_s=diagnosis.lasts_s, reason=str(diagnosis)), kept]


def _rung_kept(
    desired: Desired, group: GroupKey, standing: Standing, words: str, *, again: bool
) -> LadderStep:
    nodes = nodes_of(desired, group[2], standing)
    kind = TryAgain if again else NextRung
    return kind(group=group, standing=standing, nodes=nodes, reason=words)


def _move(one: FallbackCase, rung: int, why: str) -> list[Action]:
    """Start a group at a lower rung, for a reason that is none of its starts'."""
    standing, ladder = one.standing, one.desired.plan.groups[one.app.replica].ladder
    lower = Standing(rung=rung, falls=standing.falls, passed=passed_by(standing, rung, why))
    cost = instead(ladder[standing.rung], ladder[rung])
    words = f"{why}; next: {what(ladder[rung])}{cost and f', {cost}'}"
    nodes = ladder[rung].candidate.shape.nodes
    return [
        MoveGroup(group=one.group, standing=lower, nodes=nodes, reason=words),
        RestartGroup(group=one.group, nodes=nodes, reason=why),
    ]


# --- nodes that do not come back


def leave_gone_nodes(state: FleetState, now: Now) -> list[Action]:
    """Groups on nodes that do not come back take the first rung that needs none of them, or wait if each needs one."""
    found = {
        app.group: _leave(FallbackCase(state, now, app, state.wanted[app.deployment])) for app in state.mine()
    }
    waits = {group for group, actions in found.items() if actions is not None}
    ended = [
        StopWaiting(group=group, reason="its nodes are back, or it needs others")
        for group in state.pending.waiting
        if group not in waits or any(isinstance(one, MoveGroup) for one in found[group] or ())
    ]
    return [*ended, *(action for actions in found.values() for action in actions or ())]


def _leave(one: FallbackCase) -> list[Action] | None:
    """None: it needs no node that is gone."""
    gone = one.state.nodes.gone(one.now).intersection(nodes_of(one.desired, one.app.replica, one.standing))
    if not gone or one.app.status == "retiring" or one.standing.given_up:
        return None
    names = ", ".join(sorted(gone))
    plan = one.desired.plan.groups[one.app.replica]
    rung = rung_without(plan, one.state.nodes.gone(one.now), one.standing.rung)
    if rung is not None:
        return _move(one, rung, f"{names} is gone")
    why = f"{names} is gone, and no rung of its ladder does without; it starts when that is back"
    if one.state.pending.waiting.get(one.group) == why:
        return []
    return [WaitForNodes(group=one.group, reason=why)]
