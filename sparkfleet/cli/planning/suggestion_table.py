"""Prints the models that Sparks can serve: a row for each, or a few lines on a terminal that is narrower than its row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.text import Text

from sparkfleet.cli.output import console, print_line
from sparkfleet.fleet.planning.suggestions import Suggestion
from sparkfleet.planner.report.explain.layout import band_ends
from sparkfleet.planner.types.plan import ENGINE_LABELS
from sparkfleet.units import gib, three_digits


class SuggestionCells(NamedTuple):
    """The words of one model."""

    model: str
    size: str
    """`117B, 5.1B active`; the second if it is less."""
    split: str
    """`TP=2 · vLLM · NVFP4 · MTP k=3`, without what only a plan needs."""
    speed: str
    memory: str
    """On each rank."""
    context: str
    """`131072 × 4`: tokens of a request, requests at once."""


HEADING = SuggestionCells("MODEL", "SIZE", "RUNS AS", "TOK/S", "MEMORY", "CONTEXT")


def print_suggestions(shown: Sequence[Suggestion], *, many: bool) -> None:
    """Print the models. Their names are never folded, and without a terminal no line is.

    Args:
        shown: the models.
        many: the speed is that of all requests together, not of one.
    """
    cells = [_cells(one, many=many) for one in shown]
    heading, *rows = _aligned([HEADING._replace(speed="TOK/S TOGETHER") if many else HEADING, *cells])
    if not console.is_terminal or console.width >= max(map(len, (heading, *rows))):
        console.print(Text(heading, style="dim"))
        for row in rows:
            console.print(row)
        return
    for one in cells:
        console.print(one.model)
        print_line("  " + " · ".join(_words(one, many=many)))


def _aligned(cells: Sequence[SuggestionCells]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, one, widths)).rstrip() for one in cells]


def _words(one: SuggestionCells, *, many: bool) -> Iterator[str]:
    """The cells of a narrow terminal, with words in place of headings."""
    rate, band, rest = one.speed.partition(" (")
    unit = " tok/s together" if many else " tok/s"
    yield f"{rate}{unit}{band}{rest}" if rate[:1].isdigit() else one.speed
    yield from (one.size, one.split, one.memory, f"context {one.context}")


def _cells(one: Suggestion, *, many: bool) -> SuggestionCells:
    candidate, predicted = one.rung.candidate, one.rung.prediction
    return SuggestionCells(
        model=one.model,
        size=_size(one),
        split=_how(one),
        speed=_speed(one, many=many),
        memory=gib(round(predicted.memory_bytes_per_rank.mid)),
        context=f"{candidate.context} × {candidate.concurrency}",
    )


def _speed(one: Suggestion, *, many: bool) -> str:
    if not one.tps:
        return "not predicted"
    predicted, published = one.rung.prediction, one.rung.published.exactly
    band = predicted.decode_tps_aggregate if many else predicted.decode_tps_per_request
    ends = f" ({band_ends(band)})" if band is not None and one.groups == 1 else ""
    beside = f", published {three_digits(published)}" if published and not many else ""
    return f"{three_digits(one.tps)}{ends}{beside}"


def _size(one: Suggestion) -> str:
    total, active = one.parameters / 1e9, one.active_parameters / 1e9
    return f"{three_digits(total)}B" + (f", {active:.2g}B active" if active < 0.8 * total else "")


def _how(one: Suggestion) -> str:
    candidate = one.rung.candidate
    speculation = candidate.speculation
    drafts = "" if speculation.method == "none" else str(speculation).partition(" (")[0]
    replicas = f"{one.groups} replicas" if one.groups > 1 else ""
    parts = (
        str(candidate.shape.split),
        ENGINE_LABELS[candidate.engine],
        candidate.quant.upper(),
        drafts,
        replicas,
    )
    return " · ".join(part for part in parts if part)
