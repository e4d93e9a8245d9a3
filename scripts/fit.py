"""Fit `sparkfleet/knowledge/factors.yaml` to published measurements, and say how good it is on what it has not seen.

    python scripts/fit.py                    fit, validate, write factors.yaml, print the tables of docs/planner.md
    python scripts/fit.py --dry-run          the same without writing
    python scripts/fit.py --rows FILE --configs FILE

Method. Physics (planning/speed.py) gives every measurement a sum of terms in seconds. One maximum-a-posteriori fit in the
logarithm of time then finds, all at once:

    coefficients   log-normal priors around what the ceilings suggest
    acceptance     logits by method, content, family, with normal priors around typical values
    effects        one per key (calibration.py), shrunk to zero by a ridge: rare cells keep what the general ones say

Errors count as in a Student distribution (half of L2, half of L1: patched stacks and boots differ by 2x), and a source
with many rows counts as the square root of their number. Validation repeats the whole fit without each source (LOSO) or
family of models (LOMO). Bands are the 80 % quantiles of the LOSO errors, by how much was known about the setup.

Needs numpy; the package itself does not.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sparkfleet.bench.rows import Case, case_of, read_rows
from sparkfleet.bench.shapes import Declined
from sparkfleet.knowledge.factors import Factors
from sparkfleet.planning.acceptance import CEILING, acceptance_keys
from sparkfleet.planning.calibration import (
    decode_coefficient,
    decode_keys,
    prefill_coefficient,
    prefill_keys,
)
from sparkfleet.planning.rates import MAX_RUNNING, Model, model_of, support
from sparkfleet.planning.speed import Setup, burst_terms, costs, step_terms

ROOT = Path(__file__).parents[1]
KNOWLEDGE = ROOT / "sparkfleet" / "knowledge"
Array = np.ndarray

Priors = dict[str, tuple[float, float]]

# Where coefficients are expected before anything was measured: (value, strength of the prior).
DECODE_PRIORS = {
    "weights": (1.08, 2.4),
    "experts": (1.25, 1.2),
    "kv": (1.5, 0.6),
    "state": (1.2, 0.6),
    "compute": (1.3, 0.6),
    "launch": (2.0, 0.3),
    "linear": (2.0, 0.3),
    "routing": (3.0, 0.3),
    "step": (1.0, 0.3),
    "sequence": (0.5, 0.3),
    "latency": (1.5, 0.6),
    "transfer": (1.5, 0.6),
    "draft": (1.0, 0.6),
    "draft_launch": (1.0, 0.6),
}
PREFILL_PRIORS = {
    "compute": (2.0, 0.5),
    "attention": (1.5, 0.5),
    "weights": (1.0, 0.5),
    "linear": (1.0, 0.5),
    "fixed": (5.0, 0.5),
    "transfer": (1.5, 0.5),
}
COMPUTE_PRIORS = {
    "bf16/dense": 1.3,
    "bf16/moe": 1.8,
    "fp8/dense": 2.0,
    "fp8/moe": 2.5,
    "nvfp4/dense": 2.0,
    "nvfp4/moe": 3.5,
}
ACCEPTANCE_PRIORS = {
    "method=ngram": -1.2,
    "method=mtp": 1.0,
    "method=dspark": 0.6,
    "method=dflash": 0.4,
    "method=dflash2": 0.9,
    "method=eagle3": 0.3,
    "method=draft": 0.5,
    "content=structured": 0.7,
    "content=code": 0.4,
    "content=prose": -0.6,
    "content=random": -0.5,
    "content=agent": 0.0,
    "content=book": -0.3,
    "content=math": 0.1,
    "content=mixed": 0.0,
}
# Ridge strength by level: general keys are held closer to zero than their number of rows would.
RIDGE = collections.defaultdict(
    lambda: 0.4,
    {
        "engine": 1.2,
        "engine+kind": 0.8,
        "release": 0.6,
        "crowd": 0.8,
        "crowd+kind": 0.6,
        "crowd+family": 0.6,
        "source": 0.4,
        "run": 0.1,
        "spec+crowd": 2.0,
        "spec+method+crowd": 2.0,
        "spec+family+engine": 2.0,
        "spec+method+engine": 2.0,
    },
)
ACCEPTANCE_RIDGE = 1.2
DECODE_SHRINK, PREFILL_SHRINK = 2.0, 40.0
"""How many times stronger than `RIDGE` effects are held to zero: what validates best. Prefill is nearer to physics."""
NUISANCE = ("source=", "run=")
"""What is true of one author's box and stack: fitted, so that it is not taken for a property of a model, and dropped."""
ROBUST_AT = 0.3
"""Errors (log) beyond which a row counts linearly."""


