"""Keeps Python's search for cycles short in a process whose every step somebody waits for.

A collection stops the process for about 0.5 µs an object. What a gateway makes lives as long as its streams, so that
objects of a thousand streams, 150 each, were looked at again and again, up to 0.1 s at once. Here each object is looked at
once while it is young, and then left out (`gc.freeze`): reference counts still free it. Cycles that form later wait for a
moment at rest.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

YOUNG = 5_000
"""New objects between two searches among them: each stops the process for 1 to 3 ms."""
_NEVER = 1_000_000
CHECK_S = 30.0
WORTH = 20
"""Searches after which all objects are looked at, at a moment at rest."""
MOST = 20_000
"""Searches after which they are, at any moment: 100 million objects have survived one."""


class StillHeap:
    """The collector of this process. `begin` once it serves."""

    def __init__(self) -> None:
        self.searches = 0
        """Searches among young objects since all were looked at."""

    def begin(self) -> None:
        """Leaves all that exists out of later searches. A process of Ray has half a million objects."""
        self._look_at_all()
        gc.set_threshold(YOUNG, _NEVER, _NEVER)
        gc.callbacks.append(self._after)

    def end(self) -> None:
        """Lets Python search as usual."""
        gc.callbacks.remove(self._after)
        gc.unfreeze()
        gc.set_threshold(700, 10, 10)

    async def keep(self, is_at_rest: Callable[[], bool]) -> None:
        """Looks at all objects at moments at rest, if there were searches, until it is cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            if self.searches >= MOST or (self.searches >= WORTH and is_at_rest()):
                self._look_at_all()

    def _look_at_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self.searches = 0

    def _after(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 0:
            gc.freeze()
            self.searches += 1
