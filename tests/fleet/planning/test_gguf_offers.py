"""Assumed Sparks, known checkpoints, and the planner."""

import re

import pytest
from replannings import replanning

from sparkfleet.fleet.planning.gguf_offers import gguf_lines, plans_with_ggufs
from sparkfleet.fleet.planning.replanning import GAIN


def offers(fleet, *specs):
    return plans_with_ggufs(replanning(fleet, *specs))


def test_the_same_bits_are_offered_with_the_published_rate(sparks, ask):
    (one,) = offers(sparks(1), ask("openai/gpt-oss-120b"))["m"]
    assert (one.model, one.same_bits, one.published) == ("ggml-org/gpt-oss-120b-GGUF:MXFP4", True, True)
    assert one.tps == pytest.approx(55.67, abs=0.1)
    assert one.gain >= GAIN
    assert one.rung.candidate.engine == "llama.cpp"
    text = " ".join(" ".join(gguf_lines([one])).split())
    assert text.startswith(
        "llama.cpp `model: ggml-org/gpt-oss-120b-GGUF:MXFP4` (63 GB): 55.7 tok/s for one user, 1.6×"
    )
    assert text.endswith("published, 54.1 predicted; the maker's own bits")


def test_the_same_bits_on_fewer_sparks_need_no_more_than_to_be_as_fast(sparks, ask):
    """Two Sparks were spent on 50 tok/s of vLLM, and the line of llama.cpp's 56 on one of them was missing."""
    (one,) = offers(sparks(2), ask("openai/gpt-oss-120b"))["m"]
    assert (one.model, one.nodes, one.nodes_saved) == ("ggml-org/gpt-oss-120b-GGUF:MXFP4", 1, 1)
    assert 1.0 <= one.gain < GAIN
    text = " ".join(" ".join(gguf_lines([one])).split())
    assert "the maker's own bits; on one Spark instead of 2; shared by 4: " in text


@pytest.mark.parametrize(("concurrency", "shown"), [(1, True), (4, False)])
def test_on_fewer_sparks_it_must_not_yield_less_for_the_requests_that_are_set(
    sparks, ask, concurrency, shown
):
    assert bool(offers(sparks(2), ask("openai/gpt-oss-120b", concurrency=concurrency))) is shown


def test_many_requests_together_may_be_slower_with_it(sparks, ask):
    (one,) = offers(sparks(1), ask("openai/gpt-oss-120b", concurrency=16))["m"]
    text = " ".join(" ".join(gguf_lines([one])).split())
    assert re.search(r"the maker's own bits; shared by 16: \d+ tok/s instead of \d+, predicted$", text)


def test_of_one_request_alone_nothing_is_shared(sparks, ask):
    (one,) = offers(sparks(1), ask("openai/gpt-oss-120b", concurrency=1))["m"]
    assert one.fewer_together is None
    assert " ".join(gguf_lines([one])).endswith("own bits")


def test_fewer_bits_are_offered_where_nothing_else_fits(sparks, ask):
    (one,) = offers(sparks(1), ask("MiniMaxAI/MiniMax-M2.7"))["m"]
    assert (one.model, one.gain, one.same_bits) == ("unsloth/MiniMax-M2.7-GGUF:UD-IQ4_XS", None, False)
    text = " ".join(" ".join(gguf_lines([one])).split())
    assert "fits on spark1, " in text
    assert text.endswith("quality not measured")


@pytest.mark.parametrize(
    "fields", [{"engine": "vllm"}, {"image": "vllm/vllm-openai:v0.31.0-aarch64"}], ids=["engine", "image"]
)
def test_a_deployment_with_an_engine_of_its_own_gets_none(sparks, ask, fields):
    assert offers(sparks(1), ask("openai/gpt-oss-120b", **fields)) == {}


def test_a_gguf_and_a_model_without_one_get_none(sparks, ask):
    assert offers(sparks(1), ask("ggml-org/gpt-oss-120b-GGUF:MXFP4")) == {}
    assert offers(sparks(1), ask("Qwen/Qwen3.6-27B-FP8")) == {}


def test_for_many_requests_the_prediction_counts(sparks, ask):
    found = offers(sparks(1), ask("openai/gpt-oss-120b", objective="throughput", concurrency=16))
    assert all(not one.published and one.gain >= GAIN for one in found.get("m", ()))
