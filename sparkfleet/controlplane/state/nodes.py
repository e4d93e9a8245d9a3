"""Protocol of the controller's access to the nodes of a fleet, and a fake. `ray/node_actor.py` has the one over Ray."""

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


class FakeNodes:
    """Nodes in memory only, for tests of the controller."""

    def __init__(self, available: dict[str, int]) -> None:
        self.available = available
        self.boots = dict.fromkeys(available, "first")
        self.away: set[str] = set()
        self.swept: list[frozenset[GroupKey]] = []

    async def look(self) -> tuple[NodeReport, ...]:
        """All nodes, of which those that are away have not joined."""
        return tuple(
            NodeReport(
                name=name, joined=True, memory_available=memory, memory_total=memory, boot=self.boots[name]
            )
            if name not in self.away
            else NodeReport(name=name, joined=False)
            for name, memory in self.available.items()
        )

    async def sweep(self, keep: frozenset[GroupKey]) -> tuple[str, ...]:
        """Records its argument."""
        self.swept.append(keep)
        return ()
