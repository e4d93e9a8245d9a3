"""Draft tokens of each deployment's own requests by hour, in the store: what plans know of its text. No text is kept."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

from pydantic import ValidationError

from sparkfleet.controlplane.state.tables.database import Database
from sparkfleet.controlplane.state.tables.draft_traffic import DraftCounts, DraftSetup, DraftTraffic

HOUR_S = 3600
KEEP_HOURS = 14 * 24
"""Hours that count: two weeks have two of each weekday, and after one week a new use of the model outweighs the former."""
HOUR_STEPS = 6_000
"""Steps of one hour that count at most: as many as make one mean (`perf/latency/local_acceptance.py`). A benchmark of a
million steps is one hour among those of the days."""
MOST_ROWS = 20_000
"""Rows that are kept, the newest: sixty setups that serve in every hour."""

_ADD = """
INSERT INTO draft_hours VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (hour, deployment, setup) DO UPDATE SET
steps = excluded.steps, proposed = excluded.proposed, accepted = excluded.accepted, by_position = excluded.by_position
"""
_READ = """
SELECT deployment, setup, hour, steps, proposed, accepted, by_position FROM draft_hours
WHERE hour > ? AND hour <= ? ORDER BY deployment, setup, hour
"""
_FORGET = """
DELETE FROM draft_hours WHERE hour <= ? OR hour > ? OR rowid NOT IN
(SELECT rowid FROM draft_hours ORDER BY hour DESC LIMIT ?)
"""


class DraftHours:
    """Counted steps of speculation by hour, deployment and setup."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, more: Mapping[tuple[str, DraftSetup], DraftCounts]) -> None:
        """Adds what was counted, by deployment and setup, to the present hour; hours that no longer count are dropped."""
        hour = int(self._db.now() // HOUR_S)
        with self._db.transaction():
            for (deployment, setup), counts in more.items():
                key = (hour, deployment, setup.for_disk())
                row = self._db.execute(
                    "SELECT steps, proposed, accepted, by_position FROM draft_hours"
                    " WHERE hour = ? AND deployment = ? AND setup = ?",
                    key,
                ).fetchone()
                now = (_counts(*row) if row else DraftCounts()).plus(counts)
                values = (now.steps, now.proposed, now.accepted, json.dumps(now.by_position))
                self._db.execute(_ADD, (*key, *values))
            self._db.execute(_FORGET, (hour - KEEP_HOURS, hour + 1, MOST_ROWS))

    def traffic(self) -> dict[str, tuple[DraftTraffic, ...]]:
        """Sums of each deployment over the hours that count, by setup, the one with most steps first."""
        now = int(self._db.now() // HOUR_S)
        then, found = self._db.read("draft hours", lambda: (now, self._read(now)))
        return found if then == now else self._read(now)  # hours pass without a write

    def _read(self, now: int) -> dict[str, tuple[DraftTraffic, ...]]:
        hours: dict[tuple[str, str], list[tuple[int, DraftCounts]]] = defaultdict(list)
        for deployment, setup, hour, *counts in self._db.execute(_READ, (now - KEEP_HOURS, now + 1)):
            hours[deployment, setup].append((hour, _counts(*counts)))
        found: dict[str, list[DraftTraffic]] = defaultdict(list)
        for (deployment, text), counted in hours.items():
            if (setup := _setup(text)) is not None:
                found[deployment].append(_traffic(setup, counted))
        return {name: tuple(sorted(each, key=lambda one: -one.steps)) for name, each in found.items()}


def _traffic(setup: DraftSetup, hours: list[tuple[int, DraftCounts]]) -> DraftTraffic:
    total = DraftCounts()
    for _, counts in hours:
        if counts.steps > 0:
            total = total.plus(counts, min(1.0, HOUR_STEPS / counts.steps))
    return DraftTraffic(
        setup=setup,
        since=float(hours[0][0] * HOUR_S),
        steps=round(sum(counts.steps for _, counts in hours)),
        counts=total,
    )


def _counts(steps: float, proposed: float, accepted: float, by_position: str) -> DraftCounts:
    return DraftCounts(
        steps=steps, proposed=proposed, accepted=accepted, by_position=tuple(json.loads(by_position))
    )


def _setup(text: str) -> DraftSetup | None:
    """A stored setup; None if a newer release wrote it."""
    try:
        return DraftSetup.model_validate_json(text)
    except ValidationError:
        return None
