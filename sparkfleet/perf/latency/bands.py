"""Error bands of a setup's rates, as wide as the errors of predictions with as much evidence."""

from __future__ import annotations

import math

from sparkfleet.knowledge.published.factors import Effect, Factors, Quantity
from sparkfleet.perf.latency.factor_keys import decode_keys
from sparkfleet.perf.latency.latency_model import LatencyModel
from sparkfleet.perf.latency.step_costs import SpeedConfig
from sparkfleet.perf.prediction import Band, Provenance

WIDEST = 0.7
"""Half width (log) if too few measurements were held out: half to double."""


def support(setup: SpeedConfig, factors: Factors) -> str:
    """Evidence for setups like this one: "known", "family", "kind" or "none"."""
    known = factors.effects["decode"]
    keys = decode_keys(setup, 1)

    def n(prefix: str) -> int:
        key = next((k for k in keys if k.startswith(prefix + "=")), "")
        return known[key].n if key in known else 0

    if n("family+format+engine") >= 3 and (setup.tp == 1 or n("tp+family") >= 3):
        return "known"
    if n("family"):
        return "family"
    return "kind" if n("engine+kind") else "none"


class Bands:
    """Bands of one model, as wide as the errors with as much evidence."""

    def __init__(self, model: LatencyModel) -> None:
        self.known = support(model.setup, model.factors)
        self.spec = "none" if model.setup.method == "none" else "spec"
        self.bands = model.factors.bands
        self.basis, self.provenance = "modelled from physics", Provenance.MODELLED
        if self.known in ("known", "family"):
            self.basis = f"calibrated on {_measurements(model)}"
            self.provenance = Provenance.CALIBRATED

    def __call__(self, quantity: Quantity, value: float) -> Band:
        """The band around a predicted rate."""
        half = self.bands.get(f"{quantity}/{self.spec}/{self.known}", WIDEST)
        low, high = value * math.exp(-half), value * math.exp(half)
        return Band(low=low, mid=value, high=high, provenance=self.provenance, basis=self.basis)


def _measurements(model: LatencyModel) -> str:
    """Number of measurements of this family, in this format and on this engine if there are any."""
    known = model.factors.effects["decode"]
    keys = {key.partition("=")[0]: key for key in decode_keys(model.setup, 1)}
    levels = {
        "family+format+engine": "",
        "family+format": " of all engines",
        "family": " of all engines and formats",
    }
    counts = ((known.get(keys[level], Effect(log=0, n=0, spread=0)).n, of) for level, of in levels.items())
    return next(f"{n} measurements{of}" for n, of in counts if n)
