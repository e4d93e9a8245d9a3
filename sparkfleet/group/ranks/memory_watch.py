"""Memory of the nodes of a group's ranks: stops the group before one of them freezes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from sparkfleet.errors import Cause, EngineError, NodeError
from sparkfleet.group.ranks.rank_holder import RankHolder
from sparkfleet.group.tasks import cancel
from sparkfleet.units import gib

FLOOR_BYTES = {"cuda": 3 << 30, "cpu": 256 << 20}
"""MemAvailable below which a group is stopped. A Spark without memory does not recover: below 2 to 3 GiB the host freezes
and has to be switched off (guardkit/dgx-spark, flowy0/gb10-experiments). A CPU node swaps or kills: its floor is lower."""
WEDGES = 2 / 3
"""Share of the memory floor below which every group of a node is stopped. Above it only the group that started last is
stopped; the others wait for its memory for as long as a start does."""
MEMORY_S = 1.0
"""Seconds between two readings of a node's memory: an engine that loads takes gigabytes in that time."""
FOLLOWED_S = 1.0
"""Time limit for a node with a shortage to report which group started last: its memory is not read meanwhile."""


class MemoryWatch:
    """Reads the memory of the ranks' nodes, and ends the group that causes a shortage.

    Args:
        holders: the holder of each rank, in order.
        device: of the group's engine, which decides the floor.
        yields_s: time that a group which started later has to resolve a shortage.
    """

    def __init__(self, holders: Sequence[RankHolder], device: str, yields_s: float) -> None:
        self._holders = holders
        self._floor = FLOOR_BYTES[device]
        self._yields_s = yields_s
        self.low: dict[int, int] = {}
        """Lowest memory that was read on each rank's node since its start, bytes."""

    async def watch(self) -> None:
        """Reads every node's memory once a second, for ever, and independently: a node that does not answer delays no other.

        Raises:
            EngineError: a node is about to freeze.
        """
        watches = [asyncio.create_task(self._watch_node(index)) for index in range(len(self._holders))]
        try:
            await asyncio.gather(*watches)
        finally:
            await cancel(*watches)

    async def available(self) -> list[int]:
        """Memory available on each rank's node, bytes."""
        return await asyncio.gather(*(self._read(index) for index in range(len(self._holders))))

    async def _watch_node(self, index: int) -> None:
        until: float | None = None  # until then a group that was started later has to resolve the shortage
        while True:
            with suppress(NodeError):  # a node that is gone shows as an exit of its rank
                memory = await self._read(index)
                wedges = memory < self._floor * WEDGES
                if memory >= self._floor:
                    if until is not None:
                        self.low[index] = (
                            memory  # another group caused the shortage: it explains no later failure
                        )
                    until = None
                elif until is None and not wedges and await self._is_followed(index):
                    until = time.monotonic() + self._yields_s
                elif until is None or wedges or time.monotonic() >= until:
                    raise _runs_out(memory, self._holders[index].node)
            await asyncio.sleep(MEMORY_S)

    async def _is_followed(self, index: int) -> bool:
        """True if a group that was started later is on the same node; False if the node does not report."""
        try:
            async with asyncio.timeout(FOLLOWED_S):
                return await self._holders[index].is_followed()
        except (NodeError, TimeoutError):
            return False

    async def _read(self, index: int) -> int:
        """Memory available on one rank's node, bytes; keeps the lowest reading."""
        memory = await self._holders[index].memory()
        self.low[index] = min(memory, self.low.get(index, memory))
        return memory


def _runs_out(memory: int, node: str) -> EngineError:
    return EngineError(
        f"{node} has only {gib(memory, exact=True)} of memory left: the group was stopped.",
        means="A host without memory does not recover: it has to be switched off.",
        do="Set a smaller context or concurrency; `sparkfleet plan` shows which ones fit.",
        because=Cause.MEMORY,
    )
