"""Rates: near published ones, and nothing that should slow down speeds up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from latency_values import predict, setup

from sparkfleet.knowledge.ceilings import LinkSpeed
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.perf.latency.acceptance import EVEN
from sparkfleet.perf.latency.latency_model import model_of
from sparkfleet.perf.latency.rates import BURST_ONE, STAGGERED, Rates, kept, left_of_burst, rates, waits
from sparkfleet.perf.workload import Window, Workload


def test_answers_of_a_burst_wait_for_the_prefills_after_their_own() -> None:
    of_each, of_all = waits("burst", 10, 5.0, drafted=False)
    assert len(of_each) == 10
    assert 0.0 == of_each[0] < of_each[1] < of_each[-1] < of_all < 5.0
    assert waits("served", 10, 5.0, drafted=False) == (of_each, 5.0)
    assert waits("steady", 10, 5.0, drafted=False) == waits("closed", 10, 5.0, drafted=False)
    assert waits("closed", 10, 5.0, drafted=False) == ((BURST_ONE * 4.5,), 5.0)
    assert waits("steady", 1, 5.0, drafted=False) == ((0.0,), 0.0)
    assert waits("closed", 1, 5.0, drafted=False) == ((0.0,), 5.0)
    assert waits("decode", 10, 5.0, drafted=False) == ((0.0,), 0.0)
    assert waits("burst", 1, 5.0, drafted=False) == ((0.0,), 0.0)


@pytest.mark.parametrize("window", ["burst", "served", "steady", "closed"])
def test_drafts_shorten_the_wait_beside_prefills(window: Window) -> None:
    plain, drafted = (waits(window, 10, 5.0, drafted=on)[0] for on in (False, True))
    assert max(drafted) < max(plain)


def test_half_of_a_long_burst_decodes_alone() -> None:
    """Two prompts of 131K: the later one hardly waits, so the mean rate is half of what one alone has (MiaAI-Lab)."""
    model = model_of(setup("Qwen/Qwen3.6-27B-FP8", "fp8"), factors())
    long = Workload(prompt=131_072, generate=256, window="burst")
    alone, both = (
        rates(model, long.model_copy(update={"concurrency": n})).decode_tps_per_request.mid for n in (1, 2)
    )
    assert both == pytest.approx(alone / 2, rel=0.2)


def test_answers_with_drafts_end_one_by_one() -> None:
    """In a closed loop their successors are not a burst, and wait less for their first token."""
    drafted = model_of(setup("Qwen/Qwen3.6-27B-FP8", "fp8", method="mtp", k=3), factors())
    loop = Workload(prompt=1024, concurrency=16, window="closed")
    burst = loop.model_copy(update={"window": "burst"})
    ttft = [rates(drafted, work).ttft_ms for work in (loop, burst)]
    assert ttft[0] is not None
    assert ttft[1] is not None
    assert ttft[0].mid < ttft[1].mid / 2


@pytest.mark.parametrize("drafting", [{}, {"method": "mtp", "k": 3}])
def test_what_is_left_of_a_burst_in_a_closed_loop(drafting: dict[str, Any]) -> None:
    """The first round is a burst; the successors wait for a seventh of it, with drafts and without."""
    one = setup("Qwen/Qwen3.6-27B-FP8", "fp8", **drafting)
    loop = Workload(concurrency=10, window="closed")
    assert left_of_burst(one, loop, 10) == STAGGERED
    assert left_of_burst(one, loop.model_copy(update={"requests": 100}), 10) == pytest.approx(
        0.1 + 0.9 * STAGGERED
    )
    assert left_of_burst(one, loop.model_copy(update={"requests": 10}), 10) == 1.0
    assert left_of_burst(one, loop.model_copy(update={"window": "burst"}), 10) == 1.0


def test_long_answers_of_a_burst_end_apart() -> None:
    burst = Workload(generate=4096, window="burst")
    assert kept(burst, 5, drafted=True) == pytest.approx(0.63, abs=0.02)
    assert kept(burst.model_copy(update={"generate": 64}), 5, drafted=True) > 0.99
    assert kept(Workload(), 5, drafted=True) == EVEN
    assert kept(burst, 1, drafted=True) == kept(Workload(generate=4096), 5, drafted=False) == 1.0


# (model, format, what is run, published tok/s of one request, source); the bands were not made for these rows alone
PUBLISHED = [
    ("Qwen/Qwen3.6-27B-FP8", "fp8", {"engine": "sglang"}, 7.9, "medians of one Spark"),
    ("Qwen/Qwen3.6-27B", "bf16", {}, 4.5, "djangodevreng"),
    ("Qwen3.6-27B-NVFP4", "nvfp4", {}, 11.7, "medians of one Spark"),
    ("Qwen/Qwen3.6-35B-A3B-FP8", "fp8", {}, 52, "medians of one Spark"),
    ("openai/gpt-oss-120b", "mxfp4", {}, 57, "medians of one Spark"),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "nvfp4", {}, 15.5, "luisefigueroa/pulsar"),
    ("Qwen/Qwen3-235B-A22B-GPTQ-Int4", "int4", {"tp": 2, "ep": 2}, 17.0, "field report 003"),
    ("MiniMax-M2.5", "int4", {"tp": 2, "ray": True, "kernel": "marlin"}, 41.7, "flash7777, with Ray"),
    ("Qwen/Qwen3.6-27B-FP8", "fp8", {"engine": "sglang", "method": "mtp", "k": 5}, 22.6, "field report 000"),
    (
        "Qwen/Qwen3.6-27B-FP8",
        "fp8",
        {"engine": "sglang", "method": "ngram", "k": 4},
        12.7,
        "field report 001",
    ),
    ("Qwen3.6-27B-NVFP4", "nvfp4", {"method": "mtp", "k": 3}, 23.3, "field report 001"),
    ("Qwen3.6-35B-A3B", "prismaquant", {"method": "dflash", "k": 3}, 71.5, "field report 002"),
]


@pytest.mark.parametrize(("name", "format_", "more", "published", "source"), PUBLISHED)
def test_published_rates_are_near_the_band(
    name: str, format_: str, more: dict[str, object], published: float, source: str
) -> None:
    band = predict(name, format_, Workload(prompt=512, generate=128), **more).decode_tps_per_request
    assert band.low * 0.75 <= published <= band.high * 1.34, (source, band)


def test_tp2_of_a_small_active_moe_gains_little_and_of_a_dense_model_much() -> None:
    work = Workload(prompt=512, generate=128)

    def gain(name: str) -> float:
        two, one = (predict(name, "fp8", work, tp=tp).decode_tps_per_request.mid for tp in (2, 1))
        return two / one

    assert gain("Qwen/Qwen3.6-35B-A3B") < gain("Qwen/Qwen3-VL-32B-Instruct")
    assert gain("Qwen/Qwen3-VL-32B-Instruct") > 1.3


def test_without_a_prompt_there_is_no_time_to_first_token() -> None:
    found = predict("Qwen/Qwen3.6-27B-FP8", "fp8", Workload(prompt=0))
    assert found.ttft_ms is None
    assert found.prefill_tps is None


def test_more_than_the_slots_only_wait() -> None:
    work = Workload(prompt=1024, concurrency=4)
    few = predict("Qwen/Qwen3.6-27B-FP8", "fp8", work, max_running=4)
    many = predict("Qwen/Qwen3.6-27B-FP8", "fp8", work.model_copy(update={"concurrency": 16}), max_running=4)
    assert many.decode_tps_aggregate.mid == pytest.approx(few.decode_tps_aggregate.mid)
    assert many.ttft_ms is not None
    assert few.ttft_ms is not None
    assert many.ttft_ms.mid > 2 * few.ttft_ms.mid


def test_a_loop_waits_for_every_turn_and_a_burst_for_half_of_them() -> None:
    def waited(window: Window) -> float:
        work = Workload(prompt=1024, concurrency=4, window=window)
        few, many = (
            predict("Qwen/Qwen3.6-27B-FP8", "fp8", work.model_copy(update={"concurrency": n}), max_running=4)
            for n in (4, 16)
        )
        assert few.ttft_ms is not None
        assert many.ttft_ms is not None
        return many.ttft_ms.mid - few.ttft_ms.mid

    assert waited("steady") == pytest.approx(2 * waited("served"))


def test_arrivals_that_can_be_served_are_served() -> None:
    light = predict(
        "Qwen/Qwen3.6-35B-A3B", "fp8", Workload(prompt=1000, generate=100, concurrency=64, arrivals_per_s=0.2)
    )
    assert light.decode_tps_aggregate.mid == pytest.approx(0.2 * 100, rel=0.1)
    flood = predict(
        "Qwen/Qwen3.6-35B-A3B", "fp8", Workload(prompt=1000, generate=100, concurrency=64, arrivals_per_s=50)
    )
    assert flood.decode_tps_aggregate.mid < 50 * 100


NAMES = [
    "Qwen3.6-27B",
    "Qwen3.6-35B-A3B",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-235B-A22B",
    "deepseek-ai/DeepSeek-V4-Flash",
]

setups = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(["fp8", "nvfp4", "bf16"]),
    st.fixed_dictionaries({"engine": st.sampled_from(["vllm", "sglang", "trtllm"])})
    | st.fixed_dictionaries(
        {"tp": st.sampled_from([1, 2, 4]), "method": st.just("mtp"), "k": st.integers(1, 6)}
    ),
)

works = st.builds(
    Workload,
    prompt=st.integers(1, 100_000),
    depth=st.integers(0, 200_000),
    generate=st.integers(1, 4096),
    concurrency=st.integers(1, 300),
)


@given(setups, works, st.integers(1, 500_000))
def test_longer_depth_never_decodes_faster(
    what: tuple[str, str, dict[str, object]], work: Workload, more: int
) -> None:
    model = model_of(setup(what[0], what[1], **what[2]), factors())
    deeper = rates(model, work.model_copy(update={"depth": work.depth + more}))
    assert deeper.decode_tps_per_request.mid <= rates(model, work).decode_tps_per_request.mid * (1 + 1e-9)


LOST = 0.1
"""Most that a total may fall with the requests, as a power of their number: 7 % for twice as many, 1 % from 10 to 11.

