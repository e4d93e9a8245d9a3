"""Parts of the knowledge: their entries, the age of the newest one, and the age that is too old.

The dates are those of the entries: the day, month or year in which something was published, or its sources were read.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from datetime import date, timedelta
from functools import cache
from typing import NamedTuple

from sparkfleet.knowledge.data_file import packaged, sections
from sparkfleet.knowledge.published.factors import FACTORS
from sparkfleet.values import Value


class _Source(NamedTuple):
    file: str
    counted: tuple[str, ...]
    """Sections with the entries."""
    fresh_days: int
    do: str


GUIDE = "docs/knowledge.md"

_SOURCES: dict[str, _Source] = {
    "images": _Source("engines/images.yaml", ("images",), 45, "add images"),
    "speculators": _Source("models/speculators.yaml", ("speculators",), 45, "add drafts"),
    "models": _Source("models/models.yaml", ("models",), 45, "add models"),
    "checkpoints": _Source("models/checkpoints.yaml", ("checkpoints",), 45, "add checkpoints"),
    "ggufs": _Source("models/ggufs.yaml", ("ggufs",), 45, "add GGUF checkpoints"),
    "architectures": _Source(
        "engines/architectures.yaml", ("architectures",), 45, "read the releases' lists"
    ),
    "methods": _Source(
        "engines/method_support.yaml", ("methods", "schedules"), 60, "read the releases' options"
    ),
    "recipes": _Source("engines/recipes.yaml", ("recipes",), 60, "read NVIDIA's launch lines"),
    "advisories": _Source("engines/advisories.yaml", ("advisories",), 30, "look for advisories"),
    "rules": _Source("rules/rules.yaml", ("rules",), 60, "check the rules"),
    "hardware": _Source(
        "hardware.yaml",
        ("boxes", "vendors", "ceilings", "links", "memory", "cpu_generic"),
        365,
        "check drivers and boxes",
    ),
}

_MEASUREMENTS = "measurements/benchmarks.csv"
MEASUREMENT_DAYS = 60
_FITTED = re.compile(r"^# Written by .* measurements, the newest of (?P<date>\d{4}[\d-]*)")


class KnowledgePart(Value):
    """One part of the knowledge."""

    id: str
    file: str
    """In sparkfleet/knowledge."""
    entries: int
    newest: str | None
    """The newest date in it: a day, a month or a year; None if it has none."""
    fresh_days: int
    """Days after which it counts as old."""
    do: str
    """The work that brings it up to date."""

    def age_days(self, today: date) -> int | None:
        """Days since the newest date (of a month: since its first day), at least 0; None if it has none."""
        return None if self.newest is None else max(0, (today - first_day(self.newest)).days)

    def is_old(self, today: date) -> bool:
        """True if the newest entry is older than a part like this may get."""
        age = self.age_days(today)
        return age is not None and age > self.fresh_days


def first_day(text: str) -> date:
    """The first day of "2026-05-13", "2026-05" or "2026". Raises ValueError."""
    parts = [int(part) for part in text.split("-")]
    year, month, day = (*parts, 1, 1)[:3]
    # "2026-02-31" passes the reader of the files; it is a day of February all the same
    return date(year, month, 1) + timedelta(days=day - 1)


@cache
def knowledge_parts() -> tuple[KnowledgePart, ...]:
    """Every part that this installation has, in a fixed order. A node's environment has no measurements.

    Raises:
        SpecError: a file was edited and is no longer valid.
    """
    parts = [_read(name, source) for name, source in _SOURCES.items()]
    return (*parts, *_measurements(), _factors())


def _read(name: str, source: _Source) -> KnowledgePart:
    data = sections(f"knowledge/{source.file}", packaged(source.file))
    counted = [data[section] for section in source.counted]
    return KnowledgePart(
        id=name,
        file=source.file,
        entries=sum(len(section) for section in counted if isinstance(section, tuple | dict)),
        newest=_newest(one for section in counted for one in _dates(section)),
        fresh_days=source.fresh_days,
        do=source.do,
    )


def _dates(value: object) -> Iterator[str]:
    """Every `date` at any depth: gains and acceptance have their own."""
    if isinstance(value, dict):
        if isinstance(found := value.get("date"), str):
            yield found
        for one in value.values():
            yield from _dates(one)
    elif isinstance(value, tuple):
        for one in value:
            yield from _dates(one)


def _newest(dates: Iterator[str]) -> str | None:
    return max(dates, key=first_day, default=None)


def _measurements() -> tuple[KnowledgePart, ...]:
    try:
        rows = list(csv.DictReader(io.StringIO(packaged(_MEASUREMENTS))))
    except FileNotFoundError:
        return ()
    return (
        KnowledgePart(
            id="measurements",
            file=_MEASUREMENTS,
            entries=len(rows),
            newest=_newest(row["date"] for row in rows if row["date"]),
            fresh_days=MEASUREMENT_DAYS,
            do="add measurements, then fit",
        ),
    )


def _factors() -> KnowledgePart:
    """The fit: its entries are coefficients; its date is that of the newest measurement in it, if it records one."""
    fitted = _FITTED.match(FACTORS.text)
    return KnowledgePart(
        id="factors",
        file="published/factors.yaml",
        entries=sum(len(one) for one in FACTORS.content.coefficients.values()),
        newest=fitted["date"] if fitted else None,
        fresh_days=MEASUREMENT_DAYS,
        do="fit again: python scripts/fit.py",
    )
