"""Published rates with the checkpoint, the text and the load that each was measured with: `figures.csv`, checked on load.

`scripts/evidence.py` writes it beside `evidence.csv`, which has the median of all sources for the rank. A plan shows a rate
beside its own prediction, so it needs one of the same checkpoint and text, or the name of the other.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import median
from typing import Annotated, NamedTuple

from pydantic import Field, ValidationError

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.data_file import packaged
from sparkfleet.knowledge.published.evidence import GGUF_ENGINES, Evidence, EvidenceLevel, PublishedEvidence
from sparkfleet.units import three_digits
from sparkfleet.values import Value

FILE = "published/figures.csv"
NEAR = 2**0.5
"""Largest ratio of requests at once between rates of the same load."""
_TEXTS = {
    "agent": "agents' text",
    "book": "a book",
    "json": "JSON",
    "mixed": "mixed text",
    "random": "random text",
}
"""Kinds of text in words, if they differ from their names."""
_UNNAMED = "an unnamed repository"
_HUB_ID = re.compile(r"(?:^|[\s(])([\w.-]+/[\w.-]*\w)")
_MAKER = re.compile(r"\(([A-Za-z][\w.-]*) (?:NVFP4|FP8|MXFP4|INT4|AWQ)")
"""Maker of a quantised checkpoint as some sources name it: "Qwen/Qwen3.8-Flash-Next (RadixArk NVFP4)"."""


class PublishedFigure(Value):
    """Rates that one source published of one combination, checkpoint, text and number of requests at once."""

    model: str
    """By `model_names.plain`."""
    engine: str
    method: str
    format: str
    nodes: Annotated[int, Field(ge=1)]
    source: str
    checkpoint: str
    """As published."""
    content: str
    """Kind of text; "mixed" if it is not known, too."""
    requests: Annotated[int, Field(ge=1)]
    rows: Annotated[int, Field(ge=1)]
    tps: Annotated[float, Field(gt=0)]
    """Median: of the one request, or of all together."""
    expected: Annotated[float, Field(gt=0)]
    """The prediction for the same prompts, text and load."""

    def is_of(self, checkpoint: str) -> bool | None:
        """True if it is of a checkpoint; None if its source names no repository, or that of the model in another format."""
        owner, _, name = checkpoint.lower().partition(":")[0].partition("/")
        if (maker := _MAKER.search(self.checkpoint)) is not None:
            return maker[1].lower() == owner
        ids = _HUB_ID.findall(self.checkpoint)
        if not ids:
            return None
        by, _, measured = ids[-1].lower().partition("/")
        if measured == self.model != name and by != owner:
            return None
        return by == owner and measured in (name, self.model) and "(+" not in self.checkpoint


class PublishedSetup(NamedTuple):
    """A published model on an engine, as somebody ran it."""

    model: str
    engine: str
    method: str
    format: str
    nodes: int


class ComparedFigure(Value):
    """The published rate that is nearest to a candidate."""

    tps: float
    """Median of its sources: of one request, or of all together."""
    expected: float
    """The prediction for the same prompts, text and load."""
    requests: int = 1
    sources: tuple[str, ...]
    of: str = ""
    """The checkpoint that was measured, as published; "" if it is the candidate's."""
    content: str = ""
    """The text that was measured; "" if it is the candidate's, or no drafts depend on it."""

    @property
    def is_alike(self) -> bool:
        """True if it is of the candidate's own checkpoint and kind of text."""
        return not self.of and not self.content

    @property
    def measured_with(self) -> str:
        """` of RadixArk/Qwen3.8-27B-NVFP4 on code`; "" if it is alike."""
        return (f" of {self.of}" if self.of else "") + (f" on {self.content}" if self.content else "")

    @property
    def words(self) -> str:
        """`published: 46.1 of AEON-7/Qwen3.8-27B-Ultimate-Uncensored-NVFP4-Mixed`, `published: 130 by 8`."""
        by = f" by {self.requests}" if self.requests > 1 else ""
        return f"published: {three_digits(self.tps)}{by}{self.measured_with}"


class PublishedPair(NamedTuple):
    """Rates of one request that one source measured with one checkpoint and text on two numbers of nodes."""

    source: str
    checkpoint: str
    fewer: float
    more: float


