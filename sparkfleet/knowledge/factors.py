"""Factors fitted to published measurements: `factors.yaml`, written by `scripts/fit`, checked on load."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

import yaml
from pydantic import Field, ValidationError

from sparkfleet.errors import SpecError
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


@cache
def factors() -> Factors:
    """The packaged `factors.yaml`.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    text = files("sparkfleet.knowledge").joinpath("factors.yaml").read_text()
    try:
        # The C loader: the file has thousands of lines.
        return Factors.model_validate(yaml.load(text, Loader=yaml.CSafeLoader), strict=False)
    except (yaml.YAMLError, ValidationError) as error:
        raise SpecError(f"knowledge/factors.yaml: {error}", do="Run scripts/fit again.") from error
