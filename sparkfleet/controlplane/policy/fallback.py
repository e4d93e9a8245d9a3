"""Fallback: groups that do not start, do not stay up, or are planned on nodes that are gone.

After a failed start a group starts the same rung again, takes the next rung of its ladder, or is given up. Rungs, failures
and start attempts are in the store: after a restart of the controller, or of its whole node, it continues from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sparkfleet.controlplane.policy.actions import (
    Action,
    EndGroup,
    FailAttempt,
    GiveUp,
    KeepStanding,
    LadderStep,
    MoveGroup,
    NextRung,
    RememberFailure,
    RestartGroup,
    RetireGroup,
    StopWaiting,
    TryAgain,
    WaitForNodes,
)
from sparkfleet.controlplane.policy.ladder import (
    TOOK_DOWN,
    cost_words,
    passed_by,
    rung_with_less,
    rung_without,
    rung_words,
    step,
)
from sparkfleet.controlplane.policy.pending_starts import away, went_away
from sparkfleet.controlplane.policy.state import FleetState, Now, nodes_of
from sparkfleet.controlplane.policy.state_after import after
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.status import App
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport
from sparkfleet.planner.rules.failure_memory import fingerprint

BREAKER_FAILURES = 5
BREAKER_S = 600.0
"""Failures of a ready group within `BREAKER_S` after which it is stopped: it would only crash again."""

CIRCLE = f"it came up and failed {BREAKER_FAILURES} times within {BREAKER_S / 60:.0f} minutes"

STARVED = 2
STARVED_S = 3600.0
"""Times that memory ran out within `STARVED_S` while a group served, after which it takes a rung that needs less. The window
is long because the load of a large model alone takes a quarter of an hour."""

ANSWER_S = 60.0
"""A failed application that still shows its failure so long after it was deployed again has failed again."""

RESTARTS = 3
"""Failed starts in a row after which the ladder takes over: Serve gives up only a group that has never started."""

GAVE_UP = "It is not started again, so that the node stays up; `sparkfleet apply` tries once more."
"""Added to the reason of a group that took its node down."""

SILENT = Diagnosis(
    cause=Cause.TRANSIENT, summary="its actor ended before it had reported anything", began=False
)
"""The failure of a group whose actor was lost before it looked for an engine. A ready engine of the rung may still run,
left by Ray's last head: the next rung would end it."""


@dataclass(frozen=True)
class FallbackCase:
    """A group of a desired generation, the input of the fallback rules."""

    state: FleetState
    now: Now
    app: App
    desired: Desired

    @property
    def group(self) -> GroupKey:
        """The key."""
        return self.app.group

    @property
    def standing(self) -> Standing:
        """The position on its ladder."""
        return self.state.standing(self.group)


# --- groups that have an application: the first rule that applies decides


def keep_groups_up(state: FleetState, now: Now) -> list[Action]:
    """Actions of the first rule that applies to each group of a desired generation."""
    return [
        action
        for app in state.desired_apps
        for action in _first(FallbackCase(state, now, app, state.to_run[app.deployment]))
    ]


def _first(one: FallbackCase) -> list[Action]:
    found = (rule(one) for rule in GROUP_RULES)
    return next((actions for actions in found if actions is not None), [])


def stop_what_is_given_up(one: FallbackCase) -> list[Action] | None:
    """Ends a given-up group that still has an application: it took its node down, or the controller died before its end."""
    if not one.standing.given_up:
        return None
    if one.app.status in ("failed", "retiring"):
        return []  # a group that has ended keeps its message
    if one.app.status == "running":
        # A full disk of the head had put off its end, and Serve started it meanwhile: it may have requests.
        return [RetireGroup(group=one.group, reason="it is given up")]
    return [EndGroup(group=one.group, reason="it is given up")]


def answer_failure(one: FallbackCase) -> list[Action] | None:
    """Answers Serve's failure of a group: the same rung again, the next rung, or the end of its ladder."""
    if one.app.status != "failed":
        return None
    return _answer(one) if is_open(one.state, one.now, one.app) else []


