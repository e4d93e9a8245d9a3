"""Events: what has happened and why, on the disk, and for those who wait for more."""

from __future__ import annotations

import asyncio
import contextlib
import time

from sparkfleet.controlplane.state.store import Event, Store


class EventLog:
    """Writes events and wakes whoever waits for one.

    Args:
        store: keeps them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._written = asyncio.Condition()
        self._said: dict[str, str] = {}

    async def record(self, deployment: str, generation: int, subject: str, kind: str, message: str) -> None:
        """Write an event."""
        self._store.record(deployment, generation, subject, kind, message)
        await self._tell()

    async def record_once(
        self, deployment: str, generation: int, subject: str, kind: str, message: str
    ) -> None:
        """Write an event unless it says what was written here last of this subject."""
        if self._said.get(subject) != message:
            self._store.record(deployment, generation, subject, kind, message)
            self._said[subject] = message  # only what is written, and before anything is waited for
            await self._tell()

    async def events(self, after: int, deployment: str | None, wait_s: float) -> tuple[Event, ...]:
        """Events with an id above `after`; waits for one, at most `wait_s`."""
        deadline = time.monotonic() + wait_s
        async with self._written:
            while not (found := self._store.events(after, deployment)):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._written.wait()
        return found

    async def _tell(self) -> None:
        async with self._written:
            self._written.notify_all()
