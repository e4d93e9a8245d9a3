"""The state after actions: ladder positions, start attempts and pending decisions.

Applications, reports and nodes are observed, so no action changes them here: the next snapshot shows the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from sparkfleet.controlplane.desired import GroupKey, Standing, oldest_kept
from sparkfleet.controlplane.policy.actions import (
    Action,
    BeginAttempt,
    EndAttempt,
    FailAttempt,
    GiveUp,
    KeepStanding,
    KnowBoots,
    LadderStep,
    NextRung,
    RestartGroup,
    StopWaiting,
    TryAgain,
    WaitForBoots,
    WaitForMemory,
    WaitForNodes,
)
from sparkfleet.controlplane.policy.state import FleetState, Now, Pending
from sparkfleet.controlplane.state.status import app_name

V = TypeVar("V")
Starts = Mapping[GroupKey, Mapping[str, str]]


def after(state: FleetState, actions: Iterable[Action], now: Now) -> FleetState:
    """The state with everything that the actions store."""
    for action in actions:
        state = replace(
            state,
            standings=_standings(state, action),
            starts=_starts(state, action),
            pending=pending_after(state.pending, action, now),
        )
    return state


def pending_after(pending: Pending, action: Action, now: Now) -> Pending:
    """Pending starts after an action."""
    if isinstance(action, BeginAttempt | EndAttempt | GiveUp | LadderStep):
        pending = _settled(pending, action.group)
    if isinstance(
        action, BeginAttempt
    ):  # its next failure is then a new one, even if Serve showed no other status in between
        name = app_name(*action.group)
        pending = replace(pending, answered={app: at for app, at in pending.answered.items() if app != name})
    match action:
        case RestartGroup(group=group, answers=True):
            return replace(pending, answered={**pending.answered, app_name(*group): now.steady})
        case TryAgain(group=group) | NextRung(group=group):
            return replace(pending, counted=pending.counted | {group})
        case FailAttempt(group=group):
            return replace(pending, failed_at={group: now.steady, **pending.failed_at})
        case WaitForBoots():
            return replace(pending, asked_at=now.steady if pending.asked_at is None else pending.asked_at)
    return _waits_after(pending, action)


def _waits_after(pending: Pending, action: Action) -> Pending:
    """Reasons for waiting of groups and generations, after an action."""
    match action:
        case WaitForNodes(group=group):
            return replace(pending, waiting={**pending.waiting, group: action.reason})
        case StopWaiting(group=group):
            return replace(pending, waiting=_without(pending.waiting, group))
        case WaitForMemory(deployment=name, generation=generation):
            return replace(pending, recorded={**pending.recorded, f"{name}/g{generation}": action.reason})
    return pending


def _settled(pending: Pending, group: GroupKey) -> Pending:
    """Without open questions about the group's last start."""
    return replace(pending, failed_at=_without(pending.failed_at, group), counted=pending.counted - {group})


def _without(values: Mapping[GroupKey, V], group: GroupKey) -> dict[GroupKey, V]:
    return {key: value for key, value in values.items() if key != group}


def _standings(state: FleetState, action: Action) -> Mapping[GroupKey, Standing]:
    if not isinstance(action, KeepStanding):
        return state.standings
    return {**_of_no_older(state, state.standings, action.group), action.group: action.standing}


def _starts(state: FleetState, action: Action) -> Starts:
    starts, boots = state.starts, state.nodes.boots
    match action:
        case LadderStep(group=group, nodes=nodes):
            return {**_of_no_older(state, starts, group), group: begun({}, nodes, boots)}
        case BeginAttempt(group=group, nodes=nodes):
            return {**_of_no_older(state, starts, group), group: begun(starts.get(group, {}), nodes, boots)}
        case KnowBoots(group=group) if group in starts:
            return {**starts, group: begun(starts[group], action.boots, action.boots)}
        case EndAttempt(group=group) | GiveUp(group=group):
            return _without(starts, group)
    return starts


def begun(before: Mapping[str, str], nodes: Iterable[str], boots: Mapping[str, str]) -> dict[str, str]:
    """Boot ids of the nodes of a start that begins or goes on: a known one stays."""
    now = {node: boots.get(node, "") for node in nodes}
    return {node: before.get(node) or now.get(node, "") for node in {**before, **now}}


def _of_no_older(state: FleetState, values: Mapping[GroupKey, V], group: GroupKey) -> dict[GroupKey, V]:
    """The other positions to keep: none of the deployment's older generations, as in the store."""
    oldest = oldest_kept(state.desired.get(group[0]), group)
    return {key: value for key, value in values.items() if key[0] != group[0] or key[1] >= oldest}
