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
"""Names of patched builds that factors are fitted for; they are part of the image's name."""


class Effect(Value):
    """One fitted number: how far measurements lie from physics where its key applies.

    `log` is added to the logarithm of a time (or to the logit of an acceptance); `n` measurements carry it, and
    `spread` is the standard deviation of what they still leave over.
    """

    log: float
    n: int
    spread: float


class Factors(Value):
    """Everything in `factors.yaml`."""

    version: Literal[1]
    coefficients: dict[Quantity, dict[str, float]]
    """What each physical term is multiplied by; keys as `calibration.coefficient_keys` makes them."""
    effects: dict[Quantity, dict[str, Effect]]
    """What is left over; keys as `calibration.effect_keys` makes them."""
    acceptance: dict[str, Effect]
    """Logit of the chance that one more draft token is accepted, as a sum over keys."""
    bands: dict[str, float]
    """Half width (log) of the band that holds 80 % of measurements that were not fitted on, by how much is known."""
    validation: dict[str, dict[str, float]] = Field(default_factory=dict)
    """What the fit found of itself on left-out measurements: table → metric → median error, or share inside its band."""


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
