"""Published measurements counted by combination: `evidence.csv`, written by `scripts/evidence.py`, checked on load.

One line per model × engine × method × format × nodes, with the family of the model: the set of its shapes
(`perf.model_shape`), which its fine-tunes and later versions share. Methods are those of the speed model, so that NEXTN
is MTP. Images are not distinguished: most are builds of one release.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cache
from typing import Annotated, NamedTuple

from pydantic import Field, ValidationError

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.left_out import left_out_families
from sparkfleet.knowledge.yaml_entries import packaged
from sparkfleet.values import Value

FILE = "evidence.csv"
CLEAR_ABOVE = 1.3
"""Factor by which an unpublished combination has to be faster than the family's best published one."""
LONELY = 0.1
"""Discount over one more than the number of sources: one costs 5 %, four cost 2 %."""
CLOSE = 1.1
"""Further factor for every step away from the same run: a sibling's, another format's. Two boots differ by ± 15 %."""
OTHER_FAMILY = 1.15
"""On top of CLEAR_ABOVE if engine and method are unpublished on this number of nodes for every family."""
FURTHEST = math.log(1.6)
"""Largest correction (log) of a prediction by published rates in the ranking of candidates."""


class EvidenceLevel(IntEnum):
    """Closeness of the nearest published run, best first."""

    MODEL = 0
    """The model, engine, method, format and nodes."""
    SIBLING = 1
    """Likewise, of a model with the same shapes."""
    FORMAT = 2
    """The model or a sibling in another format."""
    FAMILY = 3
    """Engine, method and nodes for other families."""
    NOTHING = 4


LEAST_PROVEN = (1.0 - LONELY / 2) / CLOSE**2
"""Discount of the weakest evidence for the family: one source, in another format."""
DISCOUNT = {
    EvidenceLevel.MODEL: 1.0,
    EvidenceLevel.SIBLING: 1 / CLOSE,
    EvidenceLevel.FORMAT: 1 / CLOSE**2,
    EvidenceLevel.FAMILY: LEAST_PROVEN / CLEAR_ABOVE,
    EvidenceLevel.NOTHING: LEAST_PROVEN / (CLEAR_ABOVE * OTHER_FAMILY),
}
"""Factor on a candidate's worth. Affects the ranking, not the predictions."""


class PublishedEvidence(Value):
    """Published runs of one combination."""

    model: str
    """By `model_names.plain`."""
    family: str
    engine: str
    method: str
    format: str
    nodes: Annotated[int, Field(ge=1)]
    rows: Annotated[int, Field(ge=1)]
    """Published measurements."""
    sources: tuple[str, ...]
    alone: float | None = None
    """tok/s of one request: median of its sources; None without a measurement after a short prompt."""
    busy: int = 0
    """Number of measurements with four requests and more together."""
    off_alone: float | None = None
    """Published over predicted rate of one request (log), median of its sources; None if none can be compared."""
    off_busy: float | None = None
    """The same of four requests and more together."""

    def measured(self, *, busy: bool) -> bool:
        """True if its rate was published: of one request, or of many together."""
        return self.busy > 0 if busy else self.alone is not None


class Evidence(NamedTuple):
    """Published runs that support a candidate."""

    level: EvidenceLevel
    """That of the nearest run."""
    runs: tuple[PublishedEvidence, ...] = ()
    """Those of its family, engine and method on its nodes or more, the nearest first."""
    levels: tuple[EvidenceLevel, ...] = ()
    """Closeness of each."""
    nodes: int = 1
    """Of the candidate."""
    beside: tuple[PublishedEvidence, ...] = ()
    """Runs of the family in this format on so many nodes, by other methods and engines: its own method's first."""
    method: str = ""
    """Of the candidate."""

    def discount(self, *, busy: bool) -> float:
        """Factor of the candidate's worth; more evidence never lowers it.

        Args:
            busy: for many requests together.
        """
        if not self.runs:
            # Somebody ran it and published no rate: never more than one who published some.
            lonely = 1.0 - LONELY / 2 if self.level is EvidenceLevel.FORMAT else 1.0
            return DISCOUNT[self.level] * lonely
        each = (
            level if one.measured(busy=busy) else max(level, EvidenceLevel.FORMAT)
            for level, one in zip(self.levels, self.runs, strict=True)
        )
        return DISCOUNT[min(each)] * (1.0 - LONELY / (1 + len(self.sources)))

    @property
    def nearest(self) -> tuple[PublishedEvidence, ...]:
        """The runs of the nearest level."""
        return tuple(one for level, one in zip(self.levels, self.runs, strict=True) if level is self.level)

    @property
    def sources(self) -> tuple[str, ...]:
        """Publishers, each once."""
        return tuple(dict.fromkeys(source for one in self.runs for source in one.sources))

    def correction(self, *, busy: bool) -> float | None:
        """Factor on the predicted rate from published runs of the same combination on the same number of nodes.

        One source counts half, two count two thirds: sources differ by about as much as predictions do. None without a
        published run that can be compared.
        """
        return _correction(
            (
                one
                for level, one in zip(self.levels, self.runs, strict=True)
                if level <= EvidenceLevel.SIBLING and one.nodes == self.nodes
            ),
            busy=busy,
        )

    def shared_correction(self, *, busy: bool) -> float:
        """The same from other methods and engines: a format that is faster than predicted is so with drafts, too."""
        return _correction(self.beside, busy=busy) or 1.0

    def elsewhere(self, *, busy: bool) -> tuple[float, str] | None:
        """The same from another engine with the same method, and that engine: acceptance is the same on every engine.

        None if it is unpublished.
        """
        for one in self.beside:
            found = _correction((one,), busy=busy) if one.method == self.method else None
            if found is not None:
                return found, one.engine
        return None


