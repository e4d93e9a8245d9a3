"""Events with their reasons."""

from __future__ import annotations

from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.store_rows import event_of
from sparkfleet.controlplane.state.tables.database import Database
from sparkfleet.units import moment_words

KEEP_EVENTS = 10_000
KEEP_PROGRESS = 1000
"""Events kept of the progress of starts: the load of one large model writes a thousand, and must not push out the reason
for another one's failure."""


class EventTable:
    """The newest events."""

    def __init__(self, database: Database, keep: int) -> None:
        self._db = database
        self._keep = keep

    def record(
        self, deployment: str, generation: int, subject: str, kind: str, message: str, *, request: str = ""
    ) -> Event:
        """Writes an event, with the id of the request that caused it; the oldest beyond the kept ones are dropped."""
        row = (self._db.now(), deployment, generation, subject, kind, message)
        cursor = self._db.execute(
            "INSERT INTO events (at, deployment, generation, subject, kind, message, request)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*row, request),
        )
        assert cursor.lastrowid is not None
        self._db.execute("DELETE FROM events WHERE id <= ?", (cursor.lastrowid - self._keep,))
        if kind == "progress":
            self._db.execute(
                "DELETE FROM events WHERE kind = ? AND id <= ?", (kind, cursor.lastrowid - KEEP_PROGRESS)
            )
        return event_of((cursor.lastrowid, *row))

    def read(self, after: int = 0, deployment: str | None = None, limit: int = 1000) -> tuple[Event, ...]:
        """Events with an id above `after`, oldest first."""
        rows = self._db.execute(
            "SELECT id, at, deployment, generation, subject, kind, message FROM events"
            " WHERE id > ? AND (? IS NULL OR deployment = ?) ORDER BY id LIMIT ?",
            (after, deployment, deployment, limit),
        )
        return tuple(map(event_of, rows))

    def since(self, subject: str, kind: str, at: float) -> tuple[Event, ...]:
        """Events of one kind about one subject after this moment (Unix seconds), oldest first."""
        rows = self._db.execute(
            "SELECT id, at, deployment, generation, subject, kind, message FROM events"
            " WHERE subject = ? AND kind = ? AND at > ? ORDER BY id",
            (subject, kind, at),
        )
        return tuple(map(event_of, rows))

    def last_of(self, deployment: str, kind: str, beginning: str) -> Event | None:
        """The last event of this kind about a deployment whose message begins with these words."""
        row = self._db.execute(
            "SELECT id, at, deployment, generation, subject, kind, message FROM events"
            " WHERE deployment = ? AND kind = ? AND substr(message, 1, ?) = ? ORDER BY id DESC LIMIT 1",
            (deployment, kind, len(beginning), beginning),
        ).fetchone()
        return event_of(row) if row else None

    def last_with(self, kind: str, words: str, since: float) -> dict[str, float]:
        """Time, by deployment, of the last event of this kind whose message has these words, after this moment."""
        rows = self._db.execute(
            "SELECT deployment, max(at) FROM events WHERE at > ? AND kind = ? AND instr(message, ?) > 0"
            " GROUP BY deployment",
            (since, kind, words),
        )
        return dict(rows.fetchall())

    def of_request(self, request: str) -> Event | None:
        """The event of a change that a request with this id has made; None if it made none, and for the id ""."""
        if not request:
            return None
        row = self._db.execute(
            "SELECT id, at, deployment, generation, subject, kind, message FROM events WHERE request = ?",
            (request,),
        ).fetchone()
        return event_of(row) if row else None

    def subjects(self, deployment: str, kind: str) -> frozenset[str]:
        """Subjects of a deployment's events of one kind since it was last deleted, as far as they are kept."""
        return self._db.read(f"{kind} {deployment}", lambda: self._read_subjects(deployment, kind))

    def _read_subjects(self, deployment: str, kind: str) -> frozenset[str]:
        rows = self._db.execute(
            "SELECT DISTINCT subject FROM events WHERE deployment = ? AND kind = ? AND id > coalesce("
            "(SELECT max(id) FROM events WHERE deployment = ? AND kind = 'unwanted'), 0)",
            (deployment, kind, deployment),
        )
        return frozenset(subject for (subject,) in rows)

    def last_id(self) -> int:
        """Id of the newest event, 0 if there is none."""
        row = self._db.execute("SELECT max(id) FROM events").fetchone()
        return row[0] or 0

    def last_deletion(self, deployment: str) -> str:
        """The last deletion of a deployment, for people; "" if none is kept."""
        row = self._db.execute(
            "SELECT message, at FROM events WHERE deployment = ? AND kind = 'unwanted' ORDER BY id DESC LIMIT 1",
            (deployment,),
        ).fetchone()
        return f"{row[0]}, {moment_words(row[1])}" if row else ""
