"""The latency model of a setup."""

from __future__ import annotations

import pytest
from latency_values import setup

from sparkfleet.knowledge.published.factors import factors
from sparkfleet.perf.latency.latency_model import model_of
from sparkfleet.perf.workload import Workload


def test_in_a_loop_of_slots_that_decode_in_step_all_prompts_come_at_once() -> None:
    model = model_of(setup("unsloth/gemma-4-12b-it", "q4_k", engine="llama.cpp", chunk=2048), factors())
    loop = Workload(prompt=1024, concurrency=2, window="closed")
    burst = loop.model_copy(update={"window": "burst"})
    in_loop, in_burst = (model.prefill_s(2, load, mean=True) for load in (loop, burst))
    assert in_loop / in_burst == pytest.approx(
        2 / 1.5, rel=0.06
    )  # less what a request costs whatever its length
    drafting = model_of(model.setup.model_copy(update={"method": "mtp", "k": 3}), factors())
    assert drafting.prefill_s(2, loop, mean=True) == pytest.approx(drafting.prefill_s(2, burst, mean=True))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llama.cpp", "ds4"])
@pytest.mark.parametrize("kernel", ["", "marlin"])
def test_what_nobody_measured_is_not_at_its_ceiling(engine: str, kernel: str) -> None:
    one = setup("Qwen/Qwen3.6-27B-FP8", "fp8", engine=engine, kernel=kernel)
    model = model_of(one, factors())
    assert model.prefill_coefficients["compute"] > 1.2
    assert model.step_coefficients["weights"] > 1.0 or engine != "trtllm"


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize(
    ("model", "stored", "tp"),
    [
        ("Qwen/Qwen3-4B", "fp8", 1),
        ("Qwen/Qwen3.6-27B-FP8", "fp8", 1),
        ("Qwen/Qwen3.6-27B-FP8", "fp8", 2),
        ("Qwen/Qwen3-30B-A3B", "nvfp4", 1),
        ("Qwen/Qwen3-235B-A22B", "nvfp4", 2),
        ("openai/gpt-oss-120b", "mxfp4", 1),
    ],
)
def test_no_step_is_faster_without_graphs(model: str, stored: str, tp: int, batch: int) -> None:
    graphs = setup(model, stored, tp=tp)
    eager = graphs.model_copy(update={"eager": True})
    with_graphs, without = (model_of(one, factors()).step_s(batch, 2048) for one in (graphs, eager))
    assert without >= with_graphs
