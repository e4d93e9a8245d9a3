"""Errors of predictions against published measurements: `sparkfleet accuracy ROWS.csv`.

    compare_rows(rows, configs, head_to_heads) -> AccuracyReport   report.json() for machines, report.text() for people

Predictions come from the committed factors only; a row's own measured columns are never read to predict it.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from sparkfleet.accuracy.accuracy_report import AccuracyReport, ScoredCase, Wins, cells_of, kind_of
from sparkfleet.accuracy.aliases import BLANK, is_off, lowered
from sparkfleet.accuracy.cells import CsvRow, measured
from sparkfleet.accuracy.duels import Duel, duel_of, read_duels
from sparkfleet.accuracy.files import NOTHING, reading
from sparkfleet.accuracy.models import Configs, Declined
from sparkfleet.accuracy.physical_gate import impossible
from sparkfleet.accuracy.rows import METRICS, PublishedCase, case_of, read_rows
from sparkfleet.errors import SpecError
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.published.factors import Factors, factors
from sparkfleet.perf.latency.latency_model import model_of
from sparkfleet.perf.latency.rates import rates
from sparkfleet.perf.prediction import Band


def compare_rows(
    rows_path: Path, configs_path: Path | None = None, h2h_path: Path | None = None
) -> AccuracyReport:
    """Compares every row of a file with its prediction.

    Args:
        rows_path: CSV with the columns of `knowledge/measurements/benchmarks.csv`.
        configs_path: JSON of model name → architecture; the packaged ones are used for what it does not have.
        h2h_path: CSV of head-to-heads, or None.

    Raises:
        SpecError: a file is missing or invalid.
    """
    configs = architectures() if configs_path is None else {**architectures(), **_read_configs(configs_path)}
    known = factors()
    scored: list[ScoredCase] = []
    carried: Counter[tuple[str, str]] = Counter()
    unreached: list[str] = []
    declined: Counter[str] = Counter()
    assumed: Counter[str] = Counter()
    rows = read_rows(rows_path)
    for row in rows:
        try:
            case = case_of(row, configs)
        except Declined as reason:
            declined[str(reason)] += 1
            _carry(row, carried)
            continue
        found = score(case, known)
        carried.update((m, kind_of(case)) for m, _ in case.measured)
        scored += found
        unreached += [
            f"{case.id} {case.model} {metric}: {reason}" for metric, reason in impossible(case).items()
        ]
        assumed.update(case.assumed)
        missing = len(case.measured) - len(found)
        if missing:
            declined["no prompt length: no prefill rate or time to first token"] += 1
        declined.update(_unread(row, case))
    wins, undecided, side_assumed = _wins(h2h_path, configs, known) if h2h_path else ({}, {}, {})
    return AccuracyReport(
        rows=len(rows),
        scored=tuple(scored),
        metrics=cells_of(scored, carried),
        declined=dict(declined),
        assumed={**assumed, **side_assumed},
        head_to_heads=wins,
        undecided=undecided,
        impossible=tuple(unreached),
        validation=known.validation,
    )


def _unread(row: CsvRow, case: PublishedCase) -> Iterator[str]:
    """The reason for each figure of a row that is not compared, or for the row if it has none."""
    found = {metric for metric, _ in case.measured}
    stated = [m for m in METRICS if lowered(row.get(m, "")) not in BLANK]
    if not stated:
        yield f"no figure: none of {', '.join(METRICS)}"
    for metric in stated:
        if metric in found:
            continue
        if measured(row, metric) is None:
            yield f"{metric} is no number above zero"
        else:
            yield f"{metric} is no measure of a prefill: a cached prompt, or a warm-up"


def score(case: PublishedCase, known: Factors) -> list[ScoredCase]:
    """Measured next to predicted; metrics without a prediction are left out."""
    predicted = predict(case, known)
    return [
        ScoredCase(case=case, metric=metric, measured=value, predicted=band)
        for metric, value in case.measured
        if (band := predicted[metric]) is not None
    ]


def predict(case: PublishedCase, known: Factors) -> dict[str, Band | None]:
    """Predictions for a case, by metric. None if the planner has none."""
    work = case.workload
    if case.replicas > 1:
        work = work.model_copy(update={"concurrency": _fullest(work.concurrency, case.replicas)})
    busy = min(case.replicas, case.workload.concurrency)
    found = rates(model_of(case.setup, known), work)
    prefill = found.prefill_tps
    if case.per_request_prefill and found.ttft_ms is not None:
        prefill = _over(1000.0 * work.prefill, found.ttft_ms)
    elif prefill is not None:
        prefill = _times(prefill, busy)
    return {
        "decode_tps_per_request": found.decode_tps_per_request,
        "decode_tps_aggregate": _times(
            found.decode_tps_aggregate, case.workload.concurrency / work.concurrency
        ),
        "prefill_tps": prefill,
        "ttft_ms": found.ttft_ms,
    }


def _fullest(requests: int, replicas: int) -> int:
    """Requests on the fullest replica if a plain proxy spreads them at random: it ends last."""
    return (
        max(1, round(requests / replicas + 0.4 * math.sqrt(requests * (replicas - 1)))) if requests > 1 else 1
    )


def winner(duel: Duel, known: Factors) -> bool | None:
    """True if the first side is predicted to win; None if the predictions do not separate them."""
    first, second = predict(duel.first, known)[duel.metric], predict(duel.second, known)[duel.metric]
    if first is None or second is None or abs(first.mid / second.mid - 1.0) < 0.005:
        return None
    return (first.mid < second.mid) if duel.lower_wins else (first.mid > second.mid)


def _wins(
    path: Path, configs: Configs, known: Factors
) -> tuple[dict[str, Wins], dict[str, int], dict[str, int]]:
    """(Wins by tag, counts of reasons for undecided ones, counts of assumptions about sides)."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    undecided: Counter[str] = Counter()
    assumed: Counter[str] = Counter()
    for words in read_duels(path):
        count = counts[words.tag]
        count[0] += 1
        try:
            duel = duel_of(words, configs)
        except Declined as reason:
            undecided[str(reason)] += 1
            continue
        assumed.update(f"head-to-head: {what}" for what in duel.assumed)
        first = winner(duel, known)
        if first is None:
            undecided[_even(duel, known)] += 1
            continue
        count[1] += 1
        count[2] += first == duel.first_won
    wins = {tag: Wins(rows=c[0], decided=c[1], right=c[2]) for tag, c in sorted(counts.items())}
    return wins, dict(undecided), dict(assumed)


def _even(duel: Duel, known: Factors) -> str:
    if predict(duel.first, known)[duel.metric] is None:
        return "no prompt length: no prefill rate or time to first token"
    return "predicted within 0.5 %"


def _read_configs(path: Path) -> Configs:
    expected, do = (
        "a JSON file",
        "Give one that maps names of models to their config.json, or leave --configs out.",
    )
    with reading(path, expected, do):
        found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise SpecError(f"{path}: contains no mapping. Expected {expected}.", means=NOTHING, do=do)
    return {str(name): entry for name, entry in found.items() if isinstance(entry, dict)}


def _times(band: Band, factor: float) -> Band:
    return band.model_copy(
        update={"low": band.low * factor, "mid": band.mid * factor, "high": band.high * factor}
    )


def _over(dividend: float, band: Band) -> Band:
    return band.model_copy(
        update={"low": dividend / band.high, "mid": dividend / band.mid, "high": dividend / band.low}
    )


def _carry(row: CsvRow, carried: Counter[tuple[str, str]]) -> None:
    spec = "none" if is_off(row.get("spec_method", "")) else "speculative"
    carried.update((metric, spec) for metric in METRICS if measured(row, metric) is not None)
