"""The most probable coefficients, effects and acceptance: Gauss-Newton with robust weights and a ridge."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from fitting.priors import ACCEPTANCE_PRIORS, ACCEPTANCE_RIDGE, expectation
from fitting.problems import Array, Problem
from sparkfleet.perf.latency.acceptance import CEILING


@dataclass
class Fit:
    """Result of the fit: coefficients, effects and acceptance by key."""

    coefficients: dict[str, float]
    effects: dict[str, float]
    acceptance: dict[str, float]


def _index(keys: Iterable[Collection[str]]) -> tuple[dict[str, int], Array]:
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
    """Everything to be found as one vector: coefficients, acceptance, effects; with the positions that each row uses."""

    accept: dict[str, int]
    effects: dict[str, int]
    prior: Array
    ridge: Array
    """Strength with which each is held to its prior."""
    at: Array
    """rows × (terms + acceptance keys + effect keys); the last number means none."""
    terms: int
    effects_from: int
    """Column at which effects begin."""
    share: Array
    """rows × effect keys: how much of each applies, 0 to 1."""

    @property
    def size(self) -> int:
        """Number of the unknowns."""
        return len(self.prior)


def unknowns(problem: Problem, pick: Array) -> Unknowns:
    """Number what the rows in `pick` depend on."""
    accept, accept_at = _index([problem.accept[i] for i in pick])
    effects, effects_at = _index([problem.effects[i] for i in pick])
    n_c, n_a = len(problem.names), len(accept)
    size = n_c + n_a + len(effects)
    prior, ridge = np.zeros(size), np.zeros(size)
    for j, name in enumerate(problem.names):
        prior[j], ridge[j] = expectation(name, problem.priors)
    for key, j in accept.items():
        prior[n_c + j], ridge[n_c + j] = (
            ACCEPTANCE_PRIORS.get(key, 0.0),
            ACCEPTANCE_RIDGE[key.partition("=")[0]],
        )
    for key, j in effects.items():
        ridge[n_c + n_a + j] = problem.ridge[key.partition("=")[0]]
    columns = problem.columns[pick]
    shifted = [
        np.where(found >= 0, found + by, size) for found, by in ((accept_at, n_c), (effects_at, n_c + n_a))
    ]
    terms = columns.shape[1]
    share = np.zeros(effects_at.shape)
    for i, row in enumerate(pick):
        share[i, : len(problem.effects[row])] = list(problem.effects[row].values())
    at = np.hstack([columns, *shifted])
    return Unknowns(accept, effects, prior, ridge, at, terms, terms + accept_at.shape[1], share)


def solve(problem: Problem, start: Fit | None = None, rounds: int = 30) -> Fit:
    """The most probable coefficients, acceptance and effects (Gauss-Newton, weights renewed in every round).

    `start` is a fit to much the same measurements: a few rounds then do.
    """
    pick = np.where(problem.fitted)[0]
    known = unknowns(problem, pick)
    theta = np.append(_begin(problem, known, start), 0.0)
    for _ in range(rounds):
        error, slopes = linearised(problem, pick, known, theta)
        robust = problem.weight[pick] / (1 + (error / problem.robust_at) ** 2)
        change = np.clip(_newton(known, theta, slopes, robust, error), -0.5, 0.5)
        theta[: known.size] += change
        if np.abs(change).max() < (1e-2 if start else 2e-3):
            break
    n_c, n_a = len(problem.names), len(known.accept)
    return Fit(
        coefficients={name: math.exp(theta[j]) for j, name in enumerate(problem.names)},
        acceptance={key: float(theta[n_c + j]) for key, j in known.accept.items()},
        effects={key: float(theta[n_c + n_a + j]) for key, j in known.effects.items()},
    )


def _begin(problem: Problem, known: Unknowns, start: Fit | None) -> Array:
    """First values: at the prior, or at what another fit found."""
    begin = known.prior.copy()
    if start is None:
        return begin
    n_c, n_a = len(problem.names), len(known.accept)
    named = [(name, j, start.coefficients) for j, name in enumerate(problem.names)]
    begin[:n_c] = [math.log(found[name]) if name in found else begin[j] for name, j, found in named]
    for keys, found, by in ((known.accept, start.acceptance, n_c), (known.effects, start.effects, n_c + n_a)):
        for key, j in keys.items():
            begin[by + j] = found.get(key, begin[by + j])
    return begin


def linearised(problem: Problem, pick: Array, known: Unknowns, theta: Array) -> tuple[Array, Array]:
    """log(measured / predicted) of each row, and the slopes of the prediction by each unknown that the row uses."""
    values = theta[known.at]
    each = problem.seconds[pick] * np.exp(values[:, : known.terms])
    total = each.sum(1)
    log_yield, slope = yield_of(values[:, known.terms : known.effects_from].sum(1), problem.drafts[pick])
    step = total * np.exp((values[:, known.effects_from :] * known.share).sum(1) - log_yield)
    mix = problem.mix[pick]
    rates = 1 / (step[:, None] + mix)
    rate = rates.sum(1)
    share = step * (rates**2).sum(1) / rate
    used = known.at < known.size
    slopes = np.hstack(
        [
            (share / total)[:, None] * each,
            used[:, known.terms : known.effects_from] * -(share * slope)[:, None],
            known.share * share[:, None],
        ]
    )
    return problem.y[pick] - np.log(np.isfinite(mix).sum(1) / rate), slopes


def _newton(known: Unknowns, theta: Array, slopes: Array, robust: Array, error: Array) -> Array:
    """One step of weighted ridge regression; rows use few unknowns, so the matrix is summed from their outer products."""
    size, width = known.size, known.at.shape[1]
    flat = (np.repeat(known.at, width, 1) * (size + 1) + np.tile(known.at, (1, width))).ravel()
    outer = np.repeat(slopes, width, 1) * np.tile(slopes, (1, width)) * robust[:, None]
    normal = np.bincount(flat, outer.ravel(), (size + 1) ** 2).reshape(size + 1, size + 1)[:size, :size]
    right = np.bincount(known.at.ravel(), (slopes * (robust * error)[:, None]).ravel(), size + 1)[:size]
    pull = known.ridge * (theta[:size] - known.prior)
    return np.linalg.solve(normal + np.diag(known.ridge + 1e-9), right - pull)
