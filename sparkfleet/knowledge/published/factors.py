"""Factors fitted to published measurements: `factors.yaml`, written by `scripts/fit`, checked on load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from pydantic import Field

from sparkfleet.knowledge.data_file import DataFile
from sparkfleet.knowledge.published.left_out import is_of_family, left_out_families
from sparkfleet.values import Value

Quantity = Literal["decode", "prefill"]

PATCHED_BUILDS = (
    "anemll",
    "aeon",
    "atlas",
    "exl3",
    "scitrera",
    "eugr",
    "glm53",
    "mia",
    "qwen38",
    "step37",
    "ds4",
    "node-mxfp4",
    "sglang:spark",
)
"""Names of patched builds with factors of their own; they are part of the image's name."""


class Effect(Value):
    """One fitted number: the deviation of measurements from physics for its key.

    `log` is added to the logarithm of a time (or to the logit of an acceptance); `n` measurements support it, and
    `spread` is the standard deviation of their residuals.
    """

    log: float
    n: int
    spread: float


class Factors(Value):
    """Contents of `factors.yaml`."""

    coefficients: dict[Quantity, dict[str, float]]
    """Factor on each physical term; keys by `decode_coefficient` and `prefill_coefficient` of factor_keys.py."""
    effects: dict[Quantity, dict[str, Effect]]
    """Residual effects; keys by `decode_keys` and `prefill_keys` of factor_keys.py."""
    acceptance: dict[str, Effect]
    """Logit of the probability that one more draft token is accepted, as a sum over keys."""
    bands: dict[str, float]
    """Half width (log) of the band with 80 % of the measurements outside the fit, by the amount of knowledge."""
    validation: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Errors of the fit on left-out measurements: table → metric → median error, or share inside its band."""


FACTORS = DataFile("published/factors.yaml", Factors, do="Run scripts/fit again.")


def factors() -> Factors:
    """The packaged factors, less the effects of families that are left out."""
    return _without(left_out_families())


@cache
def _without(families: frozenset[str]) -> Factors:
    found = FACTORS.content
    if not families:
        return found

    def kept(effects: Mapping[str, Effect]) -> dict[str, Effect]:
        return {key: effect for key, effect in effects.items() if not is_of_family(key, families)}

    effects = {quantity: kept(known) for quantity, known in found.effects.items()}
    return found.model_copy(update={"effects": effects, "acceptance": kept(found.acceptance)})
