"""Expected coefficients and acceptance before anything was measured, and the strength with which the fit is held to them."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping
from functools import cache

from sparkfleet.knowledge.ceilings import physics
from sparkfleet.perf.latency.factor_keys import ENGINE_GROUPS
from sparkfleet.perf.latency.step_costs import SpeedConfig
from sparkfleet.perf.layers import Layers
from sparkfleet.perf.model_shape import from_counts

Priors = dict[str, tuple[float, float]]

# Expected coefficients before anything was measured: (value, strength of the prior).
DECODE_PRIORS = {
    "weights": (1.08, 2.4),
    "experts": (1.25, 1.2),
    "kv": (1.5, 0.6),
    "state": (1.2, 0.6),
    "compute": (1.3, 0.6),
    "launch": (2.0, 0.3),
    "host": (1.0, 0.3),
    "linear": (2.0, 0.3),
    "routing": (3.0, 0.3),
    "step": (1.0, 0.3),
    "sequence": (0.5, 0.3),
    "latency": (1.5, 0.6),
    "transfer": (1.5, 0.6),
    "draft": (1.0, 0.6),
    "draft_launch": (1.0, 0.6),
    "verify": (0.15, 0.3),
    "drafting": (1.0, 0.3),
    "executor": (1.0, 0.3),
    "unit": (1.0, 1e6),
}
PREFILL_PRIORS = {
    "compute": (2.0, 0.5),
    "attention": (1.5, 0.5),
    "weights": (0.95, 0.5),
    "traffic": (1.3, 0.5),
    "linear": (3.0, 0.5),
    "fixed": (
        1.5,
        0.5,
    ),  # the smallest models answer 15 ms after the request (PalatineVision: 0.6B, 42 tokens), 12 of them fixed
    "transfer": (1.3, 1.5),
}
COMPUTE_PRIORS = {
    "bf16/dense": 1.1,
    "bf16/moe": 1.5,
    "fp8/dense": 1.6,
    "fp8/moe": 2.1,
    "nvfp4/dense": 1.6,
    "nvfp4/moe": 2.8,
    "int4/dense": 1.6,
    "marlin/dense": 2.0,
    "marlin/moe": 1.6,
}
"""Matrix products of a prefill by format (or kernel) and kind: small experts are the further from their ceiling."""
WIDE_EXPERTS = ("gguf-mxfp4",)
"""Formats in which nobody but gpt-oss has experts: their matrices (2880 × 2880) are as large as those of a dense layer, and
expected to be read as fast. Others are 512 to 1536 wide."""
ACCEPTANCE_PRIORS = {
    "method=ngram": -1.2,
    "method=mtp": 1.0,
    "method=dspark": 0.6,
    "method=dflash": 0.4,
    "method=dflash2": 0.9,
    "method=eagle3": 0.3,
    "method=draft": 0.5,
    "content=structured": 0.9,
    "content=json": 0.5,
    "content=code": 0.4,
    "content=prose": -0.6,
    "content=random": -0.5,
    "content=agent": -0.5,
    "content=book": -0.3,
    "content=math": 0.1,
    "content=mixed": 0.0,
}


def _ridge(times: float, **changed: float) -> Mapping[str, float]:
    """Strength with which effects are held to zero, by level; for general keys more than their number of rows would give."""
    strengths = {
        "engine": 1.2,
        "engine+kind": 0.8,
        "release": 0.6,
        "crowd": 0.8,
        "crowd+kind": 0.6,
        "crowd+family": 0.6,
        "run": 0.1,
    }
    strengths |= {name.replace("_and_", "+"): value for name, value in changed.items()}
    return collections.defaultdict(lambda: 0.4 * times, {k: v * times for k, v in strengths.items()})


DECODE_RIDGE = _ridge(2.8, spec_and_family=0.18, spec_and_method_and_engine=0.15)
PREFILL_RIDGE = _ridge(40.0, crowd_and_engine=0.05, family=0.1, engine_and_kind=0.1)
"""The strengths that validate best. A prefill is nearer to physics than a decode step. A kind of model on an engine
is held no more than a family: kernels differ by kind, and dense models alone were predicted 30 % too slow from the
others."""
ACCEPTANCE_RIDGE: Mapping[str, float] = collections.defaultdict(
    lambda: 1.2, {"content": 0.02, "drafter+content": 0.1, "method+depth": 0.4, "method+family": 0.2}
)
"""By level, what validates best. What the text is moves acceptance more than anything: it is hardly held at all. A drafter
is trained for one model, so that what it guesses there is its own more than its method's."""
NUISANCE = ("source=", "run=")
"""Effects of one author's box and stack: fitted, so that it is not taken for a property of a model, and dropped."""
DECODE_ROBUST_AT, PREFILL_ROBUST_AT = 0.2, 0.35
"""Errors (log) beyond which a row counts linearly."""


def expectation(name: str, priors: Priors) -> tuple[float, float]:
    """Logarithm of the value that a coefficient is expected at, and the strength of that prior."""
    term, _, rest = name.partition("/")
    value, strength = priors[term]
    if term == "experts" and rest.partition("/")[2] in WIDE_EXPERTS:
        value = priors["weights"][0]
    if priors is PREFILL_PRIORS and term == "compute":
        _, klass, mixing, *kernel = rest.split("/")
        default = 2.8 if mixing == "moe" else 2.3
        value = COMPUTE_PRIORS.get(f"{kernel[0] if kernel else klass}/{mixing}", default)
    return math.log(value), strength


def expected(priors: Priors, key: Callable[[SpeedConfig, str], str]) -> dict[str, float]:
    """Coefficients of what nobody measured: every engine, format, kind and kernel, at its prior."""
    found = {}
    for setup in possible_setups():
        for term in priors:
            name = key(setup, term)
            found[name] = math.exp(expectation(name, priors)[0])
    return found


@cache
def possible_setups() -> tuple[SpeedConfig, ...]:
    """One setup for each engine, format, kind of model and kernel."""
    layers = {"full": 1, "moe": 0, "mlp": 1}
    kinds = [(moe, extra) for moe in (0, 1) for extra in ("full", "linear", "sliding")]
    return tuple(
        SpeedConfig(
            shape=from_counts("any", 8.0, 1.0 if moe else 8.0).model_copy(
                update={
                    "layers": Layers(
                        **(layers | {"moe": moe, "mlp": 1 - moe, extra: 1}), kv_heads=1, kv_elements=1.0
                    )
                }
            ),
            engine=engine,
            format=name,
            kernel=kernel,
            eager=eager,
        )
        for moe, extra in kinds
        for engine in ENGINE_GROUPS
        for name in physics().formats
        for kernel in ("", "marlin")
        for eager in (False, True)
    )
