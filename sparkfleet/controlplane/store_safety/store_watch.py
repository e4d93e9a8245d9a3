"""Notices that the file of an open store is no longer the right one, or that the next process could not open it.

SQLite itself goes on with the file that it has opened, so changes would go into a file that the next process does not find.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sparkfleet.controlplane.state.status import App
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.store_safety.guard import StoreContent, StoreError, StoreFault, judge
from sparkfleet.controlplane.store_safety.moving import require_here
from sparkfleet.controlplane.store_safety.opening import is_corrupt, is_full, unusable

READ_S = 2.0
"""Seconds between two readings through a connection of its own, which sees what is on the disk."""


class StoreWatch:
    """Checks one open store."""

    def __init__(
        self, store: Store, path: Path, fleet: str, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._path = path
        self._fleet = fleet
        self._steady = steady
        self._file = _file(path)
        self._id = store.identity().id
        self._read_at = steady()

    def check(self, apps: Sequence[App]) -> str:
        """Checks that the file is still the store, and that the store is not older than what runs.

        Returns:
            A warning for people: the open store works, but the next process could not open it, or its disk is full. "" for
            none.

        Raises:
            StoreError: the store may no longer be used.
        """
        require_here(self._path.parent)
        if (now := _file(self._path)) != self._file:
            words = "is missing or cannot be reached" if now is None else "was replaced by another file"
            raise StoreError(StoreFault.MISSING, f"The store {self._path} {words}.")
        if self._steady() - self._read_at >= READ_S:
            self._read_at = self._steady()
            self._read()
        known = StoreContent(0, self._store.identity(), self._store.deployments.generations())
        error = judge(
            self._fleet, self._path, known, None, {(app.deployment, app.generation) for app in apps}
        )
        if error is not None:
            raise error
        return self._closed_to_the_next() or self._without_space()

    def _closed_to_the_next(self) -> str:
        if os.access(self._path, os.R_OK | os.W_OK):
            return ""
        return (
            f"The controller's user may not read and write the store {self._path}: this controller works on with the file"
            f" that it has open, the next one would wait for it. Run `chmod 600 {self._path}` on the head."
        )

    def _without_space(self) -> str:
        if not is_full(self._path):
            return ""
        return (
            f"The head's disk with {self._path.parent} is full: what serves goes on, but nothing can be changed or recorded."
            f" Free space on it; `df -h {self._path.parent}` on the head shows it."
        )

    def _read(self) -> None:
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
                (id_,) = db.execute("SELECT id FROM identity").fetchone()
        except sqlite3.Error as error:
            if is_corrupt(error):
                raise unusable(self._path, error) from error
            return  # a full disk, a lock, its mode: reading failed, and the file may be sound
        if id_ != self._id:
            raise StoreError(StoreFault.FOREIGN, f"The store {self._path} was overwritten by another one.")


def corrupted(path: Path, error: Exception) -> StoreError | None:
    """The StoreError for a failure of an open store; None if its content is not the cause."""
    return unusable(path, error) if is_corrupt(error) else None


def _file(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino
