"""Published measurements counted by combination: `evidence.csv`, written by `scripts/evidence.py`, checked on load.

One line per model × engine × method × format × nodes, with the family of the model: the set of its shapes
(`perf.model_shape`), which its fine-tunes and later versions share. Methods are those of the speed model, so that NEXTN
is MTP. Images are not distinguished: most are builds of one release.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from functools import cache
from typing import Annotated, NamedTuple

from pydantic import Field, ValidationError

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.data_file import packaged
from sparkfleet.knowledge.published.left_out import left_out_families
from sparkfleet.values import Value

FILE = "published/evidence.csv"
CLEAR_ABOVE = 1.3
"""Factor by which an unpublished combination has to be faster than the family's best published one."""
LONELY = 0.1
"""Discount over one more than the number of sources: one costs 5 %, four cost 2 %."""
CLOSE = 1.1
"""Further factor for every step away from the same run: a sibling's, another format's. Two boots differ by ± 15 %."""
UNUSUAL = 0.25
"""Discount over one more than the support in other families: a combination without any costs 25 %, with four sources 5 %.
In 46 decisions, 42 of the best published ones are on the engine that most sources use with that method."""
ASIDE = 0.5
"""Weight of a source for other families if it ran another format, or fewer nodes."""
GGUF_ENGINES = ("llama.cpp",)
"""Engines whose runs are of GGUF files."""
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
    EvidenceLevel.NOTHING: LEAST_PROVEN / CLEAR_ABOVE,
}
"""Factor on a candidate's worth; without runs of the family also by `support`. Affects the ranking, not the predictions."""


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
    support: float = 0.0
    """Sources that ran engine and method for other families, if nobody did for this one."""

    def discount(self, *, busy: bool) -> float:
        """Factor of the candidate's worth; more evidence never lowers it.

        Args:
            busy: for many requests together.
        """
        if not self.runs:
            # Somebody ran it and published no rate: never more than one who published some.
            rest = LONELY / 2 if self.level is EvidenceLevel.FORMAT else UNUSUAL / (1 + self.support)
            return DISCOUNT[self.level] * (1.0 if self.level is EvidenceLevel.MODEL else 1.0 - rest)
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
        return _correction((one for one in self.alike if one.nodes == self.nodes), busy=busy)

    def scaling(self, nodes: int) -> float:
        """Factor on the predicted gain of so many nodes for one request, from the nearest model that a source ran on both;
        1 without one."""
        for here in self.alike:
            if here.nodes != self.nodes:
                continue
            for there in self.alike:
                is_same = (there.model, there.nodes) == (here.model, nodes)
                if is_same and set(here.sources) & set(there.sources):
                    before, after = (_correction((one,), busy=False) for one in (here, there))
                    if before is not None and after is not None:
                        return after / before
        return 1.0

    @property
    def alike(self) -> tuple[PublishedEvidence, ...]:
        """The runs in its format, the nearest first."""
        leveled = zip(self.levels, self.runs, strict=True)
        return tuple(one for level, one in leveled if level <= EvidenceLevel.SIBLING)

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


def _weight(ran: RunKey, run: tuple[str, int]) -> float:
    """Weight of a source's run (format, nodes) of the same engine for other families."""
    stored, nodes = run
    return (1.0 if stored == ran.format else ASIDE) * (1.0 if nodes >= ran.nodes else ASIDE)


class EvidenceIndex:
    """Published runs by family, engine and method.

    Args:
        runs: published runs.
    """

    def __init__(self, runs: Iterable[PublishedEvidence]) -> None:
        self._of: dict[tuple[str, str, str], list[PublishedEvidence]] = defaultdict(list)
        self._engines: dict[str, dict[str, set[tuple[str, int]]]] = defaultdict(lambda: defaultdict(set))
        self._methods: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self._stored: dict[tuple[str, str, int], list[PublishedEvidence]] = defaultdict(list)
        self._ran: set[tuple[str, str]] = set()
        self._supports: dict[tuple[str, str, str, int], float] = {}
        for one in runs:
            self._of[one.family, one.engine, one.method].append(one)
            self._stored[one.family, one.format, one.nodes].append(one)
            if one.engine not in GGUF_ENGINES:  # other files than the safetensors that this is asked for
                self._ran.add((one.model, one.method))
            of_method = self._methods[one.engine, one.method]
            for source in one.sources:
                self._engines[one.engine][source].add((one.format, one.nodes))
                of_method[source] = max(one.nodes, of_method.get(source, 0))

    def ran(self, model: str, method: str) -> bool:
        """True if a run of the model with the method is published, in any format of safetensors, on any engine and nodes."""
        return (model, method) in self._ran

    def usual_engine(self, method: str) -> str:
        """The engine on which most sources ran the method; "" if nobody did."""
        engines = [(len(by), engine) for (engine, of), by in self._methods.items() if of == method]
        return max(engines)[1] if engines else ""

    def _support(self, ran: RunKey) -> float:
        """Sources that ran the engine for any family; less of each for another format, for fewer nodes, and for a method
        or a format that nobody ran on it."""
        key = (ran.engine, ran.method, ran.format, ran.nodes)
        if key not in self._supports:
            sources = self._engines.get(ran.engine, {}).values()
            method = 1.0 if self._methods.get((ran.engine, ran.method)) else ASIDE
            stored = 1.0 if any(form == ran.format for runs in sources for form, _ in runs) else ASIDE
            self._supports[key] = (
                method * stored * math.fsum(max(_weight(ran, one) for one in runs) for runs in sources)
            )
        return self._supports[key]

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
        known = max(self._methods.get((ran.engine, ran.method), {}).values(), default=0) >= nodes
        nearest = EvidenceLevel.FAMILY if known else EvidenceLevel.NOTHING
        support = self._support(ran)
        return Evidence(nearest, nodes=nodes, beside=beside, method=ran.method, support=support)


def evidence() -> EvidenceIndex:
    """The packaged `evidence.csv`, less the families that are left out.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    other = _INSTEAD.get()
    return _without(left_out_families()) if other is None else other


_INSTEAD: ContextVar[EvidenceIndex | None] = ContextVar("evidence_instead", default=None)


@contextmanager
def evidence_from(runs: Iterable[PublishedEvidence]) -> Iterator[None]:
    """Let these runs count instead of the packaged ones, to see what is chosen with less evidence."""
    token = _INSTEAD.set(EvidenceIndex(runs))
    try:
        yield
    finally:
        _INSTEAD.reset(token)


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
        fields: dict[str, object] = {name: cell for name, cell in row.items() if cell and name != "sources"}
        fields["sources"] = tuple((row.get("sources") or "").split("; "))
        try:
            found.append(PublishedEvidence.model_validate(fields, strict=False))
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
