"""Times with their parts."""

from __future__ import annotations

import pytest
from latency_values import setup

from sparkfleet.knowledge.published.factors import factors
from sparkfleet.perf.latency.explained import explain_prefill, explain_step
from sparkfleet.perf.latency.latency_model import model_of
from sparkfleet.perf.workload import Workload


def test_a_time_explains_itself() -> None:
    model = model_of(setup("Qwen/Qwen3.6-27B-FP8", "fp8"), factors())
    step, prefill = explain_step(model, 1, 1000), explain_prefill(model, Workload(prompt=2048))
    assert {"weights", "kv", "launch"} <= {term.name for term in step.terms}
    assert {"compute", "attention", "fixed"} <= {term.name for term in prefill.terms}
    for found in (step, prefill):
        assert all(effect.n > 0 for effect in found.effects)
        product = sum(t.seconds * t.coefficient for t in found.terms)
        for effect in found.effects:
            product *= effect.factor
        assert product == pytest.approx(found.seconds)
