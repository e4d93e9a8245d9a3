"""Failures of the controller's own work, and the backoff before it restarts: longer each time.

If its work fails it ends itself, and Ray starts it again at once. The next process reads from the events how often that
happened recently, and why.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable

from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.group.crash_pause import COUNTS_S, pause_s
from sparkfleet.specs.timeouts import Timeouts

log = logging.getLogger(__name__)

SUBJECT = "controller"
KIND = "error"
PAUSES = Timeouts()
"""The pauses of engines: a controller takes about as long to start."""


class ControllerFailures:
    """Failures that ended this fleet's controllers.

    Args:
        store: has those of earlier processes.
        journal: receives a new one.
        clock: Unix seconds, replaceable in tests.
    """

    def __init__(self, store: Store, journal: EventLog, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._journal = journal
        self._clock = clock
        self.warnings: dict[str, str] = {}
        """Troubles in which it works on, by their subject, for people."""
        before = self._recent()
        self.trouble = before[-1] if before else ""
        """Failure of the work, for people; "" while it works. At first the failure of the process before."""

    def works(self) -> None:
        """Clears the trouble of the process before: the work has begun."""
        self.trouble = ""

    def warn(self, subject: str, words: str) -> None:
        """Replaces the warning about a subject; "" ends it."""
        if words:
            self.warnings[subject] = words
        else:
            self.warnings.pop(subject, None)

    async def resumed(self, reason: str) -> None:
        """Records that it works again, and for what it had waited."""
        words = f"the controller works again; it had waited: {reason}"
        await self._journal.record("", 0, SUBJECT, "store", words)

    async def record_hang(self, reason: str) -> None:
        """Records the end of the controller before, which hung; "" for none."""
        if reason:
            await self._journal.record("", 0, SUBJECT, KIND, f"the controller before: {reason}")

    async def slowed(self, work: Awaitable[None]) -> None:
        """Runs the controller's work; if it fails, records the reason and fails after a pause in which the API answers."""
        try:
            await work
        except StoreError:  # its life waits for the store
            raise
        except Exception as error:
            log.exception("the controller's work failed")
            await asyncio.sleep(await self.begin(error))
            raise

    async def begin(self, error: Exception) -> float:
        """Records the controller's end and its reason; returns the pause before it, seconds."""
        why = f"its work failed: {' '.join(repr(error).split())[:500]}"
        try:
            wait_s = pause_s(len(self._recent()), PAUSES)
            when = f" in {wait_s:.0f} s" if wait_s else ""
            self.trouble = f"{why}; it restarts{when}"
            await self._journal.record("", 0, SUBJECT, KIND, self.trouble)
        except sqlite3.Error:  # if failures cannot be counted, it must not restart without a pause
            wait_s = PAUSES.longest_pause_s
            self.trouble = f"{why}; it restarts in {wait_s:.0f} s"
        return wait_s

    def _recent(self) -> list[str]:
        now = self._clock()
        events = self._store.events.since(SUBJECT, KIND, now - COUNTS_S)
        return [event.message for event in events if event.at <= now]
