"""Rollout: from the existing applications to the desired generations.

The rules, in order, for each deployment:

1. It was deleted: its groups are retired.
2. A desired group does not exist: it is started; beside the older ones if memory allows, after them otherwise, and not while
   it would need what the older ones of another deployment are about to give back.
3. Every desired group serves: the older ones are retired.
4. A desired group failed: the older ones go on serving.

A desired group may have been started by an earlier generation (`Desired.members`); an older one is no longer desired. One
that takes its node down when Serve starts it again is retired at once (`fallback.count_lost_starts`).
"""

from __future__ import annotations

from collections.abc import Iterable

from sparkfleet.controlplane.policy.actions import Action, ForgetGroup, RetireGroup, StartGroup
from sparkfleet.controlplane.policy.memory_admission import crowded, may_run_beside, port_of_both
from sparkfleet.controlplane.policy.pending_starts import hold_back, is_uncertain
from sparkfleet.controlplane.policy.state import FleetState, Now, has_begun, nodes_of, older, replaced
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.status import App
from sparkfleet.group.group_name import GroupKey


def forget_ended(state: FleetState, now: Now) -> list[Action]:
    """Forgets positions and starts of groups that are no longer desired and have no application any more."""
    there = {app.group for app in state.apps}.union(*(one.groups for one in state.desired.values()))
    reason = "it is no longer desired and has ended"
    return [
        ForgetGroup(group=key, reason=reason)
        for key in {**state.standings, **state.starts}
        if key not in there
    ]


def retire_unwanted(state: FleetState, now: Now) -> list[Action]:
    """Retires groups of deleted deployments."""
    return _retired((app for app in state.apps if app.deployment not in state.to_run), "no longer wanted")


def retire_replaced(state: FleetState, now: Now) -> list[Action]:
    """Retires older groups once every desired one serves."""
    return [
        action
        for desired in state.to_run.values()
        if not state.has_given_up(desired)  # it is about to end
        if all(app and app.status == "running" for app in _groups(state, desired).values())
        for action in _retired(older(state, desired), f"replaced by generation {desired.generation}")
    ]


def make_room(state: FleetState, now: Now) -> list[Action]:
    """Retires older groups first if both do not fit in memory, or listen on the same port."""
    fits = may_run_beside(state, now)
    return [
        action
        for desired in state.to_run.values()
        if fits.get(desired.name) is False and not state.has_given_up(desired)
        for action in _retired(older(state, desired), _why_first(state, desired))
    ]


def start_missing(state: FleetState, now: Now) -> list[Action]:
    """Starts missing groups, unless an older one has to end first."""
    fits, held = may_run_beside(state, now), crowded(state)
    return [
        action
        for desired in state.to_run.values()
        if desired.name not in held
        if not _older_goes_first(state, desired, fits.get(desired.name, True))
        for group, app in _groups(state, desired).items()
        if app is None and not state.standing(group).given_up
        for action in _start(state, desired, group, now)
    ]


def _start(state: FleetState, desired: Desired, group: GroupKey, now: Now) -> list[Action]:
    if is_uncertain(state, group, now):
        return hold_back(state, group)
    serves = any(app.status == "running" for app in older(state, desired))
    reason = "the old one serves until this one is ready" if serves else "not running yet"
    nodes = nodes_of(desired, group, state.standing(group))
    return [StartGroup(group=group, nodes=nodes, reason=reason)]


def _older_goes_first(state: FleetState, desired: Desired, fits: bool | None) -> bool:
    """True while new groups may not start beside older ones: one is given up, they do not fit, or that is unknown."""
    if not replaced(state, desired) or has_begun(state, desired):
        return False
    return not fits or state.has_given_up(desired)


def _why_first(state: FleetState, desired: Desired) -> str:
    if any(app.status == "running" for app in older(state, desired)):
        port = port_of_both(state, desired)
        what = f"listen on the same port, {port}" if port is not None else "do not fit in memory at once"
        return f"it and generation {desired.generation} {what}"
    return f"it is not ready, and generation {desired.generation} takes its place"


def _groups(state: FleetState, desired: Desired) -> dict[GroupKey, App | None]:
    """Each desired group of a deployment, with its application."""
    there = {app.group: app for app in state.apps}
    return {key: there.get(key) for key in desired.groups}


def _retired(apps: Iterable[App], reason: str) -> list[Action]:
    return [RetireGroup(group=app.group, reason=reason) for app in apps if app.status != "retiring"]
