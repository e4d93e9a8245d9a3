"""Admission of new generations to the memory that is free beside the running groups. Granted once, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sparkfleet.controlplane.policy.actions import Action, WaitForMemory
from sparkfleet.controlplane.policy.state import FleetState, Now, has_begun, older, replaced
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.group_name import GroupKey
from sparkfleet.planner.report.carry_over import shared_port


def waiting(state: FleetState) -> list[Desired]:
    """Deployments with groups that are to start beside older ones."""
    return [
        desired
        for desired in state.to_run.values()
        if replaced(state, desired)
        and not has_begun(state, desired)
        and any(map(desired.is_new, desired.groups))
        and not state.has_given_up(desired)
    ]


def depends_on_memory(state: FleetState) -> bool:
    """True if what is decided depends on the free memory of the nodes."""
    return bool(waiting(state)) or bool(rolling(state) and starting_without_older(state))


def may_run_beside(state: FleetState, now: Now) -> dict[str, bool | None]:
    """True for each deployment whose waiting generation may run beside the running groups; None while that is unknown."""
    if not (held := waiting(state)):
        return {}
    loading = filter(state.is_loading, state.to_run.values())
    granted = fitting(held, loading, state.available)
    return {
        # It is placed although a node is gone, and then takes a rung without that node: no group that serves is lost.
        name: False if fits is None and _is_held_by_gone(state, name, now) else fits
        for name, fits in granted.items()
    } | {name: False for name, fits in granted.items() if fits and port_of_both(state, state.to_run[name])}


def port_of_both(state: FleetState, desired: Desired) -> int | None:
    """A port on which a new group of a deployment and an older one on the same node listen; None without one."""
    new = [desired.plan_of(group).choice.candidate for group in desired.groups if desired.is_new(group)]
    old = [state.older[app.group] for app in older(state, desired) if app.group in state.older]
    return shared_port(new, old)


def rolling(state: FleetState) -> list[Desired]:
    """Deployments whose new groups start while older ones still have their memory, and then give it back."""
    return [
        one
        for one in state.to_run.values()
        if replaced(state, one) and has_begun(state, one) and not state.has_given_up(one)
    ]


def starting_without_older(state: FleetState) -> list[Desired]:
    """Deployments with a group that is to start and that has nothing to end first."""
    there = {app.group for app in state.apps}
    return [
        one
        for one in state.to_run.values()
        if not replaced(state, one) and any(_is_missing(state, there, group) for group in one.groups)
    ]


def crowded(state: FleetState) -> dict[str, str]:
    """Deployments that wait, each with the reason: another one is rolling, and they fit once its older groups have ended.

    A start in between would run out of memory, and each rung of its ladder after it. The wait ends with the roll. One that
    begins to roll in this round is rolling, too.
    """
    loading = [one for one in state.to_run.values() if state.is_loading(one)]
    held = waiting(state)
    granted = fitting(held, loading, state.available)
    begins = [one for one in held if granted[one.name]]
    changing = [*rolling(state), *begins]
    if not changing:
        return {}
    left = dict(state.available)
    for one in loading:
        _take(left, needed(one, one.groups))
    for one in begins:
        _take(left, needed(one, filter(one.is_new, one.groups)))
    there = {app.group for app in state.apps}
    words = " and ".join(sorted(one.name for one in changing))
    found: dict[str, str] = {}
    for one in starting_without_older(state):
        needs = needed(one, (group for group in one.groups if _is_missing(state, there, group)))
        if any(left.get(node, need) < need for node, need in needs.items()):
            found[one.name] = f"it fits once the older groups of {words} have ended"
        else:
            _take(left, needs)
    return found


def _is_missing(state: FleetState, there: Collection[GroupKey], group: GroupKey) -> bool:
    return group not in there and not state.standing(group).given_up


def wait_for_memory(state: FleetState, now: Now) -> list[Action]:
    """Records the wait of each generation for memory, once: for nodes that do not report theirs, or for another's to end."""
    held = [state.to_run[name] for name, fits in may_run_beside(state, now).items() if fits is None]
    waits = [
        WaitForMemory(
            deployment=one.name,
            generation=one.generation,
            reason=f"free memory of {', '.join(sorted(_silent(state, one)))} is not known;"
            " the old generation keeps running",
        )
        for one in held
    ]
    waits += [
        WaitForMemory(deployment=name, generation=state.to_run[name].generation, reason=reason)
        for name, reason in crowded(state).items()
    ]
    recorded = state.pending.recorded
    return [wait for wait in waits if recorded.get(f"{wait.deployment}/g{wait.generation}") != wait.reason]


def fitting(
    waiting: Iterable[Desired], loading: Iterable[Desired], available: Mapping[str, int]
) -> dict[str, bool | None]:
    """True for each of `waiting` that fits, by name; None while one of its nodes does not report its memory.

    Memory is granted once: to the first that needs it.

    Args:
        waiting: generations that are to start beside an older one.
        loading: generations that start now and have not taken all of their memory yet.
        available: memory of each node that reports it, bytes.
    """
    left = dict(available)
    for one in loading:
        _take(left, needed(one, one.groups))
    granted: dict[str, bool | None] = {}
    for one in waiting:
        needs = needed(one, filter(one.is_new, one.groups))
        known = needs.keys() <= left.keys()
        granted[one.name] = all(left[node] >= need for node, need in needs.items()) if known else None
        if granted[one.name]:
            _take(left, needs)
    return granted


def needed(desired: Desired, groups: Iterable[GroupKey]) -> dict[str, int]:
    """Bytes that groups of a deployment may take on each node, by the high end of the predicted band."""
    needs: dict[str, int] = {}
    for group in map(desired.plan_of, groups):
        for node in group.choice.candidate.shape.nodes:
            needs[node] = needs.get(node, 0) + int(group.choice.prediction.memory_bytes_per_rank.high)
    return needs


def _is_held_by_gone(state: FleetState, name: str, now: Now) -> bool:
    """True if a generation waits only for nodes that do not come back, and no group that it replaces serves meanwhile.

    A group that it carries over goes on in any case.
    """
    desired = state.to_run[name]
    gone = state.nodes.gone(now) & _silent(state, desired)
    return bool(gone) and not any(state.is_ready(app.group) for app in older(state, desired))


def _silent(state: FleetState, desired: Desired) -> set[str]:
    return needed(desired, filter(desired.is_new, desired.groups)).keys() - state.available.keys()


def _take(left: dict[str, int], needs: Mapping[str, int]) -> None:
    """Subtracts the memory that groups may take."""
    for node, need in needs.items():
        if node in left:
            left[node] -= need
