"""Events with their reasons, on the disk, and for clients that wait for new ones."""

from __future__ import annotations

import asyncio
import contextlib
import time

from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.store import Store
from sparkfleet.units import moment_words


class EventLog:
    """Writes events and wakes clients that wait for one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._written = asyncio.Condition()
        self._last: dict[tuple[str, str], str] = {}
        """The last message of `record_once`, by subject and kind."""

    async def record(self, deployment: str, generation: int, subject: str, kind: str, message: str) -> None:
        """Writes an event."""
        self._store.events.record(deployment, generation, subject, kind, message)
        await self.announce()

    async def record_once(
        self, deployment: str, generation: int, subject: str, kind: str, message: str
    ) -> None:
        """Writes an event unless it repeats the last message of its kind about this subject; see `settle`."""
        if self._last.get((subject, kind)) != message:
            self._store.events.record(deployment, generation, subject, kind, message)
            self._last[subject, kind] = message  # only after it is written, and before the next wait
            await self.announce()

    async def record_boot(self, node: str, boot: str, up_s: float | None, before_it: str = "") -> None:
        """Writes that a node has another boot id than when it was seen last, also by an earlier controller; keeps the id.

        Args:
            up_s: seconds since that boot; None: not known.
            before_it: the node's last readings before, in words; "": not known.
        """
        before = self._store.boots.known().get(node)
        if before == boot:
            return
        with self._store.transaction():
            self._store.boots.store(node, boot)
            if before is not None:
                at = "" if up_s is None else f" at {moment_words(self._store.now() - up_s)}, {up_s:.0f} s ago"
                words = f"{node} rebooted{at}: its engines ended with it"
                words += f". Its last readings: {before_it}" if before_it else ""
                self._store.events.record("", 0, node, "node", words)
        await self.announce()

    def settle(self, subject: str) -> None:
        """Ends what `record_once` has recorded about a subject: the same words are another event from now on."""
        self._last = {key: message for key, message in self._last.items() if key[0] != subject}

    async def events(self, after: int, deployment: str | None, wait_s: float) -> tuple[Event, ...]:
        """Events with an id above `after`; waits for one, at most `wait_s`."""
        deadline = time.monotonic() + wait_s
        async with self._written:
            while not (found := self._store.events.read(after, deployment)):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._written.wait()
        return found

    async def announce(self) -> None:
        """Wakes clients that wait for events: the caller wrote one, in the transaction of what it changed."""
        async with self._written:
            self._written.notify_all()
