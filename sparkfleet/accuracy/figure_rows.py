"""Published rates by checkpoint, text and load, for `knowledge/published/figures.csv`. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import log
from statistics import median
from typing import NamedTuple

from sparkfleet.accuracy.accuracy import score
from sparkfleet.accuracy.evidence_rows import runs_in
from sparkfleet.accuracy.published import LEAST_REQUESTS, is_upper_bound, run_of
from sparkfleet.accuracy.rows import PublishedCase
from sparkfleet.knowledge.published.evidence import RunKey
from sparkfleet.knowledge.published.factors import Factors
from sparkfleet.knowledge.published.figures import PublishedFigure, PublishedSetup


def figures_in(cases: Iterable[PublishedCase], known: Factors) -> tuple[PublishedFigure, ...]:
    """The rates that count for decisions (`published.run_of`), of one request and of four or more together."""
    return tuple(one for key, ran in runs_in(cases).items() for one in _of_combination(key, ran, known))


def _of_combination(key: RunKey, cases: Iterable[PublishedCase], known: Factors) -> Iterator[PublishedFigure]:
    each: dict[tuple[str, str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for case in cases:
        run = None if is_upper_bound(case) else run_of(case)
        if run is None or 1 < run.requests < LEAST_REQUESTS:
            continue
        if expected := _expected(case, run.requests, known):
            each[case.source, case.model, case.workload.content, run.requests].append((run.speed, expected))
    for (source, checkpoint, content, requests), rates in each.items():
        tps = median(speed for speed, _ in rates)
        yield PublishedFigure(
            model=key.model,
            engine=key.engine,
            method=key.method,
            format=key.format,
            nodes=key.nodes,
            source=source,
            checkpoint=checkpoint,
            content=content,
            requests=requests,
            rows=len(rates),
            tps=round(tps, 2),
            expected=round(tps / median(speed / expected for speed, expected in rates), 2),
        )


def _expected(case: PublishedCase, requests: int, known: Factors) -> float | None:
    """The prediction for the rate that `run_of` takes; None if there is none."""
    found = {one.metric: one.predicted.mid for one in score(case, known)}
    metrics = ("decode_tps_per_request",) * (requests == 1) + ("decode_tps_aggregate",)
    return next((found[metric] for metric in metrics if metric in found), None)


class DrawnError(NamedTuple):
    """Errors (log) of the prediction for one source's rates of one request, alone and drawn toward the other sources'."""

    drafted: bool
    alone: float
    drawn: float


def drawn_errors(found: Iterable[PublishedFigure]) -> tuple[DrawnError, ...]:
    """Errors for each source of a setup that another one ran, too: whether the others' rates bring its prediction nearer.

    It is drawn by as much as the rank is corrected: by n / (n + 1) of the median of n sources (`evidence._correction`).
    """
    of_combination: dict[PublishedSetup, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in found:
        if one.requests == 1:
            key = PublishedSetup(one.model, one.engine, one.method, one.format, one.nodes)
            of_combination[key][one.source].append(log(one.tps / one.expected))
    errors = []
    for combination, of_source in of_combination.items():
        offs = {source: median(own) for source, own in of_source.items()}
        for source, off in offs.items():
            if others := [other for name, other in offs.items() if name != source]:
                by = median(others) * len(others) / (len(others) + 1)
                errors.append(DrawnError(combination.method != "none", abs(off), abs(off - by)))
    return tuple(errors)
