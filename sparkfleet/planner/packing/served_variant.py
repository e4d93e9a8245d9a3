"""The groups of one variant as they were planned, and the memory that they take on their nodes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparkfleet.planner.types.plan import GroupPlan, Rejection


class ServedVariant(NamedTuple):
    """The groups of a variant, and what was rejected."""

    groups: list[GroupPlan]
    rejected: list[Rejection]
    nearest: Sequence[str] = ()
    """The nearest things that would fit, if there are no groups."""


def nodes_and_bytes_of(group: GroupPlan) -> tuple[tuple[str, ...], float]:
    """The nodes of a group, and the bytes that each of its ranks is counted with on them: those of its largest rung
    there."""
    largest = max(rung.prediction.memory_bytes_per_rank.mid for rung in group.own_rungs)
    return group.choice.candidate.shape.nodes, largest


def noted(group: GroupPlan, note: str) -> GroupPlan:
    """A group with a note on each of its rungs."""
    ladder = tuple(rung.model_copy(update={"notes": (*rung.notes, note)}) for rung in group.ladder)
    return group.model_copy(update={"ladder": ladder})
