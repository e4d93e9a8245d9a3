"""Admission of new generations to the memory that is free beside the running groups. Granted once, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkfleet.controlplane.desired import Desired, GroupKey
from sparkfleet.controlplane.policy.actions import Action, WaitForMemory
from sparkfleet.controlplane.policy.state import FleetState, Now, has_begun, older, replaced


def waiting(state: FleetState) -> list[Desired]:
    """Deployments with groups that are to start beside older ones."""
    return [
        desired
        for desired in state.wanted.values()
        if replaced(state, desired)
        and not has_begun(state, desired)
        and any(map(desired.is_new, desired.groups))
        and not state.has_given_up(desired)
    ]


def room(state: FleetState, now: Now) -> dict[str, bool | None]:
    """True for each deployment whose waiting generation fits beside the running groups; None while that is unknown."""
    if not (held := waiting(state)):
        return {}
    loading = filter(state.is_loading, state.wanted.values())
    granted = fitting(held, loading, state.available)
    return {
        # It is placed although a node is gone, and then takes a rung without that node: no group that serves is lost.
        name: False if fits is None and _is_held_by_gone(state, name, now) else fits
        for name, fits in granted.items()
    }


def wait_for_memory(state: FleetState, now: Now) -> list[Action]:
    """Records the wait of each generation for nodes that do not report their free memory, once."""
    held = [state.wanted[name] for name, fits in room(state, now).items() if fits is None]
    waits = [
        WaitForMemory(
            deployment=one.name,
            generation=one.generation,
            reason=f"free memory of {', '.join(sorted(_silent(state, one)))} is not known;"
            " the old generation keeps running",
        )
        for one in held
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
    room: dict[str, bool | None] = {}
    for one in waiting:
        needs = needed(one, filter(one.is_new, one.groups))
        known = needs.keys() <= left.keys()
        room[one.name] = all(left[node] >= need for node, need in needs.items()) if known else None
        if room[one.name]:
            _take(left, needs)
    return room


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
    desired = state.wanted[name]
    gone = state.nodes.gone(now) & _silent(state, desired)
    return bool(gone) and not any(state.is_ready(app.group) for app in older(state, desired))


def _silent(state: FleetState, desired: Desired) -> set[str]:
    return needed(desired, filter(desired.is_new, desired.groups)).keys() - state.available.keys()


def _take(left: dict[str, int], needs: Mapping[str, int]) -> None:
    """Subtracts the memory that groups may take."""
    for node, need in needs.items():
        if node in left:
            left[node] -= need
