"""Failures of the controller's own work, and the backoff before it restarts: longer each time.

If its work fails it ends itself, and Ray starts it again at once. The next process reads from the events how often that
happened recently, and why.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.group.crash_pause import COUNTS_S, pause_s
from sparkfleet.runtime.processes import processes
from sparkfleet.specs.timeouts import Timeouts

log = logging.getLogger(__name__)

SUBJECT = "controller"
KIND = "error"
PAUSES = Timeouts()
"""The pauses of engines: a controller takes about as long to start."""
LATE_S = 60.0
"""Seconds after which work that has not ended is named: a round takes less than a second, one that starts sixteen groups
some ten, and Ray's own calls have no time limit."""
LIST_LATE_S = 12.0
"""The same for the list of what runs, with which each round begins: Ray Serve answers from memory."""


def serve_pid() -> int | None:
    """The process of Ray Serve's controller under the raylet of this process; None if there is none.

    A search by its name alone would find those of other clusters on this machine as well.
    """
    beside = (one for one in processes() if one.parent == os.getppid())
    return next((one.pid for one in beside if one.command.startswith("ray::ServeController")), None)


class ControllerFailures:
    """Failures that ended this fleet's controllers."""

    def __init__(
        self,
        store: Store,
        event_log: EventLog,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._event_log = event_log
        self._clock = clock
        self._steady = steady
        self._in_hand: list[tuple[str, float, float]] = []
        """Work that has begun and not ended, the outer first: when it began, and the seconds after which it is late."""
        self.warnings: dict[str, str] = {}
        """Troubles in which it works on, by their subject, for people."""
        before = self._recent()
        self.trouble = before[-1] if before else ""
        """Failure of the work, for people; "" while it works. At first the failure of the process before."""

    def works(self) -> None:
        """Clears the trouble of the process before: the work has begun."""
        self.trouble = ""

    @contextmanager
    def working(self, work: str, late_s: float = LATE_S) -> Iterator[None]:
        """Lets `reported` name this work if it takes longer than `late_s`."""
        self._in_hand.append((work, self._steady(), late_s))
        try:
            yield
        finally:
            self._in_hand.pop()

    def reported(self) -> str:
        """The failure, or else the work that does not end, for people; "" while it works."""
        if self.trouble:
            return self.trouble
        for work, began, late_s in reversed(self._in_hand):
            if (took_s := self._steady() - began) >= late_s:
                tens_s = took_s // 10 * 10  # readers of the page get every change
                pid = serve_pid()
                does = (
                    f"`kill -9 {pid}` there lets Ray start another Serve"
                    if pid
                    else "Ray starts another Serve"
                )
                return (
                    f"{work} has not ended for {tens_s:.0f} s: Ray Serve or Ray's GCS on the head does not answer;"
                    f" {does}, and engines go on"
                )
        return ""

    def warn(self, subject: str, words: str) -> None:
        """Replaces the warning about a subject; "" ends it."""
        if words:
            self.warnings[subject] = words
        else:
            self.warnings.pop(subject, None)

    async def resumed(self, reason: str) -> None:
        """Records that it works again, and for what it had waited."""
        words = f"the controller works again; it had waited: {reason}"
        await self._event_log.record("", 0, SUBJECT, "store", words)

    async def record_hang(self, reason: str) -> None:
        """Records the end of the controller before, which hung; "" for none."""
        if reason:
            await self._event_log.record("", 0, SUBJECT, KIND, f"the controller before: {reason}")

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
            await self._event_log.record("", 0, SUBJECT, KIND, self.trouble)
        except sqlite3.Error:  # if failures cannot be counted, it must not restart without a pause
            wait_s = PAUSES.longest_pause_s
            self.trouble = f"{why}; it restarts in {wait_s:.0f} s"
        return wait_s

    def _recent(self) -> list[str]:
        now = self._clock()
        events = self._store.events.since(SUBJECT, KIND, now - COUNTS_S)
        return [event.message for event in events if event.at <= now]
