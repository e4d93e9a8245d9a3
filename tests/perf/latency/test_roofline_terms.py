"""Physical terms: physics alone gives the published orders, and nothing that should slow down speeds up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_values import setup

from sparkfleet.knowledge.ceilings import LinkSpeed
from sparkfleet.perf.latency.all_reduce import all_reduce_s
from sparkfleet.perf.latency.roofline_terms import burst_terms, halfway, prefill_terms, step_terms, touched
from sparkfleet.perf.latency.step_costs import costs, own_chunk, prompt_share


def test_a_dense_step_reads_all_its_weights() -> None:
    one = setup("nvidia/Llama-3.3-70B-Instruct-NVFP4", "nvfp4")
    terms = step_terms(one, costs(one), 1, 1, 100)
    # NVIDIA/dgx-spark-playbooks PR 91 counts 40.61 GB a token; attention is stored in FP8 in other checkpoints
    assert terms["weights"] * 240 == pytest.approx(40.61, rel=0.15)
    assert terms["experts"] == 0


def test_a_moe_step_reads_what_its_tokens_pick() -> None:
    one = setup("Qwen/Qwen3.6-35B-A3B", "fp8")
    cost = costs(one)
    assert cost.pick == 8 / 256
    assert touched(cost.pick, 1) == pytest.approx(8 / 256)
    assert touched(cost.pick, 10_000) == pytest.approx(1.0)
    assert step_terms(one, cost, 8, 1, 100)["experts"] < 8 * step_terms(one, cost, 1, 1, 100)["experts"]


def test_all_reduces_are_counted_per_layer_and_rank() -> None:
    two = setup("Qwen/Qwen3.6-27B", "fp8", tp=2)
    terms = step_terms(two, costs(two), 1, 1, 100)
    assert terms["latency"] == pytest.approx(2 * 64 * 26e-6)  # 128 all-reduces of 26 us
    assert all_reduce_s(LinkSpeed(latency_us=10, gb_per_s=10), 1, 1e6) == (0.0, 0.0)
    assert all_reduce_s(LinkSpeed(latency_us=10, gb_per_s=10), 4, 1e6) == pytest.approx((20e-6, 1.5e-4))


def test_prompts_share_passes_over_the_weights() -> None:
    one = setup("Qwen/Qwen3.6-35B-A3B", "bf16")
    cost = costs(one)
    alone, four = (prefill_terms(one, cost, n, 256, 0)["weights"] for n in (1, 4))
    assert four < 2 * alone


def test_drafters_read_keys_and_values_of_their_own() -> None:
    def kv(method: str, k: int) -> float:
        one = setup("Qwen/Qwen3.6-35B-A3B", "fp8", method=method, k=k)
        return step_terms(one, costs(one), 1, k + 1, 32768)["kv"]

    full = setup("Qwen/Qwen3.6-35B-A3B", "fp8").shape.layers.full
    assert kv("mtp", 3) == pytest.approx(kv("none", 0) * (1 + 3 / full))
    assert kv("dflash", 7) == pytest.approx(kv("none", 0) * (1 + 5 / full))
    assert kv("ngram", 4) == kv("none", 0)


def test_an_mtp_head_of_experts_reads_those_that_its_tokens_pick() -> None:
    """One layer of Qwen3.6-35B-A3B: 256 experts of three matrices of 2048 x 512, of which a token picks 8."""
    one, two = (setup("Qwen/Qwen3.6-35B-A3B", "fp8", method="mtp", k=3, tp=tp) for tp in (1, 2))
    mtp = one.shape.part("mtp")
    layer = 256 * 3 * 2048 * 512 * (mtp.bits if mtp else 16) / 8
    assert costs(one).drafted_experts == pytest.approx(layer, rel=0.01)
    assert costs(two).drafted_experts == pytest.approx(layer / 2, rel=0.01)
    cost = costs(one)
    passes = [step_terms(one, cost, batch, 4, 100)["draft"] for batch in (1, 100)]
    # More requests pick more of the layer's experts: at most 256 / 8 times as many.
    assert passes[0] < passes[1] < passes[0] * 256 / 8


def test_a_prompt_does_not_pass_the_head() -> None:
    one = setup("Qwen/Qwen3.6-35B-A3B", "bf16")
    cost = costs(one)
    assert cost.active - cost.prompt == pytest.approx(one.shape.hidden * one.shape.vocab)
    terms = prefill_terms(one, cost, 1, 8192, 0)
    assert terms["compute"] < 2 * cost.active * 8192 / cost.flops


def test_prompts_of_one_pass_come_out_at_its_end() -> None:
    assert halfway(0.3) == pytest.approx(1.0)
    assert halfway(1.0) == pytest.approx(1.0)
    assert halfway(2.0) == pytest.approx(0.75)
    assert halfway(1000.0) == pytest.approx(0.5, abs=1e-3)
    one = setup("Qwen/Qwen3.6-27B", "fp8", chunk=8192)
    cost = costs(one)
    mean, last = (burst_terms(one, cost, 5, 1024, 0, mean=mean)["compute"] for mean in (True, False))
    alone = prefill_terms(one, cost, 1, 1024, 0)["compute"]
    assert last == pytest.approx(5 * alone)
    assert mean == pytest.approx((1 + 4 * 5) / 5 * alone)  # the first alone, four in the pass after it


def test_prompts_that_come_in_one_step_share_its_pass_with_the_first() -> None:
    one = setup("unsloth/gemma-4-12b-it", "q4_k", engine="llama.cpp", chunk=2048)
    cost, alone = costs(one), prefill_terms(one, costs(one), 1, 1024, 0)["compute"]
    two, four = (burst_terms(one, cost, n, 1024, 0, mean=True, at_once=True)["compute"] for n in (2, 4))
    assert two == pytest.approx(2 * alone)  # both come out at the end of the one pass
    assert four == pytest.approx((2 + 4) / 2 * alone)


@given(st.floats(0.01, 500), st.floats(0.0, 50))
def test_more_passes_are_waited_for_no_shorter(passes: float, more: float) -> None:
    assert passes * halfway(passes) <= (passes + more) * halfway(passes + more) * (1 + 1e-9)


@pytest.mark.parametrize(("engine", "tokens"), [("vllm", 2048), ("sglang", 8192), ("exllama", 8192)])
def test_what_an_engine_prefills_at_a_time_by_itself(engine: str, tokens: int) -> None:
    assert own_chunk(engine) == tokens


def test_small_chunks_read_the_experts_more_often() -> None:
    one = setup("Qwen/Qwen3.6-35B-A3B", "bf16")
    small, large = (
        prefill_terms(one.model_copy(update={"chunk": chunk}), costs(one), 1, 16_384, 0)
        for chunk in (2048, 8192)
    )
    assert small["weights"] == pytest.approx(4 * large["weights"], rel=0.05)
    assert (
        small["compute"] > large["compute"]
    )  # an expert's tiles are the emptier the fewer tokens it is given
    assert small["traffic"] == large["traffic"]


def test_tokens_of_one_answer_pick_experts_alike() -> None:
    one = setup("Qwen/Qwen3.6-35B-A3B", "nvfp4")
    of_one, of_many = (
        step_terms(one, costs(one), batch, width, 128)["experts"] for batch, width in ((1, 8), (8, 1))
    )
    assert of_one < of_many


def test_drafting_costs_its_weights_in_bf16_and_slower_products() -> None:
    plain = setup("Qwen/Qwen3.6-27B-FP8", "nvfp4")
    drafted = plain.model_copy(update={"method": "mtp", "k": 3})
    terms = step_terms(drafted, costs(drafted), 1, 4, 128)
    assert terms.keys() - step_terms(plain, costs(plain), 1, 1, 128).keys() == {
        "draft",
        "draft_launch",
        "verify",
        "drafting",
    }
    wide = setup("Qwen/Qwen3.6-27B-FP8", "bf16", method="mtp", k=3)
    assert terms["draft"] == step_terms(wide, costs(wide), 1, 4, 128)["draft"]


def test_without_graphs_a_step_takes_as_long_as_its_launches_at_least() -> None:
    small = setup("Qwen/Qwen3-30B-A3B", "nvfp4", tp=2)
    large = setup("nvidia/Llama-3.3-70B-Instruct-NVFP4", "nvfp4")
    for graphs, bound in ((small, True), (large, False)):
        eager = graphs.model_copy(update={"eager": True})
        plain, slow = (step_terms(one, costs(one), 1, 1, 100) for one in (graphs, eager))
        assert (sum(slow.values()) > 1.5 * sum(plain.values())) is bound
        if bound:  # 48 layers took 27.8 ms
            assert sum(slow.values()) == pytest.approx(28e-3, rel=0.1)
        else:  # the GPU is what takes the time: the host hides behind it
            assert slow == plain


def test_a_draft_pass_reads_the_mtp_part_as_it_is_stored() -> None:
    wide, narrow = (
        setup(name, format_, method="mtp", k=3)
        for name, format_ in (("nvidia/Qwen3.6-27B-NVFP4", "nvfp4"), ("Qwen/Qwen3.6-27B-FP8", "fp8"))
    )
    assert costs(wide).layer == pytest.approx(2 * costs(narrow).layer, rel=0.01)  # BF16 against FP8
    assert costs(wide).head < costs(narrow).head / 3  # 4.5 bits against 16


@pytest.mark.parametrize(
    ("engine", "release", "share"),
    [("vllm", "0.32", 0.5), ("vllm", "0.31", 1), ("vllm", "eugr", 1), ("vllm", "", 1), ("sglang", "0.5", 1)],
)
def test_layers_without_keys_of_their_own_are_skipped_by_releases_that_do_so(
    engine: str, release: str, share: float
) -> None:
    """DeepSeek V4.1: vLLM 0.32 runs layers 21 to 39 for a prompt's end only; published builds run all of them."""
    one = setup("deepseek-ai/DeepSeek-V4.1-Flash", "fp8+mxfp4", engine=engine, release=release, tp=4)
    assert prompt_share(one) == pytest.approx(share, rel=0.06)
    whole = setup("deepseek-ai/DeepSeek-V4.1-Flash", "fp8+mxfp4", engine=engine, tp=4)
    weights, all_weights = (prefill_terms(s, costs(s), 1, 8192, 0)["weights"] for s in (one, whole))
    assert weights == pytest.approx(prompt_share(one) * all_weights)


def test_an_eagle3_head_is_dense_with_a_vocabulary_of_its_own() -> None:
    """lmsys/EAGLE3-gpt-oss-120b-bf16 has 1.8 GB, 1.16 of them the embedding, of which a pass reads one row."""
    for batch in (1, 32):
        one = setup("openai/gpt-oss-120b", "mxfp4", method="eagle3", k=1)
        read = step_terms(one, costs(one), batch, 2, 1000)["draft"] * 240
        assert read == pytest.approx(1.8 - 1.16, rel=0.15)


def test_a_separate_mtp_drafter_is_read_as_published() -> None:
    """Gemma 4's assistant has 0.97 GB for all passes; a layer and the head of its target would be 3.8."""
    usual = setup("nvidia/Gemma-4-31B-IT-NVFP4", "nvfp4", method="mtp", k=3)
    assistant = usual.model_copy(update={"draft_bytes": 0.97e9})
    by_target, own = (step_terms(one, costs(one), 1, 4, 1000)["draft"] for one in (usual, assistant))
    assert own * 240 == pytest.approx(3 * 0.97)
    assert by_target > 3 * own
