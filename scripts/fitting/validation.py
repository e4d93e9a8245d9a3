"""Errors of predictions on rows outside the fit: errors, head-to-heads, bands, and the noise of the data."""

from __future__ import annotations

import collections
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fitting.factoring import Found, case_errors, fit
from sparkfleet.accuracy.accuracy import winner
from sparkfleet.accuracy.duels import duel_of, read_duels
from sparkfleet.accuracy.models import Configs, Declined
from sparkfleet.accuracy.rows import PublishedCase, source_of
from sparkfleet.knowledge.published.factors import Factors
from sparkfleet.perf.latency.bands import WIDEST, support


def groups(
    cases: Sequence[PublishedCase], key: Callable[[PublishedCase], str], folds: int | None
) -> dict[str, int]:
    """Number of the fold in which each group is left out; a group with a third of all rows is a fold of its own."""
    sizes = collections.Counter(key(case) for case in cases)
    if folds is None:
        return {name: i for i, name in enumerate(sizes)}
    found, load = {}, [0] * folds
    for name, size in sizes.most_common():
        i = int(np.argmin(load))
        found[name], load[i] = i, load[i] + size
    return found


Errors = list[tuple[PublishedCase, str, float, str]]
"""(case, metric, log error, support) of predictions."""


def left_out(
    cases: Sequence[PublishedCase], key: Callable[[PublishedCase], str], folds: int | None, start: Found
) -> tuple[Errors, dict[str, Factors]]:
    """Errors of predictions from fits that had not seen the case's group, and those fits by group."""
    fold = groups(cases, key, folds)
    errors: Errors = []
    fits: dict[int, Factors] = {}
    for i in sorted(set(fold.values())):
        factors = fits[i] = fit(cases, lambda case, i=i: fold[key(case)] != i, start=start).factors
        for case in cases:
            if fold[key(case)] == i:
                known = support(case.setup, factors)
                errors += [(case, m, e, known) for m, e in case_errors(case, factors).items()]
        print(".", end="", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    return errors, {name: fits[i] for name, i in fold.items()}


def head_to_heads(path: Path, configs: Configs, factors: Callable[[str], Factors]) -> None:
    """Winners by tag; `factors` gives those that are used for a source."""
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for words in read_duels(path):
        counts[words.tag]["rows"] += 1
        try:
            duel = duel_of(words, configs)
        except (Declined, ValueError):
            continue
        source = source_of({"source_url_or_repo_path": words.row.get("source", "")})
        first = winner(duel, factors(source))
        counts[words.tag]["decided"] += first is not None
        counts[words.tag]["right"] += first is not None and first == duel.first_won
    for tag, n in sorted(counts.items()):
        print(f"  {tag:14} {n['right']:4} right of {n['decided']:4} decided ({n['rows']} in all)")


def table(title: str, errors: Errors, where: Callable[[PublishedCase], bool] = lambda _: True) -> None:
    """Median and p90 absolute error by metric, without and with speculation."""
    print(f"\n{title}")
    print(
        f"  {'metric':26}{'rows':>6}{'median':>8}{'p90':>8}      {'rows':>6}{'median':>8}{'p90':>8}  (speculative)"
    )
    for metric in ("decode_tps_per_request", "decode_tps_aggregate", "prefill_tps", "ttft_ms"):
        line = f"  {metric:26}"
        for spec in (False, True):
            ape = [
                abs(math.exp(e) - 1)
                for c, m, e, _ in errors
                if m == metric and c.speculative == spec and where(c)
            ]
            line += (
                f"{len(ape):6}{100 * np.median(ape):7.1f}%{100 * np.quantile(ape, 0.9):7.1f}%      "
                if ape
                else " " * 27
            )
        print(line)


METRICS = ("decode_tps_per_request", "decode_tps_aggregate", "prefill_tps", "ttft_ms")


def medians(errors: Errors, where: Callable[[PublishedCase], bool] = lambda _: True) -> dict[str, float]:
    """Median absolute error by metric; "(spec.)" behind it with speculation."""
    found: dict[str, list[float]] = collections.defaultdict(list)
    for case, metric, error, _ in errors:
        if where(case):
            found[metric + (" (spec.)" if case.speculative else "")].append(abs(math.exp(error) - 1))
    keys = [metric + spec for metric in METRICS for spec in ("", " (spec.)")]
    return {key: float(np.median(found[key])) for key in keys if found[key]}


def by_source(errors: Errors) -> dict[str, float]:
    """Median over sources of each one's median error: every source counts once."""
    each: dict[str, dict[str, float]] = {}
    for source in {case.source for case, *_ in errors}:
        each[source] = medians(errors, lambda case, source=source: case.source == source)
    keys = [metric + spec for metric in METRICS for spec in ("", " (spec.)")]
    rows = {key: [one[key] for one in each.values() if key in one] for key in keys}
    return {key: float(np.median(values)) for key, values in rows.items() if values}


SUPPORT = ("known", "family", "kind", "none")


BAND = 0.8
"""Share of the errors on left-out sources that a band holds."""
CROWD = 0.5
"""Rows of a source with n of them count as n^-0.5 each. With 0.2 the bands hold 77 % of the rows of all but the largest
source, and of the rows of sources that were new in November 2026 72 %; with 0.5 80 % and 76 %, and 86 % of all rows."""


def bands_of(errors: Errors) -> dict[str, float]:
    """Half widths that hold 80 % of the errors on left-out sources, by quantity, speculation and support.

    A source with n rows counts as n^0.5 of them, so that no single one decides; knowing less is never narrower.
    """
    found: dict[str, list[tuple[str, float]]] = collections.defaultdict(list)
    for case, metric, error, known in errors:
        found[band_key(case, metric, known)].append((case.source, abs(error)))
    return monotone({key: _weighed_quantile(e) for key, e in found.items() if len(e) >= 8})


def band_key(case: PublishedCase, metric: str, known: str) -> str:
    """The band that a prediction has."""
    quantity = "decode" if metric.startswith("decode") else "prefill"
    return f"{quantity}/{'spec' if case.speculative else 'none'}/{known}"


def _weighed_quantile(errors: Sequence[tuple[str, float]]) -> float:
    rows = collections.Counter(source for source, _ in errors)
    ordered = sorted(errors, key=lambda one: one[1])
    weights = np.cumsum([rows[source] ** -CROWD for source, _ in ordered])
    return ordered[int(np.searchsorted(weights, BAND * weights[-1]))][1]


def coverage(errors: Errors, bands: dict[str, float]) -> dict[str, float]:
    """Share of the errors within their band, by quantity and speculation."""
    inside: dict[str, list[bool]] = collections.defaultdict(list)
    for case, metric, error, known in errors:
        key = band_key(case, metric, known)
        inside[key.rpartition("/")[0]].append(abs(error) <= bands.get(key, WIDEST))
        inside["all"].append(inside[key.rpartition("/")[0]][-1])
    return {key: float(np.mean(flags)) for key, flags in sorted(inside.items())}


def monotone(halves: dict[str, float]) -> dict[str, float]:
    """Every support of every quantity, at least as wide as those of better known ones."""
    bands: dict[str, float] = {}
    for stem in sorted({key.rpartition("/")[0] for key in halves}):
        widest = 0.0
        for known in SUPPORT:
            widest = max(widest, halves.get(f"{stem}/{known}", 0.0))
            bands[f"{stem}/{known}"] = round(widest, 3)
    return bands


def noise_floor(cases: Sequence[PublishedCase]) -> None:
    """Difference between sources that measured an equal configuration."""
    cells: dict[tuple, dict[str, list[float]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for case in cases:
        s, w = case.setup, case.workload
        for metric, value in case.measured:
            key = (
                s.shape.family,
                s.format,
                s.engine,
                s.tp,
                s.method,
                s.k,
                w.concurrency,
                w.content if case.speculative else "",
                metric,
            )
            cells[key][case.source].append(value)
    print("\nnoise floor: another source with an equal configuration as the prediction")
    for spec in (False, True):
        ape = [
            abs(float(np.median(a)) / float(np.median(b)) - 1)
            for key, cell in cells.items()
            if (key[4] != "none") == spec and key[-1].startswith("decode")
            for x, a in cell.items()
            for y, b in cell.items()
            if x != y
        ]
        if ape:
            print(
                f"  decode {'speculative' if spec else 'none':12} {len(ape):5} pairs, median {100 * np.median(ape):.1f} %"
            )
