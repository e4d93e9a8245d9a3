"""Keeps memory free on a node while an engine loads: the weights that it reads fill the page cache, which on unified memory
the GPU's driver does not reclaim.

A load that leaves no free blocks ends in NV_ERR_NO_MEMORY and a node that hangs. With the cache dropped whenever less than
8 GiB were free, from launch to the end of the start, every load went through on two Sparks
(tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark, pull request 19; MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks, issue 23).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from sparkfleet.errors import SparkfleetError
from sparkfleet.hostfacts.memory import MemoryMap, ReadMemoryMap
from sparkfleet.units import GIB

FLOOR = 8 * GIB
"""Free memory below which the cache is dropped."""
LEAST_CACHE = 2 * GIB
"""Page cache that is worth dropping."""
EVERY_S = 5.0
"""Seconds between two looks."""

log = logging.getLogger(__name__)


def memory_here() -> MemoryMap:
    """This node's memory. Reads a pseudo-file: it takes microseconds."""
    return ReadMemoryMap.parse(Path(ReadMemoryMap.argv[1]).read_text())


class LoadGuard:
    """Drops the page cache of this node when little memory is free, as long as somebody calls `look`.

    Args:
        drop: drops it.
        read: reads this node's memory.
    """

    def __init__(
        self, drop: Callable[[], Awaitable[None]], read: Callable[[], MemoryMap] = memory_here
    ) -> None:
        self._drop = drop
        self._read = read
        self._due = time.monotonic() + EVERY_S
        self._dropping: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Looks if that is due, and begins to drop the cache if memory is short. Waits for nothing."""
        if time.monotonic() < self._due or (self._dropping is not None and not self._dropping.done()):
            return
        self._due = time.monotonic() + EVERY_S
        try:
            memory = self._read()
        except (OSError, SparkfleetError):
            return
        if memory.free < FLOOR and memory.page_cache > LEAST_CACHE:
            self._dropping = asyncio.create_task(self._drop_now())

    async def _drop_now(self) -> None:
        try:
            await self._drop()
        except (OSError, SparkfleetError):
            log.exception("the page cache could not be dropped during a load")