def is_open(state: FleetState, now: Now, app: App) -> bool:
    """True if the failure of an application has no answer yet, or one without effect: the new start failed between two
    readings, and its reports were lost."""
    answered_at = state.pending.answered.get(app.name)
    return answered_at is None or now.steady - answered_at >= ANSWER_S


def answer_restarts(one: FallbackCase) -> list[Action] | None:
    """Moves a group down its ladder that fails at each of Serve's restarts, as if Serve had given it up."""
    if one.standing.restarts < RESTARTS or one.app.status == "running":
        return None
    taken = _answer(one)
    ends = any(isinstance(action, GiveUp) for action in taken)
    return [*taken, EndGroup(group=one.group, reason="no rung of its ladder starts")] if ends else taken


def break_circle(one: FallbackCase) -> list[Action] | None:
    """Gives up a group that becomes ready and fails too often. If it serves by now, its next failure does."""
    if one.state.may_serve(one.app) or not is_in_circle(one.standing, one.now):
        return None
    words = f"{CIRCLE}, so it is not started again; `sparkfleet apply` tries once more"
    standing = one.standing.model_copy(update={"given_up": True})
    return [
        GiveUp(group=one.group, standing=standing, reason=words),
        EndGroup(group=one.group, reason=words),
    ]


def is_in_circle(standing: Standing, now: Now) -> bool:
    """True if a group became ready and failed too often."""
    return sum(at > now.unix - BREAKER_S for at in standing.falls) >= BREAKER_FAILURES


def take_less_memory(one: FallbackCase) -> list[Action] | None:
    """Moves a group whose memory ran out repeatedly while it served to a rung that needs less, but none that serves again.

    That is one for which there was no such rung then: another plan or a node that is back may bring one.
    """
    if (
        one.state.may_serve(one.app)
        or sum(at > one.now.unix - STARVED_S for at in one.standing.starved) < STARVED
    ):
        return None
    plan = one.desired.plan_of(one.group)
    away_or_drained = {*one.state.nodes.away_since, *one.state.drained}
    rung = rung_with_less(plan, one.standing.rung, away_or_drained)
    why = f"memory ran out {STARVED} times within {STARVED_S / 60:.0f} minutes while it served"
    return None if rung is None else _move(one, rung, why)


GROUP_RULES: tuple[Callable[[FallbackCase], list[Action] | None], ...] = (
    stop_what_is_given_up,
    answer_failure,
    answer_restarts,
    break_circle,
    take_less_memory,
)
"""In order; a rule that does not apply returns None."""


def _answer(one: FallbackCase) -> list[Action]:
    """Counts its failure, unless that is done, and restarts it; first waits for its nodes if they may have caused it."""
    if one.app.status == "failed" and one.group in one.state.pending.counted:
        return [restart(one.state, one.desired, one.group, "its failure is counted", answers=True)]
    # It ended while it waited: nothing had begun.
    if one.app.status == "failed" and one.state.is_barred(one.group):
        why = "it had waited for a drained node"
        return [restart(one.state, one.desired, one.group, why, answers=True)]
    report = one.state.report(one.group)
    diagnosis, detail = (report.diagnosis, report.detail) if report else (None, "")
    if report and not report.was_starting:
        diagnosis = None  # it explains a failure while it served, not the failed start
    if diagnosis is None or diagnosis.cause in (Cause.TRANSIENT, Cause.UNKNOWN):
        missing = away(one.state, one.group, nodes_of(one.desired, one.group, one.standing), one.now)
        if missing is None:
            return _ask_nodes(one)
        if missing:
            diagnosis, detail = went_away(missing), GAVE_UP
        elif diagnosis is None and one.app.status == "failed" and not _has_begun(report):
            diagnosis = SILENT
    taken = step_down(one.state, one.desired, one.group, diagnosis, detail or one.app.message)
    if any(isinstance(action, GiveUp) for action in taken):
        return taken
    why = str(diagnosis) if diagnosis else "it did not start"
    answers = one.app.status == "failed"
    return [*taken, restart(after(one.state, taken, one.now), one.desired, one.group, why, answers=answers)]


