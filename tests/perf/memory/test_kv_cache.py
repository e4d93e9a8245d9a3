"""The KV cache of a rank: how heads are shared out, what windows keep, what drafts add, and vLLM's blocks."""

from __future__ import annotations

import pytest
from planning_values import model

from sparkfleet.perf.memory.demand import demand
from sparkfleet.perf.memory.engine_sizes import MemoryConfig
from sparkfleet.perf.memory.kv_cache import block_tokens, draft_kv_bytes, kv_bytes, state_bytes, whole_block
from sparkfleet.perf.prediction import MemoryUse


@pytest.mark.parametrize(("kv", "block", "step"), [(2.0, 4160, 8192), (1.0, 8320, 16_384)])
def test_the_least_step_of_a_hybrid(kv: float, block: int, step: int) -> None:
    """NVIDIA's line for this model on a Spark: an FP8 cache, --max-num-batched-tokens 16384 (vllm-project/recipes)."""
    shape = model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "nvfp4")
    run = MemoryConfig(kv_bytes=kv)
    assert (block_tokens(shape, run), whole_block(shape, run)) == (block, step)
    assert whole_block(shape, MemoryConfig(engine="sglang", kv_bytes=kv)) == 0


def test_kv_heads_are_copied_beyond_their_number() -> None:
    shape = model("Qwen/Qwen3.6-35B-A3B", "fp8")  # two KV heads
    two = kv_bytes(shape, MemoryConfig(tp=2))
    assert kv_bytes(shape, MemoryConfig()) / 2 == pytest.approx(
        two, rel=0.02
    )  # whole blocks, of another length
    assert kv_bytes(shape, MemoryConfig(tp=4)) == pytest.approx(two, rel=0.02)
    latent = model("deepseek-ai/DeepSeek-V4-Flash", "fp8")
    assert kv_bytes(latent, MemoryConfig(tp=4)) == kv_bytes(latent, MemoryConfig())


def test_heads_are_not_cut() -> None:
    shape = model("MiniMax-M3", "nvfp4")  # four KV heads
    assert (
        kv_bytes(shape, MemoryConfig(tp=3))
        == kv_bytes(shape, MemoryConfig(tp=2))
        == kv_bytes(shape, MemoryConfig()) / 2
    )
    item = next(item for item in demand(shape, MemoryConfig(tp=3)).items if item.name == MemoryUse.KV_CACHE)
    assert item.high == kv_bytes(shape, MemoryConfig())  # or all of them are copied
    assert (
        kv_bytes(shape, MemoryConfig(tp=8))
        == kv_bytes(shape, MemoryConfig(tp=4))
        == kv_bytes(shape, MemoryConfig()) / 4
    )


def test_drafts_keep_states() -> None:
    shape = model("Qwen3.6-27B", "fp8")
    plain, drafting = (MemoryConfig(engine="trtllm", method=method, k=3) for method in ("none", "mtp"))
    assert state_bytes(shape, drafting) == 4 * state_bytes(shape, plain)
    # vLLM's pages hold 16 layers, or 17 with the head, and 48 states are three groups of either.
    assert state_bytes(shape, MemoryConfig(method="mtp", k=3)) == pytest.approx(
        17 / 16 * 4 * state_bytes(shape, MemoryConfig())
    )


def test_a_window_moves_with_the_prompt() -> None:
    shape = model("openai/gpt-oss-120b", "mxfp4")  # 18 full and 18 sliding layers, window 128
    one, two = (kv_bytes(shape, MemoryConfig(context=131072, concurrency=n)) for n in (1, 2))
    sliding = shape.layers.sliding_elements
    assert one == shape.layers.kv_elements * 131072 + sliding * (128 + 16 + 8192)
    assert two - one == shape.layers.kv_elements * 131072 + sliding * (
        128 + 16
    )  # one prompt passes at a time


def test_a_head_has_the_kv_of_its_layers() -> None:
    shape = model("Qwen/Qwen3-235B-A22B", "fp8")  # 94 layers with KV
    run = MemoryConfig(context=32768)
    for method in ("mtp", "eagle3"):
        drafting = run.model_copy(update={"method": method, "k": 3})
        assert draft_kv_bytes(shape, drafting) == pytest.approx(kv_bytes(shape, run) / 94)
    parallel = run.model_copy(update={"method": "dflash", "k": 3})
    assert draft_kv_bytes(shape, parallel) == 5 * 2048 * 32768
    for method in ("none", "ngram"):
        assert draft_kv_bytes(shape, run.model_copy(update={"method": method})) == 0
    fixed = demand(shape, run.model_copy(update={"method": "mtp", "k": 3, "kv_pool": 8e9}))
    assert fixed.of(MemoryUse.DRAFT_KV) == 0  # it lies in the pool


class TestShared:
    """Decode context parallelism: ranks keep one KV cache, split by tokens."""

    def test_latents_are_split_by_tokens(self) -> None:
        shape = model("zai-org/GLM-5.2", "fp8")
        one = MemoryConfig(tp=4, context=300_000, concurrency=2)
        shares = [kv_bytes(shape, one.model_copy(update={"dcp": dcp})) for dcp in (1, 2, 4)]
        assert shares == pytest.approx([shares[0], shares[0] / 2, shares[0] / 4])

    def test_the_published_pools_hold_what_they_are_predicted_to(self) -> None:
        """0xdfi/glm-5.2-dgx-spark-vllm027, docs/how-it-works.md: bytes of each rank for one request, its head included."""
        shape = model("zai-org/GLM-5.2", "fp8")
        for dcp, context, pool in (
            (1, 320_000, 10_232_320_000),
            (2, 500_000, 7_995_534_848),
            (4, 500_000, 3_998_790_656),
            (4, 1_000_000, 7_995_534_848),
        ):
            run = MemoryConfig(tp=4, dcp=dcp, context=context, kv_bytes=0.5625, method="mtp", k=5)
            assert kv_bytes(shape, run) + draft_kv_bytes(shape, run) == pytest.approx(pool, rel=0.03)

    def test_heads_that_are_copied_are_split_by_tokens_and_states_are_not(self) -> None:
        shape = model("Qwen/Qwen3.6-35B-A3B", "fp8")  # two KV heads, and linear layers
        plain, shared = (MemoryConfig(tp=4, dcp=dcp, context=131_072) for dcp in (1, 2))
        assert kv_bytes(shape, shared) == pytest.approx(kv_bytes(shape, plain) / 2, rel=0.05)  # whole blocks
        assert state_bytes(shape, shared) == state_bytes(shape, plain)
        assert block_tokens(shape, shared) == block_tokens(shape, plain)

    def test_windows_stay_whole(self) -> None:
        shape = model("openai/gpt-oss-120b", "mxfp4")
        plain, shared = (MemoryConfig(tp=8, dcp=dcp, context=131_072) for dcp in (1, 2))
        kept = kv_bytes(shape, plain) - kv_bytes(shape, shared)
        full = shape.layers.kv_elements / 8 * 131_072
        assert kept == pytest.approx(full / 2)

    @pytest.mark.parametrize(("method", "share"), [("mtp", 0.25), ("dflash", 1.0)])
    def test_a_head_shares_with_its_model_and_a_drafter_of_its_own_does_not(
        self, method: str, share: float
    ) -> None:
        shape = model("zai-org/GLM-5.2", "fp8")
        plain, shared = (MemoryConfig(tp=4, dcp=dcp, context=65_536, method=method, k=3) for dcp in (1, 4))
        assert draft_kv_bytes(shape, shared) == pytest.approx(share * draft_kv_bytes(shape, plain))
