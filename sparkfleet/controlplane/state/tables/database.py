"""The SQLite file under the store: its connection, transactions, kept answers, identity and count of changes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from sparkfleet.controlplane.state.schema import migrate
from sparkfleet.controlplane.state.store_rows import StoreIdentity

T = TypeVar("T")


class Database:
    """One SQLite file. Not thread-safe: the controller calls it from its event loop only.

    Every write is on the disk when the call returns (about 4 ms each on an ordinary disk).

    Args:
        path: the database file; created if it is missing, in a directory of mode 0700.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        """The database file."""
        self.now = clock
        """Unix seconds."""
        self._db = sqlite3.connect(path, isolation_level=None, timeout=10)
        self._kept: dict[str, tuple[int, Any]] = {}
        """Answers as read last, each with the number of writes until then."""
        self._parsed: dict[str, Any] = {}
        """Documents as read last. Nothing else writes the file."""
        self._changes = 0
        """Changes since it was opened."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change of the desired state or the keys, once it is on the disk."""
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            with self.transaction():
                migrate(self._db)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Runs a statement; only tables call this."""
        return self._db.execute(sql, values)

    def executemany(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        """Runs a statement once for each row."""
        self._db.executemany(sql, rows)

    # identity

    def identity(self) -> StoreIdentity:
        """The identity."""
        return self.read("identity", self._read_identity)

    def _read_identity(self) -> StoreIdentity:
        id_, fleet, changes = self._db.execute("SELECT id, fleet, changes FROM identity").fetchone()
        return StoreIdentity(id=id_, fleet=fleet, changes=changes)

    def identify(self, identity: StoreIdentity) -> None:
        """Replaces its identity."""
        self._db.execute(
            "UPDATE identity SET id = ?, fleet = ?, changes = ?",
            (identity.id, identity.fleet, identity.changes),
        )

    # kept answers

    @property
    def writes(self) -> int:
        """Rows written since it was opened; equal numbers mean that nothing was written between."""
        return self._db.total_changes

    def read(self, name: str, read: Callable[[], T]) -> T:
        """The answer of `read`, kept until something is written: a round of the controller reads each several times.

        Nothing is kept in a transaction, because what it wrote may be taken back.
        """
        if self._db.in_transaction:
            return read()
        writes = self.writes
        if (known := self._kept.get(name)) is None or known[0] != writes:
            known = self._kept[name] = (writes, read())
        found: T = known[1]
        return found

    def parse(self, name: str, read: Callable[[], T]) -> T:
        """The answer of `read`, kept until `forget_read`: documents are long, and other writes do not change them."""
        if name not in self._parsed:
            self._parsed[name] = read()
        found: T = self._parsed[name]
        return found

    def forget_read(self) -> None:
        """Lets everything be read again; to be called before documents are written."""
        self._parsed, self._kept = {}, {}

    # transactions

    @contextmanager
    def together(self) -> Iterator[None]:
        """One transaction for a change and its event.

        On a full disk both are stored or neither: a command that failed has changed nothing. Nothing may be awaited inside,
        because all coroutines of a controller share the connection.
        """
        changes = self._changes
        with self.transaction():
            yield
        if self._changes != changes:
            self._changed()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A change of the desired state or the keys; a transaction of its own unless it is part of one."""
        outer = self._db.in_transaction
        with self.transaction():
            yield
            self._db.execute("UPDATE identity SET changes = changes + 1")
        self._changes += 1
        if not outer:
            self._changed()

    def _changed(self) -> None:
        """Moves the change from SQLite's log into the file itself, and announces it.

        The log is lost if the file is damaged or replaced for a moment and somebody opens it meanwhile: SQLite writes it
        into what it finds there. What is left in it are events.
        """
        with suppress(sqlite3.Error):  # a full disk: the change is in the log, and the next one moves both
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self.on_change()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction, or a part of one; taken back as a whole, with all that was read in it, if a body fails."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self.forget_read()
            if self._db.in_transaction:  # on a full disk SQLite may already have ended it
                self._db.execute("ROLLBACK")
            raise