@cache
def figures() -> Mapping[PublishedSetup, tuple[PublishedFigure, ...]]:
    """The packaged figures by their setup.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    return by_setup(read_figures(packaged(FILE)))


def nearest_figure(
    proof: Evidence, checkpoint: str, content: str, *, requests: int = 1
) -> ComparedFigure | None:
    """The rate of a combination on its own number of nodes: of the same text if there is any, then of the checkpoint.

    None if it was not published of the model, or of one of its shapes, in its format.

    Args:
        proof: published runs of the combination.
        checkpoint: Hub id of the candidate's weights, without a revision.
        content: the text that the candidate is predicted for.
        requests: requests at once.
    """
    if proof.level > EvidenceLevel.SIBLING:
        return None
    for run in proof.nearest:
        if run.nodes == proof.nodes and (found := _under_load(_figures_of(run), requests)):
            return _compared(found, checkpoint, content, is_other_model=proof.level is EvidenceLevel.SIBLING)
    return None


def _figures_of(run: PublishedEvidence) -> Sequence[PublishedFigure]:
    key = PublishedSetup(run.model, run.engine, run.method, run.format, run.nodes)
    return [one for one in figures().get(key, ()) if one.source.replace(",", " ") in run.sources]


def _under_load(found: Sequence[PublishedFigure], requests: int) -> Sequence[PublishedFigure]:
    """The figures of the number of requests at once that is nearest to one, if any is near."""
    near = {one.requests for one in found if 1 / NEAR <= one.requests / requests <= NEAR}
    if requests == 1:
        near &= {1}
    best = min(near, key=lambda one: abs(one - requests), default=None)
    return [one for one in found if one.requests == best]


def _compared(
    found: Sequence[PublishedFigure], checkpoint: str, content: str, *, is_other_model: bool
) -> ComparedFigure:
    def distance(one: PublishedFigure) -> tuple[bool, int]:
        is_other_text = one.method != "none" and one.content != content
        return is_other_text, {True: 0, None: 1, False: 2}[one.is_of(checkpoint)]

    least = min(map(distance, found))
    nearest = [one for one in found if distance(one) == least]
    of_source: dict[str, list[PublishedFigure]] = defaultdict(list)
    for one in nearest:
        of_source[one.source].append(one)
    tps = median(median(one.tps for one in own) for own in of_source.values())
    ratio = median(median(one.tps / one.expected for one in own) for own in of_source.values())
    names = list(dict.fromkeys(one.checkpoint for one in nearest))
    named = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    unnamed = "" if nearest[0].engine in GGUF_ENGINES else _UNNAMED
    return ComparedFigure(
        tps=round(tps, 2),
        expected=round(tps / ratio, 2),
        requests=nearest[0].requests,
        sources=tuple(of_source),
        of=named if is_other_model else ("", unnamed, named)[least[1]],
        content=_and([_TEXTS.get(one.content, one.content) for one in nearest]) if least[0] else "",
    )


def _and(names: Iterable[str]) -> str:
    *before, last = dict.fromkeys(names)
    return f"{', '.join(before)} and {last}" if before else last


def pair_of(fewer: Evidence, more: Evidence) -> PublishedPair | None:
    """Rates of one request by a source that ran one checkpoint with one text on both numbers of nodes; None if nobody did.

    Args:
        fewer: published runs of a combination, in its format, on fewer nodes.
        more: the same of its engine and method on more.
    """
    for wide in more.alike:
        narrow = next(
            (one for one in fewer.alike if (one.model, one.nodes) == (wide.model, fewer.nodes)), None
        )
        if narrow is None or wide.nodes != more.nodes:
            continue
        rates = {_setup(one): one.tps for one in _figures_of(wide) if one.requests == 1}
        for one in _figures_of(narrow):
            if one.requests == 1 and _setup(one) in rates:
                return PublishedPair(one.source, one.checkpoint, one.tps, rates[_setup(one)])
    return None


def _setup(one: PublishedFigure) -> tuple[str, str, str]:
    return one.source, one.checkpoint, one.content


def by_setup(found: Iterable[PublishedFigure]) -> dict[PublishedSetup, tuple[PublishedFigure, ...]]:
    """Figures by their setup, in their order."""
    grouped: dict[PublishedSetup, list[PublishedFigure]] = defaultdict(list)
    for one in found:
        grouped[PublishedSetup(one.model, one.engine, one.method, one.format, one.nodes)].append(one)
    return {setup: tuple(of_setup) for setup, of_setup in grouped.items()}


def read_figures(text: str) -> tuple[PublishedFigure, ...]:
    """The figures in `text`.

    Raises:
        SpecError: a line is not valid.
    """
    found: list[PublishedFigure] = []
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), 2):
        try:
            found.append(PublishedFigure.model_validate(row, strict=False))
        except ValidationError as error:
            raise SpecError(
                f"knowledge/{FILE}:{number}: {error.errors()[0]['msg']}.", do="Run scripts/evidence.py again."
            ) from error
    return tuple(found)


COLUMNS = tuple(PublishedFigure.model_fields)


def written(found: Iterable[PublishedFigure]) -> str:
    """The file for these figures."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(sorted([getattr(one, name) for name in COLUMNS] for one in found))
    return text.getvalue()