@dataclass
class Problem:
    """Measurements of one quantity as rows of a matrix."""

    cases: list[Case]
    what: list[str]
    y: Array
    """Logarithm of the measured time."""
    seconds: Array
    """rows × terms, as the ceilings say."""
    columns: Array
    """rows × terms, which coefficient each is multiplied by."""
    names: list[str]
    effects: list[tuple[str, ...]]
    accept: list[tuple[str, ...]]
    drafts: Array
    mix: Array
    """Seconds that are no part of the step: prefills of others."""
    fitted: Array
    """False for rows that only a whole prediction describes (open loop, queues)."""
    priors: Priors
    shrink: float
    """How many times stronger than `RIDGE` effects are held to zero: what validates best."""
    weight: Array = field(init=False)

    def __post_init__(self) -> None:
        """A source with n rows counts as the square root of n."""
        counts = collections.Counter(case.source for case in self.cases)
        self.weight = np.array([counts[case.source] ** -0.5 for case in self.cases])


@dataclass
class Fit:
    """What was found: coefficients, effects and acceptance by key."""

    coefficients: dict[str, float]
    effects: dict[str, float]
    acceptance: dict[str, float]


def batch_of(case: Case) -> float:
    """Requests that really run together on one replica."""
    return min(max(1.0, case.workload.concurrency / case.replicas), case.setup.max_running or MAX_RUNNING)


Row = tuple[Case, str, float, bool]
"""Case, metric, measured seconds, and whether it is fitted on."""


def prefill_problem(cases: Sequence[Case]) -> Problem:
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
        mix=np.zeros(len(rows)),
        priors=PREFILL_PRIORS,
        shrink=PREFILL_SHRINK,
    )


def _prefill_rows(case: Case) -> Iterator[tuple[Row, bool, bool]]:
    """(row, mean of a burst or its last, with what a request costs whatever its length) of each prefill figure."""
    work, measured = case.workload, dict(case.measured)
    running = max(1.0, work.concurrency / case.replicas)
    queued = running > (case.setup.max_running or MAX_RUNNING) or work.arrivals_per_s is not None
    if "prefill_tps" in measured:
        alone = case.per_request_prefill
        tokens = work.prefill * (1 if alone else running * case.replicas)
        yield (case, "prefill_tps", tokens / measured["prefill_tps"], not queued), alone, alone
    if "ttft_ms" in measured:
        yield (case, "ttft_ms", measured["ttft_ms"] / 1000, not queued), True, True


def _prefill_terms(case: Case, *, mean: bool, fixed: bool) -> dict[str, float]:
    work = case.workload
    depth = work.depth if work.depth_cached else 0
    terms = burst_terms(case.setup, costs(case.setup), batch_of(case), work.prefill, depth, mean=mean)
    return terms if fixed else {name: s for name, s in terms.items() if name != "fixed"}


