"""Candidates that failed to start on this fleet, for the next plan."""

from __future__ import annotations

import math

from sparkfleet.controlplane.state.tables.database import Database
from sparkfleet.planner.rules.failure_memory import RememberedFailure


class FailureTable:
    """Failed candidates by their fingerprint, each for a limited time."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def all(self) -> tuple[RememberedFailure, ...]:
        """Candidates that failed to start on this fleet, oldest first."""
        rows = self._db.execute(
            "SELECT fingerprint, words, until FROM failures WHERE until IS NULL OR until > ? ORDER BY rowid",
            (self._db.now(),),
        )
        return tuple(
            RememberedFailure(fingerprint=one, words=words, until=until) for one, words, until in rows
        )

    def remember(self, fingerprint: str, words: str, lasts_s: float) -> None:
        """Stores a candidate that failed to start, for this many seconds; expired ones are dropped."""
        now = self._db.now()
        self._db.execute("DELETE FROM failures WHERE until <= ?", (now,))
        until = None if math.isinf(lasts_s) else now + lasts_s
        self._db.execute("INSERT OR REPLACE INTO failures VALUES (?, ?, ?)", (fingerprint, words, until))

    def forget(self, fingerprint: str) -> None:
        """Removes the failure of a candidate that has started."""
        self._db.execute("DELETE FROM failures WHERE fingerprint = ?", (fingerprint,))
