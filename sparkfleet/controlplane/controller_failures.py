"""Failures of the controller's own work, and the backoff before it restarts: longer each time.

Where its work fails it ends itself, and Ray starts it again at once. What the next process has to know of that is among
the events: how often it happened of late, and why.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable

from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.store import Store
from sparkfleet.group.crash_pause import COUNTS_S, pause_s
from sparkfleet.specs.timeouts import Timeouts

log = logging.getLogger(__name__)

SUBJECT = "controller"
KIND = "error"
PAUSES = Timeouts()
"""Those of engines: a controller is as much work to start."""


class ControllerFailures:
    """Ends of this fleet's controllers.

    Args:
        store: has those of its older processes.
        journal: where an end is written.
        clock: Unix seconds, replaceable in tests.
    """

    def __init__(self, store: Store, journal: EventLog, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._journal = journal
        self._clock = clock
        before = self._of_late()
        self.trouble = before[-1] if before else ""
        """Why the work does not go on, for people; "" if it does. At first why it did not go on before."""

    def works(self) -> None:
        """The work has begun: what ended it before is over."""
        self.trouble = ""

    async def slowed(self, work: Awaitable[None]) -> None:
        """Do the controller's work; where it fails, say why, and fail after a pause, in which the API still answers."""
        try:
            await work
        except Exception as error:
            log.exception("the controller's work failed")
            await asyncio.sleep(await self.begin(error))
            raise

    async def begin(self, error: Exception) -> float:
        """Say that the controller ends, and why; how long it has to wait before it does, seconds."""
        why = f"its work failed: {' '.join(repr(error).split())[:500]}"
        try:
            wait_s = pause_s(len(self._of_late()), PAUSES)
            when = f" in {wait_s:.0f} s" if wait_s else ""
            self.trouble = f"{why}; it is started again{when}"
            await self._journal.record("", 0, SUBJECT, KIND, self.trouble)
        except sqlite3.Error:  # what cannot be counted must not go round without a pause
            wait_s = PAUSES.longest_pause_s
            self.trouble = f"{why}; it is started again in {wait_s:.0f} s"
        return wait_s

    def _of_late(self) -> list[str]:
        now = self._clock()
        events = self._store.events_since(SUBJECT, KIND, now - COUNTS_S)
        return [event.message for event in events if event.at <= now]