def decode_problem(cases: Sequence[Case], prefill: Callable[[Case, float], float]) -> Problem:
    """Decode rates; `prefill` says how long a batch of the case's prompts takes."""
    rows: list[Row] = []
    mixes: list[float] = []
    for case in cases:
        batch, measured = batch_of(case), dict(case.measured)
        for what in ("decode_tps_per_request", "decode_tps_aggregate"):
            if what in measured:
                share = 1.0 if what == "decode_tps_per_request" else batch * case.replicas
                rows.append((case, what, share / measured[what], case.workload.arrivals_per_s is None))
                mixes.append(_mix(case, batch, what, prefill))
    return _problem(
        rows,
        [_step_terms(c) for c, *_ in rows],
        decode_coefficient,
        effects=[decode_keys(c.setup, batch_of(c)) for c, *_ in rows],
        accept=[acceptance_keys(c.setup, c.workload.content) if c.speculative else () for c, *_ in rows],
        mix=np.array(mixes),
        priors=DECODE_PRIORS,
        shrink=DECODE_SHRINK,
    )


def _step_terms(case: Case) -> dict[str, float]:
    width = case.setup.k + 1 if case.speculative else 1
    return step_terms(case.setup, costs(case.setup), batch_of(case), width, case.workload.context)


def _mix(case: Case, batch: float, what: str, prefill: Callable[[Case, float], float]) -> float:
    """Seconds of prefill per token of the answer, as planning.rates counts them."""
    if not case.workload.prefill or case.workload.arrivals_per_s is not None:
        return 0.0
    whole = prefill(case, batch)
    others = whole * (batch - 1) / batch
    waits = {
        "decode": (0.0, 0.0),
        "burst": (others / 2, others),
        "served": (others, whole),
        "steady": (others, others),
    }
    return waits[case.workload.window][what == "decode_tps_aggregate"] / case.workload.generate


def _problem(
    rows: list[Row],
    terms: list[dict[str, float]],
    key: Callable[[Setup, str], str],
    *,
    effects: list[tuple[str, ...]],
    accept: list[tuple[str, ...]],
    mix: Array,
    priors: Priors,
    shrink: float,
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
        shrink=shrink,
        fitted=np.array([r[3] for r in rows]),
    )


def _prior(name: str, priors: Priors) -> tuple[float, float]:
    term, _, rest = name.partition("/")
    value, strength = priors[term]
    if priors is PREFILL_PRIORS and term == "compute":
        value = COMPUTE_PRIORS.get(rest.partition("/")[2], 2.5 if "moe" in rest else 2.2)
    return math.log(value), strength


def _index(keys: Iterable[Sequence[str]]) -> tuple[dict[str, int], Array]:
    """Number the keys, and rows × most keys of one row with those numbers (-1: none)."""
    keys = list(keys)
    found: dict[str, int] = {}
    for row in keys:
        for key in row:
            found.setdefault(key, len(found))
    table = np.full((len(keys), max((len(r) for r in keys), default=0)), -1)
    for i, row in enumerate(keys):
        table[i, : len(row)] = [found[k] for k in row]
    return found, table


def yield_of(logit: Array, drafts: Array) -> tuple[Array, Array]:
    """Logarithm of tokens per step, and its derivative by the logit."""
    chance = CEILING / (1 + np.exp(-logit))

    def log_yield(p: Array) -> Array:
        return np.where(drafts > 0, np.log((1 - p ** (drafts + 1)) / (1 - p)), 0.0)

    step = 1e-4
    slope = (log_yield(np.minimum(chance + step, 0.999)) - log_yield(chance)) / step
    return log_yield(chance), slope * chance * (1 - chance / CEILING)


@dataclass
class Unknowns:
    """Everything to be found as one vector: coefficients, then acceptance, then effects; and where each row uses which."""

    accept: dict[str, int]
    effects: dict[str, int]
    prior: Array
    ridge: Array
    """How strongly each is held to its prior."""
    at: Array
    """rows × (terms + acceptance keys + effect keys); the last number means none."""
    terms: int
    effects_from: int
    """Column at which effects begin."""

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.prior)


