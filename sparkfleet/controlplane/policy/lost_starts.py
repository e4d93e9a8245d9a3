"""Starts that took their node down, counted before any new start: no process may be left that reports them."""

from __future__ import annotations

from sparkfleet.controlplane.policy.actions import Action, EndAttempt, NextRung
from sparkfleet.controlplane.policy.fallback import GAVE_UP, restart, step_down
from sparkfleet.controlplane.policy.older_groups import count_lost_older
from sparkfleet.controlplane.policy.pending_starts import lost
from sparkfleet.controlplane.policy.state import FleetState, Now
from sparkfleet.controlplane.policy.state_after import after
from sparkfleet.controlplane.state.status import App
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.group.group_name import GroupKey


def count_lost_starts(state: FleetState, now: Now) -> list[Action]:
    """Counts starts whose node was restarted meanwhile as failed, even if no process is left to report it."""
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
    serves_again = desired is None and state.generation_of(group) is not None
    runs = app is not None and app.status != "retiring" and group[0] in state.to_run
    if desired is None and (runs or (serves_again and app is None)):
        return count_lost_older(state, group, diagnosis)
    if desired is None or state.standing(group).given_up:
        return _count_unloaded(state, group, diagnosis) or [
            EndAttempt(group=group, reason="it is not started any more")
        ]
    if app is not None and not _is_under_way(state, app):
        return []
    taken = step_down(state, desired, group, diagnosis, GAVE_UP)
    if app is None or not any(isinstance(action, NextRung) for action in taken):
        return taken  # Serve restarts it by itself at the same rung
    return [*taken, restart(after(state, taken, now), desired, group, diagnosis.summary)]


def _count_unloaded(state: FleetState, group: GroupKey, diagnosis: Diagnosis) -> list[Action]:
    """Counts the lost start of a group on demand that is unloaded since Ray has ended: else each of its requests would take
    the node down again. Empty for any other group."""
    waits, served = state.applied.get(group[0]), state.last_served.get(group[0])
    if waits is None or group[0] in state.to_run or state.standing(group).given_up:
        return []
    ended = EndAttempt(group=group, reason="it starts with its next request")
    if group in waits.groups:
        return [*step_down(state, waits, group, diagnosis, GAVE_UP), ended]
    if served is not None and group in served.groups:
        return [*count_lost_older(state, group, diagnosis), ended]
    return []


def _is_under_way(state: FleetState, app: App) -> bool:
    """True if neither Serve nor the group has reported a failed start, which `answer_failure` would answer."""
    return app.status not in ("failed", "retiring") and app.group not in state.pending.failed_at
