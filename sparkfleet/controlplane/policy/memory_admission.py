"""Admission of groups to the memory that is free beside the running ones. Granted once, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sparkfleet.controlplane.policy.actions import Action, WaitForMemory
from sparkfleet.controlplane.policy.roll import Grants, Roll, rolls
from sparkfleet.controlplane.policy.state import FleetState, Now, has_begun, replaced
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.group_name import GroupKey


def depends_on_memory(state: FleetState) -> bool:
    """True if what is decided depends on the free memory of the nodes."""
    found = rolls(state)
    return any(one.blocked for one in found) or bool(found and starting_without_older(state))


def granted(state: FleetState, now: Now) -> Grants:
    """Admission of each missing group that older ones are in the way of.

    Memory is granted once: to the first that needs it, and not what a group that starts will still take.
    """
    free = FreeMemory(state)
    found: dict[GroupKey, bool | None] = {}
    for roll in rolls(state):
        blocked = roll.blocked
        for group in roll.missing:
            needs = needed(state, roll.desired, [group])
            fits = free.holds(needs) if group in blocked else True
            if fits is None and _is_held_by_gone(roll, needs.keys(), now):
                # It is placed although a node is gone, and takes a rung without that node: no group that serves is lost.
                fits = False
            if fits and group in blocked and roll.port_of_both(group) is not None:
                fits = False
            if fits:
                free.take(needs)
            if group in blocked:
                found[group] = fits
    return found


def starting_without_older(state: FleetState) -> list[Desired]:
    """Deployments with a group that is to start and that has nothing to end first."""
    there = {app.group for app in state.apps}
    return [
        one
        for one in state.to_run.values()
        if not replaced(state, one) and any(_is_missing(state, there, group) for group in one.groups)
    ]


def crowded(state: FleetState, now: Now) -> dict[str, str]:
    """Deployments that wait, each with the reason: another one is rolling, and they fit once its older groups have ended.

    A start in between would run out of memory, and each rung of its ladder after it. The wait ends with the roll. One that
    begins to roll in this round is rolling, too.
    """
    starting = starting_without_older(state)
    if not starting:
        return {}
    beside = [group for group, fits in granted(state, now).items() if fits]
    begins = {group[0] for group in beside}
    changing = {one.desired.name for one in rolls(state) if has_begun(state, one.desired)} | begins
    if not changing:
        return {}
    free = FreeMemory(state)
    for group in beside:
        free.take(needed(state, state.to_run[group[0]], [group]))
    there = {app.group for app in state.apps}
    words = " and ".join(sorted(changing))
    found: dict[str, str] = {}
    for one in starting:
        needs = needed(state, one, (group for group in one.groups if _is_missing(state, there, group)))
        if free.holds(needs, unknown=True):
            free.take(needs)
        else:
            found[one.name] = f"it fits once the older groups of {words} have ended"
    return found


def _is_missing(state: FleetState, there: Collection[GroupKey], group: GroupKey) -> bool:
    return group not in there and not state.standing(group).given_up


def wait_for_memory(state: FleetState, now: Now) -> list[Action]:
    """Records the wait of each generation for memory, once: for nodes that do not report theirs, or for another's to end."""
    grants = granted(state, now)
    waits = [
        WaitForMemory(
            deployment=roll.desired.name,
            generation=roll.desired.generation,
            reason=f"free memory of {', '.join(silent)} is not known; the old generation keeps running",
        )
        for roll in rolls(state)
        if (silent := _silent(state, roll, grants))
    ]
    waits += [
        WaitForMemory(deployment=name, generation=state.to_run[name].generation, reason=reason)
        for name, reason in crowded(state, now).items()
    ]
    recorded = state.pending.recorded
    return [wait for wait in waits if recorded.get(f"{wait.deployment}/g{wait.generation}") != wait.reason]


class FreeMemory:
    """Memory of the nodes that is left to grant, bytes: without what the groups that start will still take."""

    def __init__(self, state: FleetState) -> None:
        self._left = dict(state.available)
        for one in state.to_run.values():
            if state.is_loading(one):
                self.take(needed(state, one, _unready(state, one)))

    def holds(self, needs: Mapping[str, int], *, unknown: bool | None = None) -> bool | None:
        """True if each node has what is needed on it; `unknown` if the memory of one is not known."""
        if any(self._left.get(node, need) < need for node, need in needs.items()):
            return False
        return True if needs.keys() <= self._left.keys() else unknown

    def take(self, needs: Mapping[str, int]) -> None:
        """Grants memory."""
        for node in needs.keys() & self._left.keys():
            self._left[node] -= needs[node]


def needed(state: FleetState, desired: Desired, groups: Iterable[GroupKey]) -> dict[str, int]:
    """Bytes that groups of a deployment may take on each node at their rungs, by the high end of the predicted band."""
    needs: dict[str, int] = {}
    for group in groups:
        rung = desired.plan_of(group).rung_at(state.standing(group).rung)
        for node in rung.candidate.shape.nodes:
            needs[node] = needs.get(node, 0) + int(rung.prediction.memory_bytes_per_rank.high)
    return needs


def _unready(state: FleetState, desired: Desired) -> list[GroupKey]:
    """Groups of a deployment that have not taken all of their memory; of one that rolls only those that were started."""
    there = {app.group for app in state.apps}
    waits = bool(replaced(state, desired))
    return [
        group
        for group in desired.groups
        if not state.is_ready(group)
        and not state.standing(group).given_up
        and not (waits and group not in there)
    ]


def _is_held_by_gone(roll: Roll, nodes: Iterable[str], now: Now) -> bool:
    """True if a group waits only for nodes that do not come back, and no group that it replaces serves meanwhile.

    A group that it carries over goes on in any case.
    """
    silent = set(nodes) - roll.state.available.keys()
    return bool(roll.state.nodes.gone(now) & silent) and not any(map(roll.state.is_ready, _keys(roll)))


def _keys(roll: Roll) -> list[GroupKey]:
    return [app.group for app in roll.older]


def _silent(state: FleetState, roll: Roll, grants: Grants) -> list[str]:
    """Nodes whose free memory a roll waits for."""
    groups = [group for group in roll.missing if group in grants and grants[group] is None]
    return sorted(needed(state, roll.desired, groups).keys() - state.available.keys())