def _has_begun(report: GroupReport | None) -> bool:
    """True if the group has reported a start that has not become ready: before its first report no engine is touched."""
    return report is not None and report.phase in (*BEGINNING, GroupPhase.PROBING, GroupPhase.FAILED)


def _ask_nodes(one: FallbackCase) -> list[Action]:
    if one.group in one.state.pending.failed_at:
        return []
    return [FailAttempt(group=one.group, reason="its nodes are checked before its failure is answered")]


def restart(
    state: FleetState, desired: Desired, group: GroupKey, why: str, *, answers: bool = False
) -> RestartGroup:
    """Restart of a group at its rung in `state`."""
    nodes = nodes_of(desired, group, state.standing(group))
    return RestartGroup(group=group, nodes=nodes, reason=why, answers=answers)


def step_down(
    state: FleetState, desired: Desired, group: GroupKey, diagnosis: Diagnosis | None, detail: str
) -> list[Action]:
    """Counts a failed start.

    Args:
        state: the state before it is counted.
        diagnosis: the cause, if it is known.
        detail: added to the reason if there is no rung left.
    """
    plan, before = desired.plan_of(group), state.standing(group)
    if _took_down(state, group, diagnosis):
        before = before.model_copy(update={"bound": TOOK_DOWN})
    taken = step(plan, before, diagnosis, state.drained, state.nodes.gone_when_seen())
    if taken.verb == "end":
        kept: Action = GiveUp(group=group, standing=taken.standing, reason=f"{taken.words}. {detail}")
    else:
        kept = _rung_kept(desired, group, taken.standing, taken.words, again=taken.verb == "again")
    if taken.verb == "again" or diagnosis is None or not diagnosis.lasts_s:
        return [kept]
    failed = plan.rung_at(before.rung).candidate
    mark = fingerprint(failed, desired.plan.drivers)
    return [RememberFailure(fingerprint=mark, lasts_s=diagnosis.lasts_s, reason=str(diagnosis)), kept]


def _took_down(state: FleetState, group: GroupKey, diagnosis: Diagnosis | None) -> bool:
    """True if a failed start may have taken a node down that was present at its beginning.

    Not of a group that fell while it served: its node was lost before, and Ray notices that a minute later.
    """
    if diagnosis is None or diagnosis.cause is not Cause.AWAY or state.standing(group).falls:
        return False
    begun, boots = state.starts.get(group, {}), state.nodes.boots
    return any(boot and boots.get(node) != boot for node, boot in begun.items())


def _rung_kept(
    desired: Desired, group: GroupKey, standing: Standing, words: str, *, again: bool
) -> LadderStep:
    nodes = nodes_of(desired, group, standing)
    kind = TryAgain if again else NextRung
    return kind(group=group, standing=standing, nodes=nodes, reason=words)


def _move(one: FallbackCase, rung: int, why: str, *, left: bool = False) -> list[Action]:
    """Moves a group to another rung for a reason other than a failed start.

    `left`: those that it passes need nodes that are gone, and have not failed.
    """
    standing, plan = one.standing, one.desired.plan_of(one.group)
    untried = {*standing.left, *(range(standing.rung, rung) if left else ())}
    other = Standing(
        rung=rung,
        falls=standing.falls,
        refused=standing.refused,
        passed=passed_by(standing, rung, why)[:rung],
        left=tuple(sorted(at for at in untried if at < rung)),
        bound=standing.bound,
    )
    following = plan.ladder[rung]
    cost = cost_words(plan.rung_at(standing.rung), following)
    words = f"{why}; next: {rung_words(following)}{cost and f', {cost}'}"
    nodes = following.candidate.shape.nodes
    return [
        MoveGroup(group=one.group, standing=other, nodes=nodes, reason=words),
        RestartGroup(group=one.group, nodes=nodes, reason=why),
    ]


# --- nodes that do not come back, and drained ones


