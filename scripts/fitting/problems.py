"""Published measurements as rows of matrices: physical terms in seconds, and the keys of what is unknown about them."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fitting.priors import (
    DECODE_PRIORS,
    DECODE_RIDGE,
    DECODE_ROBUST_AT,
    PREFILL_PRIORS,
    PREFILL_RIDGE,
    PREFILL_ROBUST_AT,
    Priors,
)
from sparkfleet.accuracy.models import Declined
from sparkfleet.accuracy.physical_gate import possible
from sparkfleet.accuracy.rows import PublishedCase, case_of, read_rows
from sparkfleet.perf.latency.acceptance import acceptance_keys
from sparkfleet.perf.latency.factor_keys import (
    decode_coefficient,
    decode_keys,
    prefill_coefficient,
    prefill_keys,
)
from sparkfleet.perf.latency.latency_model import in_step
from sparkfleet.perf.latency.rates import MAX_RUNNING, kept, left_of_burst, waits
from sparkfleet.perf.latency.roofline_terms import burst_terms, step_terms
from sparkfleet.perf.latency.step_costs import SpeedConfig, costs

Array = np.ndarray


def load(rows: Path, configs: Path) -> list[PublishedCase]:
    """All cases of a file that can be predicted, without the figures that no machine can reach."""
    return [case for case in map(possible, cases_of(rows, configs)) if case.measured]


def cases_of(rows: Path, configs: Path) -> list[PublishedCase]:
    """All cases of a file that can be predicted, as published."""
    known = json.loads(configs.read_text())
    cases = []
    for row in read_rows(rows):
        try:
            cases.append(case_of(row, known))
        except Declined:
            continue
    return cases


def run_of(case: PublishedCase) -> str:
    """One model in one format by one source."""
    return f"{case.source} {case.model} {case.quant}"


CROWDING = 0.35
"""Rows of a source with n of them count as n^-0.35 each: they repeat its box and its habits. What validates best."""


@dataclass
class Problem:
    """Measurements of one quantity as rows of a matrix."""

    cases: list[PublishedCase]
    what: list[str]
    y: Array
    """Logarithm of the measured time."""
    seconds: Array
    """rows × terms, from the ceilings."""
    columns: Array
    """rows × terms, which coefficient each is multiplied by."""
    names: list[str]
    effects: list[Mapping[str, float]]
    """Keys of each row's effects, with the share that applies."""
    accept: list[tuple[str, ...]]
    drafts: Array
    mix: Array
    """rows × requests: seconds per token that are no part of the step, prefills of others; beyond the last request inf."""
    fitted: Array
    """False for rows that only a whole prediction describes (open loop, queues)."""
    priors: Priors
    ridge: Mapping[str, float]
    """Strength with which effects are held to zero, by level."""
    robust_at: float
    """Errors (log) beyond which a row counts linearly."""
    weight: Array = field(init=False)

    def __post_init__(self) -> None:
        """A source with many rows counts as less than their number, see `CROWDING`."""
        counts = collections.Counter(
            c.source for c, w in zip(self.cases, self.what, strict=True) if w != YIELD
        )
        self.weight = np.array([0.4 * max(1, counts[case.source]) ** -CROWDING for case in self.cases])


def batch_of(case: PublishedCase) -> float:
    """Requests that really run together on one replica."""
    return min(max(1.0, case.workload.concurrency / case.replicas), case.setup.max_running or MAX_RUNNING)


Row = tuple[PublishedCase, str, float, bool]
"""Case, metric, measured seconds, and whether it is fitted on."""


def prefill_problem(cases: Sequence[PublishedCase]) -> Problem:
    """Prefill rates and times to the first token."""
    rows: list[Row] = []
    terms: list[dict[str, float]] = []
    for case in cases:
        if case.workload.prefill:
            for row, mean, fixed in _prefill_rows(case):
                rows.append(row)
                terms.append(_prefill_terms(case, mean=mean, fixed=fixed))
    return _problem(
        rows,
        terms,
        prefill_coefficient,
        effects=[prefill_keys(c.setup, c.workload.prompt, batch_of(c)) for c, *_ in rows],
        accept=[() for _ in rows],
        mix=np.zeros((len(rows), 1)),
        priors=PREFILL_PRIORS,
        ridge=PREFILL_RIDGE,
        robust_at=PREFILL_ROBUST_AT,
    )


def _prefill_rows(case: PublishedCase) -> Iterator[tuple[Row, bool, bool]]:
    """(row, mean of a burst or its last, with what a request costs whatever its length) of each prefill figure."""
    work, measured = case.workload, dict(case.measured)
    running = max(1.0, work.concurrency / case.replicas)
    queued = running > (case.setup.max_running or MAX_RUNNING) or work.arrivals_per_s is not None
    if "prefill_tps" in measured:
        alone = case.per_request_prefill
        tokens = work.prefill * (1 if alone else running * case.replicas)
        yield (case, "prefill_tps", tokens / measured["prefill_tps"], not queued), alone, alone
    if "ttft_ms" in measured:
        staggered = left_of_burst(case.setup, work, running) < 1
        yield (case, "ttft_ms", measured["ttft_ms"] / 1000, not queued and not staggered), True, True


def _prefill_terms(case: PublishedCase, *, mean: bool, fixed: bool) -> dict[str, float]:
    work = case.workload
    depth = work.depth if work.depth_cached else 0
    batch, at_once = batch_of(case), mean and in_step(case.setup, work)
    terms = burst_terms(case.setup, costs(case.setup), batch, work.prefill, depth, mean=mean, at_once=at_once)
    return terms if fixed else {name: s for name, s in terms.items() if name != "fixed"}


