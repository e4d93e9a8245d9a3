"""Reads the space of disks without waiting for one that hangs, as that of a NAS which is away does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from sparkfleet.telemetry.node_readings import DiskSpace, read_disks

LIMIT_S = 5.0


class DiskReader:
    """Reads disks in a thread. One that hangs keeps that thread, and no other one is begun meanwhile."""

    def __init__(self) -> None:
        self._reading: asyncio.Task[dict[str, DiskSpace]] | None = None

    async def read(self) -> Mapping[str, DiskSpace]:
        """Space by name (`catalogue.PLACES`). Empty if a disk hangs: the last figures would look like new ones."""
        self._reading = self._reading or asyncio.create_task(asyncio.to_thread(read_disks))
        done, _ = await asyncio.wait([self._reading], timeout=LIMIT_S)
        if not done:
            return {}
        reading, self._reading = self._reading, None
        return reading.result()
