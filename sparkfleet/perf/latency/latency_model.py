"""The latency model of a setup: seconds of a prefill and of a decode step, from roofline terms and fitted factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sparkfleet.knowledge.published.factors import Factors, Quantity
from sparkfleet.perf.latency.acceptance import acceptance, tokens_per_step
from sparkfleet.perf.latency.factor_keys import (
    SETUP_KEYS,
    decode_coefficient,
    decode_load_keys,
    prefill_coefficient,
    prefill_load_keys,
)
from sparkfleet.perf.latency.local_acceptance import LocalAcceptance
from sparkfleet.perf.latency.roofline_terms import PREFILL_TERMS, STEP_TERMS, burst_terms, step_terms
from sparkfleet.perf.latency.step_costs import Costs, SpeedConfig, costs
from sparkfleet.perf.workload import Workload

ONE_BY_ONE = ("llama.cpp", "ollama")
"""Engines whose loops stay bursts: all slots decode in step with each other's prompts (jvr0x, 10 models)."""


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """A setup with its costs and the factors that apply to it: answers any workload."""

    setup: SpeedConfig
    cost: Costs
    factors: Factors
    step_coefficients: Mapping[str, float]
    prefill_coefficients: Mapping[str, float]
    effects: Mapping[Quantity, float]
    """Sums (log) of the effects that depend on the setup alone."""
    local: LocalAcceptance | None = None
    """Acceptance of its draft by this fleet's own counters, in place of the published one."""

    def prefill_s(self, batch: float, workload: Workload, *, mean: bool = False) -> float:
        """Seconds until `batch` prompts of the workload, come together, are prefilled: the last, or on average."""
        bare, fixed = self.prefill_parts(batch, workload, mean=mean)
        return bare + fixed

    def prefill_parts(self, batch: float, workload: Workload, *, mean: bool = False) -> tuple[float, float]:
        """The same in two: what grows with the prompts, and what a request costs whatever its length."""
        depth = workload.depth if workload.depth_cached else 0
        at_once = mean and in_step(self.setup, workload)
        terms = burst_terms(self.setup, self.cost, batch, workload.prefill, depth, mean=mean, at_once=at_once)
        known = self.prefill_coefficients
        effect = math.exp(self._effect("prefill", prefill_load_keys(self.setup, workload.prompt, batch)))
        fixed = terms.pop("fixed") * known["fixed"]
        return effect * sum(s * known[name] for name, s in terms.items()), effect * fixed

    def step_s(self, batch: float, context: float) -> float:
        """Seconds of one decode step of `batch` requests."""
        width = self.setup.k + 1 if self.setup.method != "none" else 1
        terms = step_terms(self.setup, self.cost, batch, width, context)
        known = self.step_coefficients
        total = sum(s * known[name] for name, s in terms.items())
        return total * math.exp(self._effect("decode", decode_load_keys(self.setup, batch)))

    def yielded(self, workload: Workload) -> float:
        """Tokens that one step yields per request."""
        if self.setup.method == "none":
            return 1.0
        if self.local is not None:
            return self.local.tokens_per_step(self.setup.k)
        return tokens_per_step(acceptance(self.setup, workload.content, self.factors), self.setup.k)

    def _effect(self, quantity: Quantity, keys: Mapping[str, float]) -> float:
        known = self.factors.effects[quantity]
        return self.effects[quantity] + sum(s * known[key].log for key, s in keys.items() if key in known)


def model_of(setup: SpeedConfig, factors: Factors) -> LatencyModel:
    """The model that answers workloads for a setup; what depends on the setup alone is worked out here."""
    step, prefill = factors.coefficients["decode"], factors.coefficients["prefill"]
    effects: dict[Quantity, float] = {}
    for quantity, keys in SETUP_KEYS.items():
        known = factors.effects[quantity]
        effects[quantity] = math.fsum(known[key].log for key in keys(setup) if key in known)
    return LatencyModel(
        setup,
        costs(setup),
        factors,
        {term: step.get(decode_coefficient(setup, term), 1.0) for term in STEP_TERMS},
        {term: prefill.get(prefill_coefficient(setup, term), 1.0) for term in PREFILL_TERMS},
        effects,
    )


def in_step(setup: SpeedConfig, workload: Workload) -> bool:
    """True for a closed loop whose requests end in one step, so that the next prompts come in one step, too.

    Two prompts of llama.cpp take twice the time of one until the first token of either, not 1.5 times on average.
    """
    return workload.window == "closed" and setup.engine in ONE_BY_ONE and setup.method == "none"
