"""Counts published measurements by combination, for `knowledge/published/evidence.csv`. Pure.

Every row proves that its combination runs; rates are compared with predictions only if they count for a decision
(`published.run_of`), each with the prediction for its own load and text.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from sparkfleet.accuracy.accuracy import score
from sparkfleet.accuracy.published import LEAST_REQUESTS, SERVABLE, PublishedRun, is_upper_bound, run_of
from sparkfleet.accuracy.rows import PublishedCase
from sparkfleet.knowledge.models.model_names import plain
from sparkfleet.knowledge.published.evidence import PublishedEvidence, RunKey
from sparkfleet.knowledge.published.factors import Factors


class Doubling(NamedTuple):
    """A combination that one source ran on `run.nodes` nodes and on twice as many, for one request."""

    run: PublishedEvidence
    """On the fewer nodes."""
    gain: float
    """The published gain over the predicted one."""


def evidence_in(cases: Iterable[PublishedCase], known: Factors) -> tuple[PublishedEvidence, ...]:
    """Published runs of engines that a deployment can have, by model, engine, method, format and nodes."""
    return tuple(counted(key, of_key, known) for key, of_key in runs_in(cases).items())


def doublings_in(cases: Iterable[PublishedCase], known: Factors) -> tuple[Doubling, ...]:
    """Every combination that one source ran on a number of nodes and on twice that number, by source."""
    of_source: dict[str, list[PublishedCase]] = defaultdict(list)
    for case in cases:
        of_source[case.source].append(case)
    found = []
    for _, own in sorted(of_source.items()):
        runs = {
            RunKey(one.model, one.family, one.engine, one.method, one.format, one.nodes): one
            for one in evidence_in(own, known)
        }
        for key, run in runs.items():
            wider = runs.get(key._replace(nodes=2 * key.nodes))
            if wider is not None and run.off_alone is not None and wider.off_alone is not None:
                found.append(Doubling(run, math.exp(wider.off_alone - run.off_alone)))
    return tuple(found)


def runs_in(cases: Iterable[PublishedCase]) -> Mapping[RunKey, Sequence[PublishedCase]]:
    """The cases of each combination that a deployment can have."""
    found: dict[RunKey, list[PublishedCase]] = defaultdict(list)
    for case in cases:
        if case.setup.engine in SERVABLE and case.replicas == 1:
            setup = case.setup
            model, family = plain(case.model), setup.shape.family
            found[RunKey(model, family, setup.engine, setup.method, setup.format, case.nodes)].append(case)
    return found


def counted(key: RunKey, cases: Sequence[PublishedCase], known: Factors) -> PublishedEvidence:
    """The evidence of one combination in its cases."""
    alone: dict[str, list[float]] = defaultdict(list)
    off: dict[bool, dict[str, list[float]]] = {True: defaultdict(list), False: defaultdict(list)}
    busy = 0
    for case in cases:
        run = run_of(case)
        if run is None:
            continue
        if is_upper_bound(case):
            continue  # a text of which every draft token is accepted is no evidence for other texts
        busy += run.requests >= LEAST_REQUESTS
        if run.requests == 1:
            alone[case.source].append(run.speed)
        if run.requests == 1 or run.requests >= LEAST_REQUESTS:
            off[run.requests > 1][case.source] += _off(case, run, known)
    return PublishedEvidence(
        **key._asdict(),
        rows=len(cases),
        sources=tuple(sorted({case.source.replace(",", " ") for case in cases})),
        alone=_middle(alone),
        busy=busy,
        off_alone=_middle(off[False]),
        off_busy=_middle(off[True]),
    )


def _off(case: PublishedCase, run: PublishedRun, known: Factors) -> list[float]:
    """Published over predicted (log)."""
    offs = {one.metric: math.log(one.measured / one.predicted.mid) for one in score(case, known)}
    metrics = ("decode_tps_per_request",) * (run.requests == 1) + ("decode_tps_aggregate",)
    return [offs[metric] for metric in metrics if metric in offs][:1]


def _middle(by_source: Mapping[str, list[float]]) -> float | None:
    """Median over sources of the median of each, so that a source with many rows counts once."""
    each = [median(values) for values in by_source.values() if values]
    return round(median(each), 3) if each else None
