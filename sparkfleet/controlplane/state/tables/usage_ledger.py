"""Requests and tokens by key, model and day, in the store. Counted once, however often a gateway or the controller restarts.

A gateway replica reports its totals since its start; the store has the last of them beside the days, written in one
transaction, and adds the difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from sparkfleet.controlplane.state.tables.database import Database
from sparkfleet.gateway.report import KeyUsage
from sparkfleet.values import Value

KEEP_DAYS = 400
"""Days that are kept: a year, and a month to look back on it."""
MARK_DAYS = 7
"""Days for which a replica's last totals are kept: it reports every few seconds while it lives."""

_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, key, model) DO UPDATE SET
requests = requests + excluded.requests, uncounted = uncounted + excluded.uncounted,
input = input + excluded.input, output = output + excluded.output
"""
_MARK = "INSERT OR REPLACE INTO usage_marks VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_READ = """
SELECT day, key, model, requests, uncounted, input, output FROM usage WHERE day >= ? ORDER BY day, key, model
"""


class UsageRow(Value):
    """Usage of one model with one key on one day."""

    day: str
    """UTC, as 2026-11-23."""
    key: str
    """Name of the key."""
    model: str
    requests: int
    uncounted: int
    """Requests of them whose answer had no token count."""
    input: int
    """Tokens of prompts."""
    output: int


def day_of(at: float) -> str:
    """The day of a time, Unix seconds, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


class UsageLedger:
    """Usage by day, and the last totals of each gateway replica.

    Args:
        database: keeps them.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, replica: str, totals: Iterable[KeyUsage]) -> None:
        """Adds what a gateway replica has counted since its last totals; writes nothing if that is nothing."""
        more = self._changed(replica, totals)
        if more:
            with self._db.transaction():
                self._add(replica, more, self._db.now())

    def last_days(self, days: int) -> tuple[UsageRow, ...]:
        """Usage of the last days by day, key and model, today included."""
        names = ("day", "key", "model", "requests", "uncounted", "input", "output")
        rows = self._db.execute(_READ, (_days_ago(self._db.now(), max(1, days) - 1),))
        return tuple(UsageRow(**dict(zip(names, row, strict=True))) for row in rows)

    def _changed(self, replica: str, totals: Iterable[KeyUsage]) -> list[KeyUsage]:
        """Totals of a replica that differ from those that were added last."""
        rows = self._db.execute(
            "SELECT key, model, requests, uncounted, input, output FROM usage_marks WHERE replica = ?",
            (replica,),
        )
        known = {(key, model): tuple(numbers) for key, model, *numbers in rows}
        return [one for one in totals if known.get((one.key, one.model)) != _numbers(one)]

    def _add(self, replica: str, totals: Iterable[KeyUsage], now: float) -> None:
        for one in totals:
            row = self._db.execute(
                "SELECT requests, uncounted, input, output FROM usage_marks"
                " WHERE replica = ? AND key = ? AND model = ?",
                (replica, one.key, one.model),
            ).fetchone()
            before = row if row is not None and row[0] <= one.requests else (0, 0, 0, 0)
            more = [max(0, new - old) for new, old in zip(_numbers(one), before, strict=True)]
            self._db.execute(_ADD, (day_of(now), one.key, one.model, *more))
            self._db.execute(_MARK, (replica, one.key, one.model, *_numbers(one), now))
        self._db.execute("DELETE FROM usage_marks WHERE at < ?", (now - MARK_DAYS * 86400,))
        self._db.execute("DELETE FROM usage WHERE day < ?", (_days_ago(now, KEEP_DAYS),))


def _numbers(one: KeyUsage) -> tuple[int, int, int, int]:
    return one.requests, one.uncounted, one.input, one.output


def _days_ago(now: float, days: int) -> str:
    return (datetime.fromtimestamp(now, UTC) - timedelta(days=days)).strftime("%Y-%m-%d")
