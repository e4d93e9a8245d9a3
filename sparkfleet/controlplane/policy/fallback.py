"""Fallback: groups that do not start, or do not stay up. Those on nodes that are gone: `gone_nodes`.

After a failed start a group starts the same rung again, takes the next rung of its ladder, or is given up. Rungs, failures
and start attempts are in the store: after a restart of the controller, or of its whole node, it continues from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkfleet.controlplane.policy.actions import (
    Action,
    EndGroup,
    FailAttempt,
    GiveUp,
    LadderStep,
    MoveGroup,
    NextRung,
    RememberFailure,
    RestartGroup,
    RetireGroup,
    TryAgain,
)
from sparkfleet.controlplane.policy.ladder import (
    TOOK_DOWN,
    cost_words,
    may_have_lost_its_node,
    passed_by,
    rung_with_less,
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
    # Free memory is no reason to start it again.
    standing = one.standing.model_copy(update={"given_up": True, "refused": 0})
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
    return None if rung is None else move(one, rung, why)


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
    """True if a failed start may have taken a node down that was present at its beginning."""
    if (
        diagnosis is None
        or diagnosis.cause is not Cause.AWAY
        or may_have_lost_its_node(state.standing(group))
    ):
        return False
    begun, boots = state.starts.get(group, {}), state.nodes.boots
    return any(boot and boots.get(node) != boot for node, boot in begun.items())


def _rung_kept(
    desired: Desired, group: GroupKey, standing: Standing, words: str, *, again: bool
) -> LadderStep:
    nodes = nodes_of(desired, group, standing)
    kind = TryAgain if again else NextRung
    return kind(group=group, standing=standing, nodes=nodes, reason=words)


def move(one: FallbackCase, rung: int, why: str, *, vacates: bool = False) -> list[Action]:
    """Moves a group to another rung for a reason other than a failed start.

    `vacates`: those that it passes need nodes that are gone, and have not failed.
    """
    standing, plan = one.standing, one.desired.plan_of(one.group)
    vacated = {*standing.vacated, *(range(standing.rung, rung) if vacates else ())}
    other = Standing(
        rung=rung,
        falls=standing.falls,
        refused=standing.refused,
        passed=passed_by(standing, rung, why)[:rung],
        vacated=tuple(sorted(at for at in vacated if at < rung)),
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
