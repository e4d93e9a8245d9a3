"""Rollout: from the existing applications to the desired generations.

The rules, in order, for each deployment:

1. It was deleted, or is on demand and nothing demands it (`on_demand`): its groups are retired.
2. A desired group does not exist: it is started; beside the older ones if memory allows, otherwise after those on its nodes
   (`rolling_update`), and not while it would need what the older ones of another deployment are about to give back.
3. Every desired group serves: the older ones are retired.
4. A desired group failed: the older ones go on serving.

A desired group may have been started by an earlier generation (`Desired.members`); an older one is no longer desired. One
that takes its node down when Serve starts it again is retired at once (`lost_starts`).
"""

from __future__ import annotations

from collections.abc import Iterable

from sparkfleet.controlplane.policy.actions import Action, EndAttempt, ForgetGroup, RetireGroup, StartGroup
from sparkfleet.controlplane.policy.demand.on_demand import held_for_memory
from sparkfleet.controlplane.policy.fallback import BREAKER_S
from sparkfleet.controlplane.policy.memory_admission import crowded, granted
from sparkfleet.controlplane.policy.pending_starts import hold_back, is_uncertain
from sparkfleet.controlplane.policy.rolling_update import RollingUpdate, rolling_updates, serving_words
from sparkfleet.controlplane.policy.state import FleetState, Now, nodes_of, older
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.status import App
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import GroupPhase


def forget_ended(state: FleetState, now: Now) -> list[Action]:
    """Forgets positions and starts of groups that are no longer desired and have no application any more.

    The position is kept until the desired ones have served for `BREAKER_S`: the group may have to serve again, at the rung
    at which it served and with the failures that count.
    """
    replacing = {one.name for one in state.desired.values() if not _stays_up(state, one, now)}
    reason = "it is no longer desired and has ended"
    begun = dict.fromkeys([*state.starts, *state.pending.failed_at])
    return [
        EndAttempt(group=key, reason=reason) if key[0] in replacing else ForgetGroup(group=key, reason=reason)
        for key in _ended(state, [*state.standings, *begun])
        if key[0] not in replacing or key in begun
    ]


def forgets_later(state: FleetState) -> bool:
    """True if the position of a group that has ended is forgotten once the desired ones have served for long enough."""
    serving = {one.name for one in state.desired.values() if _is_whole(state, one)}
    return any(key[0] in serving for key in _ended(state, state.standings))


def retire_unwanted(state: FleetState, now: Now) -> list[Action]:
    """Retires groups of deployments that were deleted, or unloaded."""
    return [
        action
        for app in state.apps
        if app.deployment not in state.to_run
        for action in _retired([app], state.pending.unloaded.get(app.deployment, "no longer wanted"))
    ]


def retire_replaced(state: FleetState, now: Now) -> list[Action]:
    """Retires older groups once every desired one serves."""
    return [
        action
        for desired in state.to_run.values()
        if not state.has_given_up(desired)  # it is about to end
        if _is_whole(state, desired)
        for action in _retired(older(state, desired), f"replaced by generation {desired.generation}")
    ]


def make_room(state: FleetState, now: Now) -> list[Action]:
    """Retires older groups if desired ones do not fit in memory beside them, or listen on the same port."""
    grants = granted(state, now)
    return [action for roll in rolling_updates(state) for action in roll.ends(grants)]


def start_missing(state: FleetState, now: Now) -> list[Action]:
    """Starts missing groups, unless an older one has to end first."""
    grants, held = granted(state, now), crowded(state, now).keys() | held_for_memory(state, now)
    return [
        action
        for desired in state.to_run.values()
        for roll in [RollingUpdate(state, desired)]
        for group in roll.missing
        if group not in held and grants.get(group, not roll.blockers(group))
        for action in _start(state, desired, group, now)
    ]


def _start(state: FleetState, desired: Desired, group: GroupKey, now: Now) -> list[Action]:
    if is_uncertain(state, group, now):
        return hold_back(state, group)
    serving = [app.group for app in older(state, desired) if app.status == "running"]
    reason = f"{serving_words(serving)} until this one is ready" if serving else "not running yet"
    nodes = nodes_of(desired, group, state.standing(group))
    return [StartGroup(group=group, nodes=nodes, reason=reason)]


def _is_whole(state: FleetState, desired: Desired) -> bool:
    """True if every desired group serves."""
    return all(app and app.status == "running" for app in _groups(state, desired).values())


def _stays_up(state: FleetState, desired: Desired, now: Now) -> bool:
    """True if every desired group has served for `BREAKER_S`: one that fails sooner may be given up for that.

    Not if one has not reported. The clock of its node may be ahead; one that was set back ends the wait.
    """
    reports = [state.report(group) for group in desired.groups]
    return _is_whole(state, desired) and all(
        report is not None and report.phase is GroupPhase.READY and abs(now.unix - report.since) >= BREAKER_S
        for report in reports
    )


def _ended(state: FleetState, groups: Iterable[GroupKey]) -> list[GroupKey]:
    """Groups of these that are no longer desired, are not to serve again and have no application any more."""
    kept = (*state.desired.values(), *state.last_served.values())
    there = {app.group for app in state.apps}.union(*(one.groups for one in kept))
    return [key for key in dict.fromkeys(groups) if key not in there]


def _groups(state: FleetState, desired: Desired) -> dict[GroupKey, App | None]:
    """Each desired group of a deployment, with its application."""
    there = {app.group: app for app in state.apps}
    return {key: there.get(key) for key in desired.groups}


def _retired(apps: Iterable[App], reason: str) -> list[Action]:
    return [RetireGroup(group=app.group, reason=reason) for app in apps if app.status != "retiring"]