YIELD = "yield"
"""Tokens per step, if somebody published them, are fitted beside the rates: they separate acceptance from the step."""


def decode_problem(
    cases: Sequence[PublishedCase], prefill: Callable[[PublishedCase, float], float]
) -> Problem:
    """Decode rates; `prefill` returns the seconds that a batch of the case's prompts takes."""
    rows: list[Row] = []
    mixes: list[tuple[float, ...]] = []
    common = said_of_several(cases)
    for case in cases:
        batch, measured = batch_of(case), dict(case.measured)
        for what in ("decode_tps_per_request", "decode_tps_aggregate"):
            if what in measured:
                share = (
                    1.0
                    if what == "decode_tps_per_request"
                    else batch * case.replicas * kept(case.workload, batch, drafted=case.speculative)
                )
                rows.append((case, what, share / measured[what], case.workload.arrivals_per_s is None))
                mixes.append(_mix(case, batch, what, prefill))
    rows += [
        (case, YIELD, 1 / case.yielded, True) for case in cases if case.yielded and case.id not in common
    ]
    mixes += [(0.0,)] * (len(rows) - len(mixes))
    return _problem(
        rows,
        [_step_terms(c) if what != YIELD else {"unit": 1.0} for c, what, *_ in rows],
        decode_coefficient,
        effects=[decode_keys(c.setup, batch_of(c)) if what != YIELD else {} for c, what, *_ in rows],
        accept=[acceptance_keys(c.setup, c.workload.content) if c.speculative else () for c, *_ in rows],
        mix=_padded(mixes),
        priors=DECODE_PRIORS,
        ridge=DECODE_RIDGE,
        robust_at=DECODE_ROBUST_AT,
    )


def said_of_several(cases: Sequence[PublishedCase]) -> set[str]:
    """Ids of rows whose tokens per step are one figure for texts of several kinds: it is true of none of them."""
    kinds: dict[tuple[object, ...], set[str]] = collections.defaultdict(set)

    def figure(case: PublishedCase) -> tuple[object, ...]:
        return run_of(case), case.setup.method, case.setup.k, case.yielded

    for case in cases:
        if case.yielded:
            kinds[figure(case)].add(case.workload.content)
    return {case.id for case in cases if case.yielded and len(kinds[figure(case)]) > 1}


def _step_terms(case: PublishedCase) -> dict[str, float]:
    width = case.setup.k + 1 if case.speculative else 1
    return step_terms(case.setup, costs(case.setup), batch_of(case), width, case.workload.context)


def _mix(
    case: PublishedCase, batch: float, what: str, prefill: Callable[[PublishedCase, float], float]
) -> tuple[float, ...]:
    """Seconds of prefill per token of the answer of each request, as planning.rates counts them."""
    if not case.workload.prefill or case.workload.arrivals_per_s is not None:
        return (0.0,)
    of_each, of_all = waits(case.workload.window, batch, prefill(case, batch), drafted=case.speculative)
    found = (of_all,) if what == "decode_tps_aggregate" else of_each
    return tuple(wait / case.workload.generate for wait in found)


def _padded(rows: Sequence[Sequence[float]]) -> Array:
    table = np.full((len(rows), max(map(len, rows), default=1)), np.inf)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table


def _problem(
    rows: list[Row],
    terms: list[dict[str, float]],
    key: Callable[[SpeedConfig, str], str],
    *,
    effects: list[Mapping[str, float]],
    accept: list[tuple[str, ...]],
    mix: Array,
    priors: Priors,
    ridge: Mapping[str, float],
    robust_at: float,
) -> Problem:
    order = sorted({name for t in terms for name in t})
    names: dict[str, int] = {}
    seconds, columns = np.zeros((len(rows), len(order))), np.zeros((len(rows), len(order)), int)
    for i, (row, found) in enumerate(zip(rows, terms, strict=True)):
        for j, name in enumerate(order):
            seconds[i, j] = found.get(name, 0.0)
            columns[i, j] = names.setdefault(key(row[0].setup, name), len(names))
    return Problem(
        cases=[r[0] for r in rows],
        what=[r[1] for r in rows],
        y=np.log([r[2] for r in rows]),
        seconds=seconds,
        columns=columns,
        names=list(names),
        effects=effects,
        accept=accept,
        drafts=np.array([r[0].setup.k if keys else 0 for r, keys in zip(rows, accept, strict=True)], float),
        mix=mix,
        priors=priors,
        ridge=ridge,
        robust_at=robust_at,
        fitted=np.array([r[3] for r in rows]),
    )


def with_sources(problem: Problem) -> Problem:
    """The problem with an effect for each source and each of its runs."""
    problem.effects = [
        {**keys, **dict.fromkeys(_own(case, drafts=any(problem.drafts)), 1.0)} if what != YIELD else {}
        for keys, case, what in zip(problem.effects, problem.cases, problem.what, strict=True)
    ]
    return problem


def _own(case: PublishedCase, *, drafts: bool) -> list[str]:
    """Keys of one source: its box, and the text that its drafters guess."""
    both = [f"source={case.source}", f"run={run_of(case)}"]
    if drafts and case.speculative:
        both += [f"source=drafts of {case.source}", f"run=drafts of {run_of(case)}"]
    return both
