"""API keys: names, hashes, settings and their last use."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from sparkfleet.controlplane.state.store_rows import key_of, key_row, key_settings
from sparkfleet.controlplane.state.tables.database import Database
from sparkfleet.gateway.routing_table import KeyEntry

USED_S = 60.0
"""The last use of a key is stored to the minute: each write costs the head's disk 4 ms."""

_ADD = "INSERT INTO keys (id, name, sha256, settings, since) VALUES (?, ?, ?, ?, ?)"


class KeyTable:
    """The keys of a fleet, without their texts."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def all(self) -> tuple[KeyEntry, ...]:
        """All API keys: names and hashes."""
        return tuple(key for key, _ in self.created())

    def created(self) -> tuple[tuple[KeyEntry, float], ...]:
        """All API keys with the time of their creation, Unix seconds."""
        return self._db.read("keys", self._read)

    def _read(self) -> tuple[tuple[KeyEntry, float], ...]:
        rows = self._db.execute("SELECT id, name, sha256, settings, since FROM keys ORDER BY since, id")
        return tuple((key_of(*row), since) for *row, since in rows)

    def named(self, name_or_id: str) -> KeyEntry | None:
        """A key by its name or id; None if there is none."""
        return next((key for key in self.all() if name_or_id in (key.name, key.id)), None)

    def add(self, key: KeyEntry) -> bool:
        """Stores a key; False if the name is taken."""
        try:
            with self._db.changing():
                self._db.execute(_ADD, key_row(key, self._db.now()))
        except sqlite3.IntegrityError:
            return False
        return True

    def change(self, key: KeyEntry) -> None:
        """Replaces the digest and the settings of a key with this id."""
        with self._db.changing():
            self._db.execute(
                "UPDATE keys SET sha256 = ?, settings = ? WHERE id = ?",
                (key.sha256, key_settings(key), key.id),
            )

    def remove(self, name_or_id: str) -> KeyEntry | None:
        """Deletes a key by its name or id; None if there is none."""
        key = self.named(name_or_id)
        if key is not None:
            with self._db.changing():
                self._db.execute("DELETE FROM keys WHERE id = ?", (key.id,))
        return key

    def replace_all(self, keys: Iterable[KeyEntry]) -> None:
        """Replaces all keys by these. To be called in a change."""
        self._db.execute("DELETE FROM keys")
        self._db.executemany(_ADD, [key_row(key, self._db.now()) for key in keys])

    def used(self) -> dict[str, float]:
        """Unix seconds of the last stored use of each key that was used, by its id."""
        return dict(self._db.execute("SELECT id, used FROM keys WHERE used IS NOT NULL"))

    def use(self, used: Mapping[str, float]) -> None:
        """Stores the last use of keys, by their ids. Uses within `USED_S` of a stored one are not written.

        A stored use after now is of a clock that was set back: it counts as none.
        """
        now = self._db.now()
        known = {key: at for key, at in self.used().items() if at <= now}
        later = [(at, key) for key, at in used.items() if at - known.get(key, 0.0) >= USED_S]
        if later:
            self._db.executemany("UPDATE keys SET used = ? WHERE id = ?", later)