def leave_gone_nodes(state: FleetState, now: Now) -> list[Action]:
    """Moves groups off nodes that do not come back, and groups that may not start off drained ones.

    They take the first rung without such nodes; if there is none, they wait.
    """
    found = {
        app.group: _leave(FallbackCase(state, now, app, state.to_run[app.deployment]))
        for app in state.desired_apps
    }
    waits = {group for group, actions in found.items() if actions is not None}
    ended = [
        StopWaiting(group=group, reason="its nodes are back, or it moved to others")
        for group in state.pending.waiting
        if group not in waits or any(isinstance(one, MoveGroup) for one in found[group] or ())
    ]
    return [*ended, *(action for actions in found.values() for action in actions or ())]


def _leave(one: FallbackCase) -> list[Action] | None:
    """Actions for a group that needs a node that is gone, or that waits for a drained one; None for others."""
    blocked = _blocked(one)
    if not blocked or one.app.status == "retiring" or one.standing.given_up:
        return None
    plan = one.desired.plan_of(one.group)
    gone, drained = one.state.nodes.gone(one.now), one.state.drained
    away = gone | drained
    bound = bound_by(one.state, one.group)
    rung = rung_without(plan, away, one.standing.rung, own=bool(bound))
    if rung is not None:
        return _move(one, rung, blocked.what, left=True)
    if (back := _rung_back(one, own=bool(bound))) is not None:
        return _move(one, back, blocked.what)
    no_rung = "no rung of its ladder does without"
    if bound and rung_without(plan, away, one.standing.rung) is not None:
        no_rung = f"it is not moved: {bound}"
    elif not blocked.is_drained and rung_without(plan, gone, one.standing.rung) is not None:
        no_rung = f"each rung that does without needs a drained node ({', '.join(sorted(drained))})"
    why = f"{blocked.what}, and {no_rung}; it starts {blocked.until}"
    noted: list[Action] = []
    if bound != one.standing.bound:
        standing = one.standing.model_copy(update={"bound": bound})
        noted = [KeepStanding(group=one.group, standing=standing, reason=blocked.what)]
    if one.state.pending.waiting.get(one.group) == why:
        return noted
    return [*noted, WaitForNodes(group=one.group, reason=why)]


def _rung_back(one: FallbackCase, *, own: bool) -> int | None:
    """The first rung above that the group left for a node which is there again; None without one.

    `own`: only one on the nodes of its choice.
    """
    plan = one.desired.plan_of(one.group)
    absent = {*one.state.nodes.away_since, *one.state.drained}
    for at in one.standing.left:
        if at >= len(plan.ladder) or (own and plan.is_elsewhere(plan.ladder[at])):
            continue
        if not absent.intersection(plan.ladder[at].candidate.shape.nodes):
            return at
    return None


def bound_by(state: FleetState, group: GroupKey) -> str:
    """Reason for starting a group on no nodes but those of its first rung, in words; "" if it may leave them.

    Also if a node of it went away during its start, and has not come back.
    """
    standing, begun, boots = state.standing(group), state.starts.get(group, {}), state.nodes.boots
    is_lost = any(boot and not boots.get(node) for node, boot in begun.items())
    return standing.bound or (TOOK_DOWN if is_lost and not standing.falls else "")


class _Blocked(NamedTuple):
    """The nodes for which a group cannot start at its rung, in words."""

    what: str
    until: str
    """The end of that."""
    is_drained: bool
    """True if they are drained, and not gone."""


def _blocked(one: FallbackCase) -> _Blocked | None:
    nodes = nodes_of(one.desired, one.group, one.standing)
    if gone := sorted(one.state.nodes.gone(one.now).intersection(nodes)):
        until = f"when that is back; `sparkfleet drain {gone[0]}` moves it if other nodes have room"
        return _Blocked(f"{', '.join(gone)} is gone", until, is_drained=False)
    drained = sorted(one.state.drained.intersection(nodes))
    if drained and one.state.is_barred(one.group):
        until = f"after `sparkfleet undrain {drained[0]}`"
        return _Blocked(f"{', '.join(drained)} is drained", until, is_drained=True)
    return None
