"""Requests and tokens by key, model and day, in the store. Counted once, however often a gateway or the controller restarts.

A gateway replica reports its totals since its start; the store has the highest of them beside the days, written in one
transaction, and adds the difference. Reports may come late and again: of a killed replica there are the last one and a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from sparkfleet.controlplane.state.tables.database import Database
from sparkfleet.gateway.report import KeyUsage
from sparkfleet.values import Value

KEEP_DAYS = 400
"""Days that are kept: a year, and a month to look back on it. Earlier ones, too, until so many others have usage: a clock
that is years ahead for one request may end none."""
MARK_DAYS = 60
"""Days for which a replica's last totals are kept: twice as long as its file (gateway/accounting/usage_journal.py)."""
MARK_REPLICAS = 200
"""Replicas whose last totals are kept for longer: after one write under a clock that is months ahead those of the others
would be added again."""

_NOTHING = (0, 0, 0, 0)

_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, key, model) DO UPDATE SET
requests = requests + excluded.requests, uncounted = uncounted + excluded.uncounted,
input = input + excluded.input, output = output + excluded.output
"""
_MARK = "INSERT OR REPLACE INTO usage_marks VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_FORGET_MARKS = """
DELETE FROM usage_marks WHERE at < ? AND replica NOT IN
(SELECT replica FROM usage_marks GROUP BY replica ORDER BY MAX(at) DESC LIMIT ?)
"""
_FORGET = """
DELETE FROM usage WHERE day < ? AND day NOT IN (SELECT DISTINCT day FROM usage ORDER BY day DESC LIMIT ?)
"""
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


def first_day(days: int, now: float) -> str:
    """The first of the last days, today included. `now`: Unix seconds."""
    return _days_ago(now, max(1, days) - 1)


class UsageLedger:
    """Usage by day, and the last totals of each gateway replica."""

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
        rows = self._db.execute(_READ, (first_day(days, self._db.now()),))
        return tuple(UsageRow(**dict(zip(names, row, strict=True))) for row in rows)

    def _changed(self, replica: str, totals: Iterable[KeyUsage]) -> list[KeyUsage]:
        """Totals of a replica that exceed those that were added."""
        rows = self._db.execute(
            "SELECT key, model, requests, uncounted, input, output FROM usage_marks WHERE replica = ?",
            (replica,),
        )
        known = {(key, model): tuple(numbers) for key, model, *numbers in rows}
        return [one for one in totals if any(_more(one, known.get((one.key, one.model), _NOTHING)))]

    def _add(self, replica: str, totals: Iterable[KeyUsage], now: float) -> None:
        for one in totals:
            row = self._db.execute(
                "SELECT requests, uncounted, input, output FROM usage_marks"
                " WHERE replica = ? AND key = ? AND model = ?",
                (replica, one.key, one.model),
            ).fetchone()
            before = row or _NOTHING
            more = _more(one, before)
            self._db.execute(_ADD, (day_of(now), one.key, one.model, *more))
            totals_now = map(sum, zip(before, more, strict=True))
            self._db.execute(_MARK, (replica, one.key, one.model, *totals_now, now))
        # A key that rests while another is used keeps its mark: without it, its totals would be added again.
        self._db.execute("UPDATE usage_marks SET at = ? WHERE replica = ?", (now, replica))
        self._db.execute(_FORGET_MARKS, (now - MARK_DAYS * 86400, MARK_REPLICAS))
        self._db.execute(_FORGET, (_days_ago(now, KEEP_DAYS), KEEP_DAYS))


def _more(one: KeyUsage, before: tuple[int, ...]) -> list[int]:
    counted = (one.requests, one.uncounted, one.input, one.output)
    return [max(0, new - old) for new, old in zip(counted, before, strict=True)]


def _days_ago(now: float, days: int) -> str:
    return (datetime.fromtimestamp(now, UTC) - timedelta(days=days)).strftime("%Y-%m-%d")