def _correction(runs: Iterable[PublishedEvidence], *, busy: bool) -> float | None:
    offs = ((one.off_busy if busy else one.off_alone, len(one.sources)) for one in runs)
    off, sources = next(((off, sources) for off, sources in offs if off is not None), (None, 0))
    if off is None:
        return None
    return math.exp(max(-FURTHEST, min(FURTHEST, off)) * sources / (sources + 1))


class RunKey(NamedTuple):
    """A combination that a plan may choose, in the vocabulary of published rows."""

    model: str
    family: str
    engine: str
    method: str
    format: str
    nodes: int


def _distance(one: PublishedEvidence, ran: RunKey) -> tuple[bool, bool, bool]:
    """Distance of two runs: acceptance is the same on any engine, so another engine is nearer than another method."""
    return (one.method != ran.method, one.engine != ran.engine, one.model != ran.model)


class EvidenceIndex:
    """Published runs by family, engine and method.

    Args:
        runs: published runs.
    """

    def __init__(self, runs: Iterable[PublishedEvidence]) -> None:
        self._of: dict[tuple[str, str, str], list[PublishedEvidence]] = defaultdict(list)
        self._anywhere: dict[tuple[str, str], int] = defaultdict(int)
        self._stored: dict[tuple[str, str, int], list[PublishedEvidence]] = defaultdict(list)
        self._ran: set[tuple[str, str, str]] = set()
        for one in runs:
            self._of[one.family, one.engine, one.method].append(one)
            self._stored[one.family, one.format, one.nodes].append(one)
            self._ran.add((one.model, one.method, one.format))
            self._anywhere[one.engine, one.method] = max(one.nodes, self._anywhere[one.engine, one.method])

    def ran(self, model: str, method: str, format_name: str) -> bool:
        """True if a run of the model with the method in that format is published, on any engine and nodes."""
        return (model, method, format_name) in self._ran

    def of(self, ran: RunKey) -> Evidence:
        """Evidence for a candidate. A run on more nodes counts for fewer, too: an engine that runs split also runs whole."""

        def level(one: PublishedEvidence) -> EvidenceLevel:
            if one.format != ran.format:
                return EvidenceLevel.FORMAT
            return EvidenceLevel.MODEL if one.model == ran.model else EvidenceLevel.SIBLING

        key, nodes = (ran.family, ran.engine, ran.method), ran.nodes
        stored = self._stored.get((ran.family, ran.format, nodes), ())
        beside = tuple(sorted(stored, key=lambda one: _distance(one, ran)))
        runs = [one for one in self._of.get(key, ()) if one.nodes >= nodes]
        if runs:
            runs.sort(key=lambda one: (level(one), one.nodes, -one.rows))
            return Evidence(level(runs[0]), tuple(runs), tuple(map(level, runs)), nodes, beside, ran.method)
        engine, method = ran.engine, ran.method
        known = self._anywhere.get((engine, method), 0) >= nodes
        nearest = EvidenceLevel.FAMILY if known else EvidenceLevel.NOTHING
        return Evidence(nearest, nodes=nodes, beside=beside, method=ran.method)


def evidence() -> EvidenceIndex:
    """The packaged `evidence.csv`, less the families that are left out.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    return _without(left_out_families())


@cache
def _without(families: frozenset[str]) -> EvidenceIndex:
    return EvidenceIndex(one for one in _packaged() if one.family not in families)


@cache
def _packaged() -> tuple[PublishedEvidence, ...]:
    return read_evidence(packaged(FILE))


def read_evidence(text: str) -> tuple[PublishedEvidence, ...]:
    """The published runs in `text`.

    Raises:
        SpecError: a line is not valid.
    """
    found: list[PublishedEvidence] = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), 2):
        told: dict[str, object] = {name: cell for name, cell in row.items() if cell and name != "sources"}
        told["sources"] = tuple((row.get("sources") or "").split("; "))
        try:
            found.append(PublishedEvidence.model_validate(told, strict=False))
        except ValidationError as error:
            raise SpecError(
                f"knowledge/{FILE}:{number}: {error.errors()[0]['msg']}.", do="Run scripts/evidence.py again."
            ) from error
    return tuple(found)


COLUMNS = tuple(PublishedEvidence.model_fields)


def written(runs: Sequence[PublishedEvidence]) -> str:
    """The file for these runs."""
    lines = [",".join(COLUMNS)]
    for one in sorted(
        runs, key=lambda run: (run.family, run.model, run.engine, run.method, run.format, run.nodes)
    ):
        cells = [getattr(one, name) for name in COLUMNS]
        lines.append(
            ",".join("; ".join(c) if isinstance(c, tuple) else "" if c is None else f"{c}" for c in cells)
        )
    return "\n".join(lines) + "\n"
