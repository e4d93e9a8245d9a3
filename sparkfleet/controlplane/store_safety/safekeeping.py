"""Keeps copies of an open store: a checked file after each change and every hour, and what is applied as JSON.

Begins and ends of starts are copied as well, without being changes: a new head that has a copy may take no start that took
the lost one down to another node, nor hold up a group for one that had ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.store_copies import Occasion
from sparkfleet.controlplane.store_safety.applied import Applied, applied_in, write_applied
from sparkfleet.controlplane.store_safety.copies import HOURLY_S, copies, remove_parts, starts_in, take_copy
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.controlplane.store_safety.mark import is_kept, mark_of, write_mark
from sparkfleet.errors import SparkfleetError
from sparkfleet.group.group_name import GroupKey
from sparkfleet.runtime.files.fleet_paths import FleetPaths

log = logging.getLogger(__name__)

LOOK_S = 0.5
AGAIN_S = 30.0
"""Seconds until a copy that failed is tried again."""

OnTrouble = Callable[[str], None]


class Safekeeping:
    """Copies one store while it is in use. `warn`: receives the reason if a copy cannot be made; "" as soon as it can."""

    def __init__(
        self, paths: FleetPaths, store: Store, warn: OnTrouble, clock: Callable[[], float] = time.time
    ) -> None:
        self._paths = paths
        self._store = store
        self._warn = warn
        self._clock = clock
        self._writes = -1
        self._applied: Applied | None = None
        remove_parts(paths)
        self._newest: Path | None = None
        """The newest copy of a change."""
        self._starting: frozenset[GroupKey] = frozenset()
        """Groups whose start is under way in it."""
        self._copied, self._hourly_at = self._last_copies()
        self._wait_until = 0.0

    async def run(self) -> None:
        """Copies until it is cancelled."""
        while True:
            try:
                await self.look()
            except Exception:
                # A store that is away for a moment, which the controller's round names, may not end all later copies.
                log.exception("the store could not be looked at")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Copies what has changed since the last look, and writes the mark again if a file of it is gone or spoilt."""
        self._keep_mark()
        if self._store.writes != self._writes:
            self._writes = self._store.writes
            self._write_applied()
        if time.monotonic() >= self._wait_until and (occasion := self._due()):
            await self._copy(occasion)

    def _keep_mark(self) -> None:
        if is_kept(self._paths):
            return
        try:
            write_mark(self._paths, mark_of(self._store))
            log.warning("the mark of the store was gone or spoilt: it was written again")
        except OSError as error:
            log.warning("the mark of the store could not be written: %s", error)

    def _write_applied(self) -> None:
        applied = applied_in(self._store)
        if applied == self._applied:
            return
        try:
            write_applied(self._paths, applied)
            self._applied = applied
        except OSError as error:
            log.warning("%s could not be written: %s", self._paths.applied, error)

    def _due(self) -> Occasion | None:
        if (
            self._store.identity().changes != self._copied
            or self._store.groups.starts().keys() != self._starting
        ):
            return "change"
        # A clock that was set back counts as an hour.
        return "hourly" if not 0 <= self._clock() - self._hourly_at < HOURLY_S else None

    async def _copy(self, occasion: Occasion) -> None:
        changes, starting = self._store.identity().changes, frozenset(self._store.groups.starts())
        try:
            made = await asyncio.to_thread(take_copy, self._paths, occasion, self._clock())
        except (StoreError, OSError) as error:
            words = error.what if isinstance(error, SparkfleetError) else str(error)
            log.warning("the store could not be copied: %s", words)
            self._warn(f"The store could not be copied: {words}")
            self._wait_until = time.monotonic() + AGAIN_S
            return
        self._warn("")
        if occasion == "change":
            # The last changes stay, not the last starts.
            if self._newest is not None and changes == self._copied:
                self._newest.unlink(missing_ok=True)
            self._copied, self._newest, self._starting = changes, made, starting
        else:
            self._hourly_at = self._clock()

    def _last_copies(self) -> tuple[int, float]:
        """Changes that the newest copy of this store has, -1 if there is none; and the moment of the last hourly one."""
        id_ = self._store.identity().id
        own = [copy for copy in copies(self._paths) if copy.id == id_ and not copy.trouble]
        if of_changes := next((copy for copy in own if copy.occasion == "change"), None):
            self._newest = self._paths.backups / of_changes.name
            self._starting = starts_in(self._newest)
        hourly = [copy.at for copy in own if copy.occasion == "hourly"]
        return max((copy.changes for copy in own), default=-1), max(hourly, default=float("-inf"))
