"""Protocol of the controller's access to the nodes of a fleet. `ray/node_actor.py` has the one over Ray."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol

from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.group.group_name import GroupKey
from sparkfleet.runtime.base import RankId


class RanksOf(Container[RankId]):
    """All ranks of some groups."""

    def __init__(self, groups: Iterable[GroupKey]) -> None:
        self._groups = {tuple(one) for one in groups}

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, RankId) and (rank.deployment, rank.generation, rank.replica) in self._groups


class Nodes(Protocol):
    """The controller's access to the nodes of a fleet."""

    async def look(self) -> tuple[NodeReport, ...]:
        """Current state of every node of the inventory, in its order."""
        ...

    async def sweep(self, keep: frozenset[GroupKey]) -> tuple[str, ...]:
        """Kills the ranks of all other groups on all nodes that answer; returns lines about them."""
        ...
