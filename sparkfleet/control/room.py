"""Whether a new generation fits into memory beside what runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkfleet.control.store import Desired
from sparkfleet.planning.plan import DeploymentPlan


def fitting(
    waiting: Iterable[Desired], loading: Iterable[Desired], available: Mapping[str, int]
) -> dict[str, bool | None]:
    """Whether each of `waiting` fits, by name; None as long as one of its nodes does not say.

    Memory is granted once: to the first of those that want it.

    Args:
        waiting: those that are to be started beside an older generation.
        loading: those that start now; what they will take is not all taken yet.
        available: memory of each node that says it, bytes.
    """
    left = dict(available)
    for one in loading:
        _take(left, one.plan)
    room: dict[str, bool | None] = {}
    for one in waiting:
        needs = needed(one.plan)
        known = needs.keys() <= left.keys()
        room[one.name] = all(left[node] >= need for node, need in needs.items()) if known else None
        if room[one.name]:
            _take(left, one.plan)
    return room


def needed(plan: DeploymentPlan) -> dict[str, int]:
    """Bytes that the groups of a plan may take on each node, by the high end of what is predicted."""
    needs: dict[str, int] = {}
    for group in plan.groups:
        for node in group.choice.candidate.shape.nodes:
            needs[node] = needs.get(node, 0) + int(group.choice.prediction.memory_bytes_per_rank.high)
    return needs


def _take(left: dict[str, int], plan: DeploymentPlan) -> None:
    """Count what the groups of a plan may take as taken."""
    for node, need in needed(plan).items():
        if node in left:
            left[node] -= need