def unknowns(problem: Problem, pick: Array) -> Unknowns:
    """Number what the rows in `pick` depend on."""
    accept, accept_at = _index([problem.accept[i] for i in pick])
    effects, effects_at = _index([problem.effects[i] for i in pick])
    n_c, n_a = len(problem.names), len(accept)
    size = n_c + n_a + len(effects)
    prior, ridge = np.zeros(size), np.zeros(size)
    for j, name in enumerate(problem.names):
        prior[j], ridge[j] = _prior(name, problem.priors)
    for key, j in accept.items():
        prior[n_c + j], ridge[n_c + j] = ACCEPTANCE_PRIORS.get(key, 0.0), ACCEPTANCE_RIDGE
    for key, j in effects.items():
        ridge[n_c + n_a + j] = RIDGE[key.partition("=")[0]] * problem.shrink
    columns = problem.columns[pick]
    shifted = [
        np.where(found >= 0, found + by, size) for found, by in ((accept_at, n_c), (effects_at, n_c + n_a))
    ]
    terms = columns.shape[1]
    return Unknowns(
        accept, effects, prior, ridge, np.hstack([columns, *shifted]), terms, terms + accept_at.shape[1]
    )


def solve(problem: Problem, rounds: int = 30) -> Fit:
    """The most probable coefficients, acceptance and effects (Gauss-Newton, weights renewed in every round)."""
    pick = np.where(problem.fitted)[0]
    known = unknowns(problem, pick)
    theta = np.append(known.prior, 0.0)
    for _ in range(rounds):
        error, slopes = linearised(problem, pick, known, theta)
        robust = problem.weight[pick] / (1 + (error / ROBUST_AT) ** 2)
        change = np.clip(_newton(known, theta, slopes, robust, error), -0.5, 0.5)
        theta[: known.size] += change
        if np.abs(change).max() < 2e-3:
            break
    n_c, n_a = len(problem.names), len(known.accept)
    return Fit(
        coefficients={name: math.exp(theta[j]) for j, name in enumerate(problem.names)},
        acceptance={key: float(theta[n_c + j]) for key, j in known.accept.items()},
        effects={key: float(theta[n_c + n_a + j]) for key, j in known.effects.items()},
    )


def linearised(problem: Problem, pick: Array, known: Unknowns, theta: Array) -> tuple[Array, Array]:
    """log(measured / predicted) of each row, and the slopes of the prediction by each unknown that the row uses."""
    values = theta[known.at]
    each = problem.seconds[pick] * np.exp(values[:, : known.terms])
    total = each.sum(1)
    log_yield, slope = yield_of(values[:, known.terms : known.effects_from].sum(1), problem.drafts[pick])
    step = total * np.exp(values[:, known.effects_from :].sum(1) - log_yield)
    share = step / (step + problem.mix[pick])
    used = known.at < known.size
    slopes = np.hstack(
        [
            (share / total)[:, None] * each,
            used[:, known.terms : known.effects_from] * -(share * slope)[:, None],
            used[:, known.effects_from :] * share[:, None],
        ]
    )
    return problem.y[pick] - np.log(step + problem.mix[pick]), slopes


def _newton(known: Unknowns, theta: Array, slopes: Array, robust: Array, error: Array) -> Array:
    """One step of weighted ridge regression; rows use few unknowns, so the matrix is summed from their outer products."""
    size, width = known.size, known.at.shape[1]
    flat = (np.repeat(known.at, width, 1) * (size + 1) + np.tile(known.at, (1, width))).ravel()
    outer = np.repeat(slopes, width, 1) * np.tile(slopes, (1, width)) * robust[:, None]
    normal = np.bincount(flat, outer.ravel(), (size + 1) ** 2).reshape(size + 1, size + 1)[:size, :size]
    right = np.bincount(known.at.ravel(), (slopes * (robust * error)[:, None]).ravel(), size + 1)[:size]
    pull = known.ridge * (theta[:size] - known.prior)
    return np.linalg.solve(normal + np.diag(known.ridge + 1e-9), right - pull)


