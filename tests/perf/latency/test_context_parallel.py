"""Decode context parallelism: what its collectives cost, held against published runs on four Sparks."""

from __future__ import annotations

from statistics import mean

import pytest
from planning_values import model

from sparkfleet.accuracy.accuracy import predict
from sparkfleet.accuracy.decisions import published_cases
from sparkfleet.accuracy.rows import PublishedCase
from sparkfleet.knowledge.ceilings import physics
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.knowledge.published.shared_kv import SHARED_KV
from sparkfleet.perf.latency.roofline_terms import prefill_terms, step_terms
from sparkfleet.perf.latency.step_costs import SpeedConfig, costs

PUBLISHED = "0xdfi/glm-5.2-dgx-spark-vllm027"


def setup(name: str = "zai-org/GLM-5.2", **fields: object) -> SpeedConfig:
    shape, link = model(name, "fp8"), physics().links["switch"]
    return SpeedConfig(**{"shape": shape, "engine": "vllm", "format": "fp8", "tp": 4, "link": link, **fields})


def step(config: SpeedConfig, context: float = 4096) -> dict[str, float]:
    return step_terms(config, costs(config), 1.0, 1, context)


def transfer(config: SpeedConfig, tokens: float, depth: float = 0) -> float:
    return prefill_terms(config, costs(config), 1.0, tokens, depth)["transfer"]


def test_each_layer_waits_for_three_collectives_whose_rounds_double_with_the_ranks() -> None:
    latency = [step(setup(dcp=dcp))["latency"] for dcp in (1, 2, 4)]
    one = 78 * 3 * physics().links["switch"].latency_us * 1e-6
    assert latency[1] - latency[0] == pytest.approx(one)
    assert latency[2] - latency[0] == pytest.approx(2 * one)


def test_queries_go_to_the_other_ranks_and_outputs_back() -> None:
    plain, shared = (step(setup(dcp=dcp))["transfer"] for dcp in (1, 4))
    size = (
        78 * 64 * (576 + 576) * 2 * 3 / 4
    )  # layers, heads, of the latent, bytes, of three of the four ranks
    assert shared - plain == pytest.approx(size / physics().links["switch"].gb_per_s / 1e9)


def test_a_rank_reads_its_part_of_the_cache() -> None:
    plain, shared = (step(setup(dcp=dcp), context=100_000)["kv"] for dcp in (1, 4))
    assert shared == pytest.approx(plain / 4)


def test_ranks_on_one_node_are_no_link_apart() -> None:
    assert step(setup(dcp=4, link=None)).keys() == step(setup(dcp=1, link=None)).keys()


def test_a_prefill_of_dense_latents_gathers_what_is_before_each_chunk() -> None:
    dense = {"name": "deepseek-ai/DeepSeek-V3", "chunk": 2048}
    plain, shared = setup(**dense), setup(**dense, dcp=4)
    first = transfer(shared, 2048) - transfer(plain, 2048)
    second, deep = (transfer(shared, 2048, depth) - transfer(plain, 2048, depth) for depth in (2048, 4096))
    assert 0 < first < 0.02, "latency alone"
    assert deep - first == pytest.approx(2 * (second - first))
    sparse = (transfer(setup(dcp=4), 2048, depth) - transfer(setup(), 2048, depth) for depth in (0, 4096))
    assert next(sparse) == pytest.approx(next(sparse)), "queries are gathered, whatever is before them"


@pytest.fixture(scope="module")
def runs() -> dict[int, list[PublishedCase]]:
    """The published runs by ranks that share one KV cache."""
    found: dict[int, list[PublishedCase]] = {}
    for case in published_cases():
        if case.source == PUBLISHED:
            found.setdefault(case.setup.dcp, []).append(case)
    return found


def measured(cases: list[PublishedCase], metric: str, requests: int) -> float:
    """Mean of the published rates of prose, or of long prompts."""
    return mean(
        value
        for case in cases
        for name, value in case.measured
        if (name, case.workload.concurrency) == (metric, requests) and case.workload.content != "structured"
    )


def test_the_published_runs_are_read_with_their_ranks(runs: dict[int, list[PublishedCase]]) -> None:
    assert {dcp: len(cases) for dcp, cases in runs.items()} == {1: 10, 2: 5, 4: 5}


@pytest.mark.parametrize(
    ("metric", "requests", "within"),
    [
        ("decode_tps_per_request", 1, 0.04),
        ("decode_tps_aggregate", 4, 0.05),
        ("prefill_tps", 1, 0.14),
    ],
)
@pytest.mark.parametrize("dcp", [2, 4])
def test_the_predicted_loss_is_the_published_one(
    runs: dict[int, list[PublishedCase]], dcp: int, metric: str, requests: int, within: float
) -> None:
    """Nothing of it was fitted: the factors of all-reduces apply. Prefill loses more than predicted with four."""

    def predicted(ranks: int) -> float:
        case = next(
            case
            for case in runs[ranks]
            if case.workload.concurrency == requests and metric in dict(case.measured)
        )
        band = predict(case, factors())[metric]
        assert band is not None
        return band.mid

    # The ten without are two configurations; the first five have the chunk and the memory of the others.
    published = measured(runs[dcp], metric, requests) / measured(runs[1][:5], metric, requests)
    assert predicted(dcp) / predicted(1) == pytest.approx(published, abs=within)


def test_what_plans_quote_is_in_the_rows(runs: dict[int, list[PublishedCase]]) -> None:
    for run in SHARED_KV.content.runs:
        for share, metric, requests in (
            (run.alone, "decode_tps_per_request", 1),
            (run.together, "decode_tps_aggregate", run.requests),
            (run.prefill, "prefill_tps", 1),
        ):
            loss = measured(runs[run.dcp], metric, requests) / measured(runs[1][:5], metric, requests)
            assert share == pytest.approx(loss, abs=0.006), f"{run.id}: {metric}"
        assert run.sources == (PUBLISHED,)
