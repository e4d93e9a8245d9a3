"""Updates a group's ladder position when its phase changes."""

from __future__ import annotations

from sparkfleet.controlplane.policy.actions import (
    Action,
    BeginAttempt,
    EndAttempt,
    FailAttempt,
    ForgetFailure,
    KeepStanding,
)
from sparkfleet.controlplane.policy.fallback import BREAKER_S, STARVED_S
from sparkfleet.controlplane.policy.state import FleetState, Now, nodes_of
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.errors import Cause
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport
from sparkfleet.planner.rules.failure_memory import fingerprint


def on_report(state: FleetState, report: GroupReport, now: Now) -> list[Action]:
    """Actions for a report with a new phase of a group."""
    if report.phase in BEGINNING:
        return _on_starting(state, report)
    if report.phase is GroupPhase.READY:
        return _on_ready(state, report)
    return _on_failed(state, report, now) if report.phase is GroupPhase.FAILED else []


def _on_starting(state: FleetState, report: GroupReport) -> list[Action]:
    """Stores its start, also of a group that serves until a newer one does. Not while the fleet is stopping: a stopped group
    still reports for a moment."""
    desired = state.desired_of(report.group)
    older = state.older.get(report.group) if report.deployment in state.to_run else None
    nodes: tuple[str, ...] = older.shape.nodes if older else ()
    if desired:
        nodes = nodes_of(desired, report.group, state.standing(report.group))
    return [BeginAttempt(group=report.group, nodes=nodes, reason="it is starting")] if nodes else []


def _on_ready(state: FleetState, report: GroupReport) -> list[Action]:
    """Clears its failed starts, and the failure of its candidate."""
    ended = EndAttempt(group=report.group, reason="it is ready")
    desired = state.desired.get(report.deployment)
    if desired is None:
        return [ended]
    standing = state.standing(report.group)
    found: list[Action] = [ended]
    if standing.tries or standing.restarts or standing.refused or standing.bound:
        anew = standing.model_copy(update={"tries": 0, "restarts": 0, "refused": 0, "bound": ""})
        found.append(KeepStanding(group=report.group, standing=anew, reason="it is ready"))
    if report.group not in desired.groups:
        return found
    candidate = desired.plan_of(report.group).rung_at(report.rung).candidate
    mark = fingerprint(candidate, desired.plan.drivers)
    return [*found, ForgetFailure(fingerprint=mark, reason="it is ready")]


def _on_failed(state: FleetState, report: GroupReport, now: Now) -> list[Action]:
    """Counts its failure, unless the group has already left that rung."""
    group, standing = report.group, state.standing(report.group)
    if report.rung != standing.rung:
        return []
    if not report.was_starting:
        fallen = _fallen(standing, report, now)
        return [
            EndAttempt(group=group, reason="it failed while it served"),
            KeepStanding(group=group, standing=fallen, reason="it failed while it served"),
        ]
    failed = FailAttempt(group=group, reason="it failed while it was starting")
    if group in state.pending.counted or _is_excused(state, report):
        return [failed]
    more = standing.model_copy(update={"restarts": standing.restarts + 1})
    return [failed, KeepStanding(group=group, standing=more, reason=failed.reason)]


def _is_excused(state: FleetState, report: GroupReport) -> bool:
    """True for a group of an older generation if a container tool is away, for as long as that takes, or while a newer one,
    which may be given up, takes its memory."""
    newest = state.desired.get(report.deployment)
    if newest is None or report.group in newest.groups:
        return False
    is_without_tool = report.diagnosis is not None and report.diagnosis.cause is Cause.TOOL
    return is_without_tool or state.is_loading(newest)


def _fallen(standing: Standing, report: GroupReport, now: Now) -> Standing:
    """The position with one failure more, by memory if that was the cause, and without those that no longer count."""
    falls = (*(at for at in standing.falls if now.unix - BREAKER_S < at <= now.unix), now.unix)
    starved = tuple(at for at in standing.starved if now.unix - STARVED_S < at <= now.unix)
    if report.diagnosis is not None and report.diagnosis.cause is Cause.MEMORY:
        starved = (*starved, now.unix)
    return standing.model_copy(update={"falls": falls, "starved": starved})