def as_factors(
    prefill: Fit, decode: Fit, counts: dict[str, collections.Counter], spreads: dict, bands: dict
) -> Factors:
    """What predictions need."""

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
            "version": 1,
            "coefficients": {
                "prefill": _rounded(prefill.coefficients),
                "decode": _rounded(decode.coefficients),
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
    return {key: round(value, 4) for key, value in sorted(values.items())}


def fit(cases: Sequence[Case], use: Callable[[Case], bool], bands: dict[str, float] | None = None) -> Factors:
    """Both quantities: prefill first, because decode rates contain prefills of others."""
    chosen = [case for case in cases if use(case)]
    problem = with_sources(prefill_problem(chosen))
    found = solve(problem)
    counts = {"prefill": _counts(problem, problem.effects)}
    half = as_factors(
        found,
        Fit({}, {}, {}),
        {**counts, "decode": collections.Counter(), "acceptance": collections.Counter()},
        {},
        {},
    )
    models: dict[int, Model] = {}

    def seconds(case: Case, batch: float) -> float:
        model = models.setdefault(id(case), model_of(case.setup, half))
        return model.prefill_s(batch, case.workload)

    decoding = with_sources(decode_problem(chosen, seconds))
    decoded = solve(decoding)
    counts |= {
        "decode": _counts(decoding, decoding.effects),
        "acceptance": _counts(decoding, decoding.accept),
    }
    spreads = _spreads("prefill", chosen, problem, half) if bands is not None else {}
    factors = as_factors(found, decoded, counts, spreads, bands or {})
    if bands is not None:
        spreads |= _spreads("decode", chosen, decoding, factors)
        factors = as_factors(found, decoded, counts, spreads, bands)
    return factors


def with_sources(problem: Problem) -> Problem:
    """The problem with an effect for each source and each of its runs."""
    problem.effects = [
        (*keys, f"source={case.source}", f"run={run_of(case)}")
        for keys, case in zip(problem.effects, problem.cases, strict=True)
    ]
    return problem


def _counts(problem: Problem, keys: list[tuple[str, ...]]) -> collections.Counter:
    return collections.Counter(k for i, row in enumerate(keys) if problem.fitted[i] for k in row)


def _spreads(
    quantity: str, cases: Sequence[Case], problem: Problem, factors: Factors
) -> dict[tuple[str, str], float]:
    """Standard deviation (log) of what is left over where a key applies, from medians (robust)."""
    left: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    for i, case in enumerate(problem.cases):
        if not problem.fitted[i]:
            continue
        error = case_errors(case, factors).get(problem.what[i])
        if error is None:
            continue
        for key in problem.effects[i]:
            left[quantity, key].append(abs(error))
        for key in problem.accept[i]:
            left["acceptance", key].append(abs(error))
    return {key: float(1.48 * np.median(errors)) for key, errors in left.items()}


def case_errors(case: Case, factors: Factors) -> dict[str, float]:
    """log(predicted / measured) of each metric of a case, by a whole prediction."""
    from sparkfleet.bench.accuracy import predict

    predicted = predict(case, factors)
    return {m: math.log(predicted[m].mid / v) for m, v in case.measured if predicted.get(m) is not None}


def groups(cases: Sequence[Case], key: Callable[[Case], str], folds: int | None) -> dict[str, int]:
    """Which fold each group is left out in; a group with a third of all rows is a fold of its own."""
    sizes = collections.Counter(key(case) for case in cases)
    if folds is None:
        return {name: i for i, name in enumerate(sizes)}
    found, load = {}, [0] * folds
    for name, size in sizes.most_common():
        i = int(np.argmin(load))
        found[name], load[i] = i, load[i] + size
    return found


Errors = list[tuple[Case, str, float, str]]


def left_out(cases: Sequence[Case], key: Callable[[Case], str], folds: int | None) -> Errors:
    """Errors of predictions from fits that had not seen the case's group: (case, metric, log error, support)."""
    fold = groups(cases, key, folds)
    errors: Errors = []
    for i in sorted(set(fold.values())):
        factors = fit(cases, lambda case, i=i: fold[key(case)] != i)
        for case in cases:
            if fold[key(case)] == i:
                known = support(case.setup, factors)
                errors += [(case, m, e, known) for m, e in case_errors(case, factors).items()]
        print(".", end="", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    return errors


def table(title: str, errors: Errors, where: Callable[[Case], bool] = lambda _: True) -> None:
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


SUPPORT = ("known", "family", "kind", "none")


def bands_of(errors: Errors) -> dict[str, float]:
    """Half widths that hold 80 % of the errors, by quantity, speculation and support; knowing less is never narrower."""
    found: dict[str, list[float]] = collections.defaultdict(list)
    for case, metric, error, known in errors:
        quantity = "decode" if metric.startswith("decode") else "prefill"
        found[f"{quantity}/{'spec' if case.speculative else 'none'}/{known}"].append(abs(error))
    return monotone({key: float(np.quantile(e, 0.8)) for key, e in found.items() if len(e) >= 8})


def monotone(halves: dict[str, float]) -> dict[str, float]:
    """Every support of every quantity, at least as wide as where more is known."""
    bands: dict[str, float] = {}
    for stem in sorted({key.rpartition("/")[0] for key in halves}):
        widest = 0.0
        for known in SUPPORT:
            widest = max(widest, halves.get(f"{stem}/{known}", 0.0))
            bands[f"{stem}/{known}"] = round(widest, 3)
    return bands


def noise_floor(cases: Sequence[Case]) -> None:
    """How well one source predicts another that measured an equal configuration."""
    cells: dict[tuple, dict[str, list[float]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for case in cases:
        s, w = case.setup, case.workload
        for metric, value in case.measured:
            key = (
                s.arch.family,
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


def load(rows: Path, configs: Path) -> list[Case]:
    """All cases of a file that can be predicted."""
    known = json.loads(configs.read_text())
    cases = []
    for row in read_rows(rows):
        try:
            cases.append(case_of(row, known))
        except Declined:
            continue
    return [case for case in cases if case.measured]


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
    path.write_text("\n".join(lines) + "\n")


def _line(key: str, effect: object, indent: str) -> str:
    return f'{indent}"{key}": {{log: {effect.log}, n: {effect.n}, spread: {effect.spread}}}'  # type: ignore[attr-defined]


def run_of(case: Case) -> str:
    """One model in one format by one source."""
    return f"{case.source} {case.model} {case.quant}"


def main() -> None:
    """Fit, validate, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, default=KNOWLEDGE / "measurements" / "benchmarks.csv")
    parser.add_argument("--configs", type=Path, default=KNOWLEDGE / "measurements" / "configs.json")
    parser.add_argument(
        "--folds", type=int, default=None, help="leave out this many groups of sources instead of each"
    )
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    cases = load(args.rows, args.configs)
    whole = fit(cases, lambda _: True)
    seen = [(c, m, e, "") for c in cases for m, e in case_errors(c, whole).items()]
    table("in sample", seen)
    loso = left_out(cases, lambda c: c.source, args.folds)
    table("leave one source out", loso)
    table("leave one source out, one request", loso, lambda c: c.workload.concurrency == 1)
    biggest = collections.Counter(c.source for c in cases).most_common(1)[0][0]
    table(f"leave one source out, without {biggest}", loso, lambda c: c.source != biggest)
    table("leave one source out, two nodes and more", loso, lambda c: c.setup.tp * c.setup.pp > 1)
    runs = left_out(cases, run_of, args.folds or 20)
    table("leave one run (source, model, format) out", runs)
    table("leave one model out", left_out(cases, lambda c: c.setup.arch.family, args.folds or 20))
    noise_floor(cases)
    bands = bands_of(loso + runs)
    print("\nbands", bands)
    if not args.dry_run:
        write(fit(cases, lambda _: True, bands), KNOWLEDGE / "factors.yaml", f"{len(cases)} measurements.")


if __name__ == "__main__":
    main()
