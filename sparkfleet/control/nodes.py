"""The nodes of a fleet as the controller needs them: a small protocol, and a fake. `node_agent` is Ray behind it."""

from __future__ import annotations

from typing import Protocol

from sparkfleet.control.status import NodeReport

Generation = tuple[str, int]
"""A deployment's name and one of its generations."""


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
        self.swept: list[frozenset[Generation]] = []

    async def look(self) -> tuple[NodeReport, ...]:
        """All of them have joined."""
        return tuple(
            NodeReport(name=name, joined=True, memory_available=memory, memory_total=memory)
            for name, memory in self.available.items()
        )

    async def sweep(self, keep: frozenset[Generation]) -> tuple[str, ...]:
        """Remembers what it was told."""
        self.swept.append(keep)
        return ()