An engine that holds the next request back until one has ended keeps its total, so by physics it never falls. Twice the
requests may cost it half of what two boots of one machine differ by (12 %)."""

drafters = st.sampled_from([("none", 0), ("mtp", 3), ("eagle3", 3), ("dflash", 7)])


@given(
    st.sampled_from(NAMES),
    st.sampled_from(["fp8", "nvfp4", "int4", "bf16"]),
    st.sampled_from(["vllm", "sglang", "trtllm", "llama.cpp"]),
    st.sampled_from([1, 2, 4]),
    drafters,
    st.sampled_from(["decode", "steady", "closed", "served"]),
    st.integers(1, 100_000),
    st.integers(1, 255),
)
def test_one_request_more_costs_the_total_next_to_nothing(
    name: str,
    format_: str,
    engine: str,
    tp: int,
    drafter: tuple[str, int],
    window: Window,
    prompt: int,
    requests: int,
) -> None:
    assume(requests > 1 or window == "decode")  # other rates of one request begin after its own prefill
    method, k = drafter
    model = model_of(setup(name, format_, engine=engine, tp=tp, method=method, k=k), factors())
    few, more = (
        rates(model, Workload(prompt=prompt, concurrency=n, window=window)).decode_tps_aggregate.mid
        for n in (requests, requests + 1)
    )
    assert more >= few * (requests / (requests + 1)) ** LOST


@given(st.sampled_from(NAMES), works, st.floats(5, 500), st.floats(0.1, 25), st.floats(1, 50))
def test_a_slower_link_never_helps(
    name: str, work: Workload, latency: float, gb: float, worse: float
) -> None:
    def rate(link: LinkSpeed) -> Rates:
        return rates(model_of(setup(name, "fp8", tp=2, link=link), factors()), work)

    fast = rate(LinkSpeed(latency_us=latency, gb_per_s=gb))
    slow = rate(LinkSpeed(latency_us=latency * worse, gb_per_s=gb / worse))
    assert slow.decode_tps_per_request.mid <= fast.decode_tps_per_request.mid * (1 + 1e-9)
    assert slow.decode_tps_aggregate.mid <= fast.decode_tps_aggregate.mid * (1 + 1e-9)
    assert slow.ttft_ms is not None
    assert fast.ttft_ms is not None
    assert slow.ttft_ms.mid >= fast.ttft_ms.mid * (1 - 1e-9)


@given(setups, works)
def test_bands_hold_their_middle_and_repeat(what: tuple[str, str, dict[str, object]], work: Workload) -> None:
    model = model_of(setup(what[0], what[1], **what[2]), factors())
    first, again = rates(model, work), rates(model, work)
    assert first == again
    for band in (first.ttft_ms, first.prefill_tps, first.decode_tps_per_request, first.decode_tps_aggregate):
        assert band is not None
        assert 0 < band.low <= band.mid <= band.high


def test_a_prefill_of_a_dense_model_gains_by_a_second_node() -> None:
    prompt = Workload(prompt=8192, generate=128)
    one, two = (predict("Qwen/Qwen3.6-27B-FP8", "fp8", prompt, tp=tp, chunk=8192) for tp in (1, 2))
    assert one.prefill_tps is not None
    assert two.prefill_tps is not None
    assert 1.2 < two.prefill_tps.mid / one.prefill_tps.mid < 2.0


def test_a_prefill_with_sparse_attention_hardly_falls_with_length() -> None:
    # tonyd2wild: 902 tok/s at 3K, 1,194 at 93K on four nodes; taken for full attention it fell to a tenth
    short, long = (
        predict("deepseek-ai/DeepSeek-V4.1-Flash", "fp8+mxfp4", Workload(prompt=n, generate=64), tp=4)
        for n in (11_592, 93_335)
    )
    assert short.prefill_tps is not None
    assert long.prefill_tps is not None
    assert long.prefill_tps.mid > 0.6 * short.prefill_tps.mid


def test_a_request_costs_what_the_smallest_models_answer_in() -> None:
    """Qwen3-0.6B answers 42 tokens after 15 to 17 ms (PalatineVision), which includes 3 to 5 ms of its weights."""
    found = predict("Qwen/Qwen3-0.6B", "bf16", Workload(prompt=42, generate=256))
    assert found.ttft_ms is not None
    assert 12 < found.ttft_ms.mid < 30


def test_rounds_that_are_not_full_count() -> None:
    loop = Workload(prompt=100, generate=256, concurrency=10, window="closed")
    assert kept(loop, 10, drafted=False) == 1.0
    assert kept(loop.model_copy(update={"requests": 50}), 10, drafted=False) == 1.0
    assert kept(loop.model_copy(update={"requests": 41}), 10, drafted=False) == pytest.approx(41 / 50)
    assert kept(loop.model_copy(update={"requests": 4}), 10, drafted=False) == pytest.approx(0.4)
