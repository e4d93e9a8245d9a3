"""Rollout: from the existing applications to the desired generations.

The rules, in order, for each deployment:

1. It was deleted: its groups are retired.
2. A group of the desired generation does not exist: it is started; beside the older generation if memory allows, after it
   otherwise.
3. Every group of the desired generation serves: the older ones are retired.
4. The desired generation failed: the older one goes on serving.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparkfleet.controlplane.desired import Desired, GroupKey
from sparkfleet.controlplane.policy.actions import Action, RetireGroup, StartGroup
from sparkfleet.controlplane.policy.memory_admission import room
from sparkfleet.controlplane.policy.pending_starts import hold_back, is_uncertain
from sparkfleet.controlplane.policy.state import FleetState, Now, nodes_of
from sparkfleet.controlplane.state.status import App


def retire_unwanted(state: FleetState, now: Now) -> list[Action]:
    """Retires groups of deleted deployments."""
    return _retired((app for app in state.apps if app.deployment not in state.wanted), "no longer wanted")


def retire_replaced(state: FleetState, now: Now) -> list[Action]:
    """Retires groups of older generations once every group of the desired one serves."""
    return [
        action
        for desired in state.wanted.values()
        if all(app and app.status == "running" for app in _groups(state, desired).values())
        for action in _retired(_older(state, desired), f"replaced by generation {desired.generation}")
    ]


def make_room(state: FleetState, now: Now) -> list[Action]:
    """Retires groups of an older generation first if memory does not hold both."""
    fits = room(state, now)
    return [
        action
        for desired in state.wanted.values()
        if fits.get(desired.name) is False and not state.has_given_up(desired.name, desired.generation)
        for action in _retired(_older(state, desired), _why_first(state, desired))
    ]


def start_missing(state: FleetState, now: Now) -> list[Action]:
    """Starts missing groups of desired generations, unless an older one has to end first."""
    fits = room(state, now)
    return [
        action
        for desired in state.wanted.values()
        if not _older_goes_first(state, desired, fits.get(desired.name, True))
        for group, app in _groups(state, desired).items()
        if app is None and not state.standing(group).given_up
        for action in _start(state, desired, group, now)
    ]


def _start(state: FleetState, desired: Desired, group: GroupKey, now: Now) -> list[Action]:
    if is_uncertain(state, group, now):
        return hold_back(state, group)
    serves = any(app.status == "running" for app in _older(state, desired))
    reason = "the old one serves until this one is ready" if serves else "not running yet"
    nodes = nodes_of(desired, group[2], state.standing(group))
    return [StartGroup(group=group, nodes=nodes, reason=reason)]


def _older_goes_first(state: FleetState, desired: Desired, fits: bool | None) -> bool:
    """True while a new generation may not start beside an older one: it is given up, does not fit, or that is unknown."""
    there = [app for app in state.apps if app.deployment == desired.name]
    if not there or any(app.generation == desired.generation for app in there):
        return False
    return not fits or state.has_given_up(desired.name, desired.generation)


def _why_first(state: FleetState, desired: Desired) -> str:
    if any(app.status == "running" for app in _older(state, desired)):
        return f"memory does not hold it and generation {desired.generation} at once"
    return f"it is not ready, and generation {desired.generation} takes its place"


def _groups(state: FleetState, desired: Desired) -> dict[GroupKey, App | None]:
    """Each desired group of a deployment, with its application."""
    there = {app.group: app for app in state.apps}
    keys = [(desired.name, desired.generation, at) for at in range(len(desired.plan.groups))]
    return {key: there.get(key) for key in keys}


def _older(state: FleetState, desired: Desired) -> list[App]:
    """Groups of other generations of a deployment that are not retired yet."""
    return [
        app
        for app in state.apps
        if app.deployment == desired.name
        and app.generation != desired.generation
        and app.status != "retiring"
    ]


def _retired(apps: Iterable[App], reason: str) -> list[Action]:
    return [RetireGroup(group=app.group, reason=reason) for app in apps if app.status != "retiring"]
