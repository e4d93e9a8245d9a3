"""The nodes of a fleet as the controller needs them: a small protocol, and a fake. `node_agent` is Ray behind it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol

from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.runtime.base import RankId

Generation = tuple[str, int]
"""A deployment's name and one of its generations."""


class RanksOf(Container[RankId]):
    """All ranks of some generations."""

    def __init__(self, generations: Iterable[Generation]) -> None:
        self._generations = {tuple(one) for one in generations}

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, RankId) and (rank.deployment, rank.generation) in self._generations


class Nodes(Protocol):
    """The nodes of a fleet, as the controller needs them."""

    async def look(self) -> tuple[NodeReport, ...]:
        """Every node of the inventory, in its order, as it is now."""
        ...

    async def sweep(self, keep: frozenset[Generation]) -> tuple[str, ...]:
        """Kill what is left of ranks on all nodes that answer, except of these; says what was killed."""
        ...


class FakeNodes:
    """Nodes in memory only, for tests of what decides."""

    def __init__(self, available: dict[str, int]) -> None:
        self.available = available
        self.boots = dict.fromkeys(available, "first")
        self.away: set[str] = set()
        self.swept: list[frozenset[Generation]] = []

    async def look(self) -> tuple[NodeReport, ...]:
        """All of them have joined, but those that are away."""
        return tuple(
            NodeReport(
                name=name, joined=True, memory_available=memory, memory_total=memory, boot=self.boots[name]
            )
            if name not in self.away
            else NodeReport(name=name, joined=False)
            for name, memory in self.available.items()
        )

    async def sweep(self, keep: frozenset[Generation]) -> tuple[str, ...]:
        """Remembers what it was told."""
        self.swept.append(keep)
        return ()
