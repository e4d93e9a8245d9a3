"""Factors fitted to published measurements: `factors.yaml`, written by `scripts/fit`, checked on load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

import yaml
from pydantic import Field, ValidationError

from sparkfleet.errors import SpecError
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

    version: Literal[1]
    coefficients: dict[Quantity, dict[str, float]]
    """Factor on each physical term; keys by `factor_keys.coefficient_keys`."""
    effects: dict[Quantity, dict[str, Effect]]
    """Residual effects; keys by `factor_keys.effect_keys`."""
    acceptance: dict[str, Effect]
    """Logit of the probability that one more draft token is accepted, as a sum over keys."""
    bands: dict[str, float]
    """Half width (log) of the band with 80 % of the measurements outside the fit, by the amount of knowledge."""
    validation: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Errors of the fit on left-out measurements: table → metric → median error, or share inside its band."""


def factors() -> Factors:
    """The packaged `factors.yaml`, less the effects of families that are left out.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    return _without(left_out_families())


@cache
def _without(families: frozenset[str]) -> Factors:
    found = packaged_factors()
    if not families:
        return found

    def kept(effects: Mapping[str, Effect]) -> dict[str, Effect]:
        return {key: effect for key, effect in effects.items() if not is_of_family(key, families)}

    effects = {quantity: kept(known) for quantity, known in found.effects.items()}
    return found.model_copy(update={"effects": effects, "acceptance": kept(found.acceptance)})


@cache
def packaged_factors() -> Factors:
    """The whole file.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    text = files("sparkfleet.knowledge").joinpath("published/factors.yaml").read_text()
    try:
        # The C loader: the file has thousands of lines.
        return Factors.model_validate(yaml.load(text, Loader=yaml.CSafeLoader), strict=False)
    except (yaml.YAMLError, ValidationError) as error:
        raise SpecError(f"knowledge/published/factors.yaml: {error}", do="Run scripts/fit again.") from error
