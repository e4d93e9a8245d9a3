"""Both fits as the factors that predictions need, and factors as a file."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fitting.priors import DECODE_PRIORS, NUISANCE, PREFILL_PRIORS, expected
from fitting.problems import YIELD, Problem, decode_problem, prefill_problem, with_sources
from fitting.solver import Fit, solve
from sparkfleet.accuracy.accuracy import predict
from sparkfleet.accuracy.rows import PublishedCase
from sparkfleet.knowledge.published.factors import Effect, Factors
from sparkfleet.perf.latency.factor_keys import decode_coefficient, prefill_coefficient
from sparkfleet.perf.latency.latency_model import LatencyModel, model_of


def as_factors(
    prefill: Fit, decode: Fit, counts: Mapping[str, collections.Counter], spreads: dict, bands: dict
) -> Factors:
    """The fit in the form that predictions need."""

    def effects(quantity: str, found: dict[str, float]) -> dict[str, dict[str, float]]:
        return {
            key: {
                "log": round(value, 4),
                "n": counts[quantity][key],
                "spread": round(spreads.get((quantity, key), 0.0), 3),
            }
            for key, value in sorted(found.items())
            if not key.startswith(NUISANCE)
        }

    return Factors.model_validate(
        {
            "coefficients": {
                "prefill": _rounded(expected(PREFILL_PRIORS, prefill_coefficient) | prefill.coefficients),
                "decode": _rounded(expected(DECODE_PRIORS, decode_coefficient) | decode.coefficients),
            },
            "effects": {
                "prefill": effects("prefill", prefill.effects),
                "decode": effects("decode", decode.effects),
            },
            "acceptance": effects("acceptance", decode.acceptance),
            "bands": bands,
        },
        strict=False,
    )


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in sorted(values.items()) if key != "unit"}


@dataclass(frozen=True)
class Found:
    """Both fits, from which another may begin, and the factors made of them."""

    factors: Factors
    prefill: Fit
    decode: Fit


def fit(
    cases: Sequence[PublishedCase],
    use: Callable[[PublishedCase], bool],
    *,
    start: Found | None = None,
    bands: dict[str, float] | None = None,
) -> Found:
    """Both quantities: prefill first, because decode rates contain prefills of others.

    Args:
        cases: measurements.
        use: which of them may be seen.
        start: a fit to much the same measurements.
        bands: half widths to keep with the factors; spreads are worked out only then.
    """
    chosen = [case for case in cases if use(case)]
    prefilling = with_sources(prefill_problem(chosen))
    prefill = solve(prefilling, start.prefill if start else None)
    counts = {"prefill": _counts(prefilling, prefilling.effects)}
    half = as_factors(prefill, Fit({}, {}, {}), collections.defaultdict(collections.Counter, counts), {}, {})
    decoding = with_sources(decode_problem(chosen, _prefill_seconds(half)))
    decode = solve(decoding, start.decode if start else None)
    counts |= {
        "decode": _counts(decoding, decoding.effects),
        "acceptance": _counts(decoding, decoding.accept),
    }
    factors = as_factors(prefill, decode, counts, {}, bands or {})
    if bands is not None:
        spreads = _spreads("prefill", prefilling, factors) | _spreads("decode", decoding, factors)
        factors = as_factors(prefill, decode, counts, spreads, bands)
    return Found(factors, prefill, decode)


def _prefill_seconds(factors: Factors) -> Callable[[PublishedCase, float], float]:
    """Seconds for a batch of a case's prompts; each setup is worked out once."""
    models: dict[int, LatencyModel] = {}

    def seconds(case: PublishedCase, batch: float) -> float:
        model = models.setdefault(id(case), model_of(case.setup, factors))
        return model.prefill_s(batch, case.workload)

    return seconds


def _counts(problem: Problem, keys: Sequence[Collection[str]]) -> collections.Counter:
    return collections.Counter(
        k for i, row in enumerate(keys) if problem.fitted[i] and problem.what[i] != YIELD for k in row
    )


def _spreads(quantity: str, problem: Problem, factors: Factors) -> dict[tuple[str, str], float]:
    """Standard deviation (log) of the rest to which a key applies, from medians (robust)."""
    left: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    for i, case in enumerate(problem.cases):
        error = case_errors(case, factors).get(problem.what[i]) if problem.fitted[i] else None
        if error is None:
            continue
        for key in problem.effects[i]:
            left[quantity, key].append(abs(error))
        for key in problem.accept[i]:
            left["acceptance", key].append(abs(error))
    return {key: float(1.48 * np.median(errors)) for key, errors in left.items()}


def case_errors(case: PublishedCase, factors: Factors) -> dict[str, float]:
    """log(predicted / measured) of each metric of a case, by a whole prediction."""
    predicted = predict(case, factors)
    return {m: math.log(predicted[m].mid / v) for m, v in case.measured if predicted.get(m) is not None}


def write(factors: Factors, path: Path, about: str) -> None:
    """One line per factor, so that a change can be read."""
    lines = [f"# Written by scripts/fit.py; do not edit. {about}", "version: 1", "coefficients:"]
    for quantity, values in factors.coefficients.items():
        lines += [f"  {quantity}:"] + [f"    {key}: {value}" for key, value in values.items()]
    lines.append("effects:")
    for quantity, effects in factors.effects.items():
        lines += [f"  {quantity}:"] + [_line(key, e, "    ") for key, e in effects.items()]
    lines += ["acceptance:"] + [_line(key, e, "  ") for key, e in factors.acceptance.items()]
    lines += ["bands:"] + [f"  {key}: {value}" for key, value in factors.bands.items()]
    lines.append("validation:")
    for title, values in factors.validation.items():
        lines += [f"  {title}:"] + [f"    {key}: {round(value, 4)}" for key, value in values.items()]
    path.write_text("\n".join(lines) + "\n")


def _line(key: str, effect: Effect, indent: str) -> str:
    return f'{indent}"{key}": {{log: {effect.log}, n: {effect.n}, spread: {effect.spread}}}'
