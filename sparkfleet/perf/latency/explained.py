"""A predicted time with its parts: physical terms, their coefficients and the effects applied to them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sparkfleet.knowledge.published.factors import Effect
from sparkfleet.perf.latency.factor_keys import decode_keys, prefill_keys
from sparkfleet.perf.latency.latency_model import LatencyModel
from sparkfleet.perf.latency.roofline_terms import burst_terms, step_terms
from sparkfleet.perf.workload import Workload
from sparkfleet.values import Value


class Term(Value):
    """One physical term of a time, as explained to a person."""

    name: str
    seconds: float
    """Time at the measured ceilings."""
    coefficient: float
    """Fitted: how much longer it takes."""


class AppliedFactor(Value):
    """One effect that was applied."""

    key: str
    factor: float
    """On the time: above 1 is slower."""
    n: int
    spread: float


class Explained(Value):
    """A time with everything it was made of."""

    seconds: float
    terms: tuple[Term, ...]
    effects: tuple[AppliedFactor, ...]


def explain_step(model: LatencyModel, batch: float, context: float) -> Explained:
    """One decode step with its terms and the effects applied to it."""
    width = model.setup.k + 1 if model.setup.method != "none" else 1
    seconds = step_terms(model.setup, model.cost, batch, width, context)
    return Explained(
        seconds=model.step_s(batch, context),
        terms=_weighed(seconds, model.step_coefficients),
        effects=_applied(decode_keys(model.setup, batch), model.factors.effects["decode"]),
    )


def explain_prefill(model: LatencyModel, workload: Workload) -> Explained:
    """The prefill of one prompt with its terms and the effects applied to it."""
    depth = workload.depth if workload.depth_cached else 0
    seconds = burst_terms(model.setup, model.cost, 1.0, workload.prefill, depth, mean=False)
    return Explained(
        seconds=model.prefill_s(1.0, workload),
        terms=_weighed(seconds, model.prefill_coefficients),
        effects=_applied(prefill_keys(model.setup, workload.prompt, 1.0), model.factors.effects["prefill"]),
    )


def _weighed(seconds: Mapping[str, float], coefficients: Mapping[str, float]) -> tuple[Term, ...]:
    return tuple(Term(name=name, seconds=s, coefficient=coefficients[name]) for name, s in seconds.items())


def _applied(keys: Mapping[str, float], known: Mapping[str, Effect]) -> tuple[AppliedFactor, ...]:
    found = ((key, share, known[key]) for key, share in keys.items() if key in known)
    return tuple(
        AppliedFactor(key=key, factor=math.exp(s * e.log), n=e.n, spread=e.spread) for key, s, e in found
    )
