"""The state after actions: ladder positions, start attempts and pending decisions.

Applications, reports and nodes are observed, so no action changes them here: the next snapshot shows the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from sparkfleet.controlplane.policy.actions import (
    Action,
    BeginAttempt,
    EndAttempt,
    FailAttempt,
    ForgetGroup,
    ForgetLoad,
    GiveUp,
    KeepStanding,
    LadderStep,
    LoadDeployment,
    NextRung,
    RestartGroup,
    RetireGroup,
    StartGroup,
    StopWaiting,
    TryAgain,
    UnloadDeployment,
    WaitForBoots,
    WaitForMemory,
    WaitForNodes,
)
from sparkfleet.controlplane.policy.state import FleetState, Now, Pending
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.controlplane.state.status import app_name
from sparkfleet.group.group_name import GroupKey

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
    """The memory between rounds after an action."""
    if isinstance(action, BeginAttempt | EndAttempt | ForgetGroup | GiveUp | LadderStep):
        pending = _settled(pending, action.group)
    # The next failure of a new start is a new one, even if Serve showed no other status in between.
    if isinstance(action, BeginAttempt):
        name = app_name(*action.group)
        pending = replace(pending, answered={app: at for app, at in pending.answered.items() if app != name})
    pending = _deployed_after(pending, action)
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


def _deployed_after(pending: Pending, action: Action) -> Pending:
    """Groups that were deployed at their present rung, after an action."""
    match action:
        case StartGroup(group=group) | RestartGroup(group=group):
            return replace(pending, deployed=pending.deployed | {group})
        case LadderStep(group=group) | ForgetGroup(group=group) | RetireGroup(group=group):
            return replace(pending, deployed=pending.deployed - {group})
    return pending


def _waits_after(pending: Pending, action: Action) -> Pending:
    """Reasons for waiting of groups and generations, after an action."""
    match action:
        case WaitForNodes(group=group):
            return replace(pending, waiting={**pending.waiting, group: action.reason})
        case StopWaiting(group=group):
            return replace(pending, waiting=_without(pending.waiting, group))
        case WaitForMemory(deployment=name, generation=generation):
            return replace(pending, recorded={**pending.recorded, f"{name}/g{generation}": action.reason})
    return _loads_after(pending, action)


def _loads_after(pending: Pending, action: Action) -> Pending:
    """Deployments on demand that are loaded, and those that are not, after an action."""
    match action:
        case LoadDeployment(deployment=name):
            unloaded = {key: why for key, why in pending.unloaded.items() if key != name}
            recorded = {key: why for key, why in pending.recorded.items() if key.rpartition("/g")[0] != name}
            return replace(pending, loaded=pending.loaded | {name}, unloaded=unloaded, recorded=recorded)
        case UnloadDeployment(deployment=name):
            unloaded = {**pending.unloaded, name: action.reason}
            return replace(pending, loaded=pending.loaded - {name}, unloaded=unloaded)
        case ForgetLoad(deployment=name):
            unloaded = {key: why for key, why in pending.unloaded.items() if key != name}
            return replace(pending, loaded=pending.loaded - {name}, unloaded=unloaded)
    return pending


def _settled(pending: Pending, group: GroupKey) -> Pending:
    """Without open questions about the group's last start."""
    return replace(pending, failed_at=_without(pending.failed_at, group), counted=pending.counted - {group})


def _without(values: Mapping[GroupKey, V], group: GroupKey) -> dict[GroupKey, V]:
    return {key: value for key, value in values.items() if key != group}


def _standings(state: FleetState, action: Action) -> Mapping[GroupKey, Standing]:
    match action:
        case KeepStanding(group=group, standing=standing):
            return {**state.standings, group: standing}
        case ForgetGroup(group=group):
            return _without(state.standings, group)
    return state.standings


def _starts(state: FleetState, action: Action) -> Starts:
    starts, boots = state.starts, state.nodes.boots
    match action:
        case LadderStep(group=group, nodes=nodes):
            return {**starts, group: begun({}, nodes, boots)}
        case BeginAttempt(group=group, nodes=nodes):
            return {**starts, group: begun(starts.get(group, {}), nodes, boots)}
        case EndAttempt(group=group) | GiveUp(group=group) | ForgetGroup(group=group):
            return _without(starts, group)
    return starts


def begun(before: Mapping[str, str], nodes: Iterable[str], boots: Mapping[str, str]) -> dict[str, str]:
    """Boot ids of the nodes of a start that begins or goes on: a known one stays."""
    now = {node: boots.get(node, "") for node in nodes}
    return {node: before.get(node) or now.get(node, "") for node in {**before, **now}}
