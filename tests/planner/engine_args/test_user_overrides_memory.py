"""Memory that a deployment's own arguments fix: shares, pools of KV, and demands that no node has room for."""

import pytest
from planning_values import FP8, MOE, NVFP4, choice, refusal

from sparkfleet.units import GIB

SLIDING = "openai/gpt-oss-20b"
GPTQ = "Qwen/Qwen3-235B-A22B-GPTQ-Int4"
TOTAL = 130.6e9


def static_of(rung):
    """Bytes that SGLang takes its share for."""
    names = ("weights", "KV cache", "KV cache beyond that", "states", "drafter")
    return sum(part.bytes for part in rung.prediction.memory_parts if part.name in names)


class TestMemory:
    def test_vllm_takes_its_share_of_all_that_there_is(self, sparks, plan, ask):
        rung = choice(plan(sparks(1), ask(MOE, engine_args=["--gpu-memory-utilization=0.6"])))
        assert rung.candidate.memory_fraction == 0.6
        assert rung.prediction.memory_bytes_per_rank.mid == pytest.approx(0.6 * TOTAL, rel=0.01)
        assert "0.6 of the memory" in rung.pinned
        assert sum(part.bytes for part in rung.prediction.memory_parts) == pytest.approx(
            0.6 * TOTAL, rel=0.01
        )

    def test_sglangs_share_is_of_what_is_free_and_not_all_that_it_takes(self, sparks, plan, ask):
        rung = choice(plan(sparks(1), ask(MOE, engine_args=["--mem-fraction-static=0.6"])))
        assert 0.5 * TOTAL < static_of(rung) < 0.6 * TOTAL
        parts = {part.name: part.bytes for part in rung.prediction.memory_parts}
        assert rung.prediction.memory_bytes_per_rank.mid > static_of(rung) + parts["process"]

    def test_beside_something_else_sglangs_share_is_smaller(self, sparks, spark, plan, ask):
        fleet = sparks(1).model_copy(
            update={"nodes": (spark("spark1", available=90_000_000_000),), "assumed": ()}
        )
        rung = choice(plan(fleet, ask(MOE, engine_args=["--mem-fraction-static=0.6"])))
        assert static_of(rung) == pytest.approx(0.6 * 90e9, rel=0.05)

    def test_it_is_counted_on_the_node(self, sparks, plan, ask):
        large = ask(MOE, name="a", engine_args=["--gpu-memory-utilization=0.6"])
        found = plan(
            sparks(1), large, ask(FP8, name="b", engine="vllm", engine_args=["--gpu-memory-utilization=0.5"])
        )
        assert [one.name for one in found.deployments] != []
        assert len(found.refused) == 1, "six tenths and five tenths are more than there is"
        both = plan(sparks(1), large, ask(FP8, name="b", engine="vllm", context=8192, concurrency=1))
        assert not both.refused, "without a share it takes what it needs, and that is there"

    def test_a_share_that_is_too_small_for_the_weights(self, sparks, plan, ask):
        one = refusal(plan(sparks(1), ask(FP8, engine="vllm", engine_args=["--gpu-memory-utilization=0.2"])))
        assert any(
            "and 0.2 of the memory, set in the deployment, is 24" in reject.reason for reject in one.rejected
        )

    def test_a_share_for_which_a_busy_node_has_no_room_names_one_that_would_fit(
        self, sparks, spark, plan, ask
    ):
        fleet = sparks(1).model_copy(
            update={"nodes": (spark("spark1", available=90_000_000_000),), "assumed": ()}
        )
        args = ["--gpu-memory-utilization=0.8"]
        one = refusal(plan(fleet, ask(MOE, engine="vllm", engine_args=args)))
        (told,) = {reject.reason for reject in one.rejected if reject.why == "memory"}
        fits = told.partition("set in the deployment; ")[2].partition(" would fit")[0]
        again = plan(fleet, ask(MOE, engine="vllm", engine_args=[f"--gpu-memory-utilization={fits}"]))
        assert choice(again).candidate.memory_fraction == float(fits)

    def test_field_report_004(self, sparks, plan, ask):
        args = ["--attention-backend=TRITON_ATTN", "--kv-cache-dtype=fp8", "--gpu-memory-utilization=0.87"]
        spec = ask(
            GPTQ, engine="vllm", parallel={"tp": 2, "ep": 2}, context=32768, concurrency=4, engine_args=args
        )
        rung = choice(plan(sparks(2), spec))
        assert (rung.prediction.verdict, rung.candidate.kv_dtype) == ("tight", "fp8")
        assert rung.pinned == ("0.87 of the memory", "KV cache in fp8", "attention backend TRITON_ATTN")
        assert rung.prediction.memory_bytes_per_rank.mid == pytest.approx(0.87 * TOTAL, rel=0.01)


PER_TOKEN = 2 * 48 * 4 * 128 * 2
"""Bytes of KV of one token of Qwen3-30B-A3B: K and V of 48 layers, 4 heads of 128, in bf16 (its config.json)."""


class TestKvCache:
    @pytest.mark.parametrize(
        ("engine", "args", "size"),
        [
            ("vllm", ["--kv-cache-memory-bytes=20G"], 20 * GIB),
            ("vllm", ["--kv-cache-memory-bytes=20G", "--gpu-memory-utilization=0.8"], 20 * GIB),
            ("vllm", ["--num-gpu-blocks-override=16384", "--block-size=16"], 262_144 * PER_TOKEN),
            ("sglang", ["--max-total-tokens=262144"], 262_144 * PER_TOKEN),
            ("sglang", ["--max-total-tokens=262144", "--mem-fraction-static=0.8"], 262_144 * PER_TOKEN),
        ],
    )
    def test_it_is_made_so_whatever_is_asked_for(self, sparks, plan, ask, engine, args, size):
        fields = {"engine": engine, "context": 32768, "concurrency": 4}
        plain = choice(plan(sparks(1), ask(MOE, **fields))).prediction
        rung = choice(plan(sparks(1), ask(MOE, engine_args=args, **fields)))
        parts = {part.name: part.bytes for part in rung.prediction.memory_parts}
        asked = 4 * 32768 * PER_TOKEN
        assert parts["KV cache"] == pytest.approx(asked)
        assert parts["KV cache beyond that"] == pytest.approx(size - asked)
        if len(args) == 1 or engine == "vllm":
            grown = rung.prediction.memory_bytes_per_rank.mid - plain.memory_bytes_per_rank.mid
            assert grown == pytest.approx(size - asked)
        assert sum(parts.values()) == pytest.approx(rung.prediction.memory_bytes_per_rank.mid)

    def test_ranks_share_it_as_they_share_the_heads(self, sparks, plan, ask):
        for engine, arg, size in (
            ("vllm", "--kv-cache-memory-bytes=20G", 20 * GIB),
            ("sglang", "--max-total-tokens=262144", 131_072 * PER_TOKEN),
        ):
            rung = choice(plan(sparks(2), ask(MOE, engine=engine, parallel={"tp": 2}, engine_args=[arg])))
            parts = [part.bytes for part in rung.prediction.memory_parts if part.name.startswith("KV cache")]
            assert sum(parts) == pytest.approx(size)

    def test_states_are_blocks_of_vllms_and_apart_in_sglang(self, sparks, plan, ask):
        vllm = choice(plan(sparks(1), ask(FP8, engine="vllm", engine_args=["--kv-cache-memory-bytes=20G"])))
        parts = {part.name: part.bytes for part in vllm.prediction.memory_parts}
        pool = ("states", "KV cache", "draft KV", "KV cache beyond that")
        assert sum(parts[name] for name in pool) == pytest.approx(20 * GIB)
        sglang = choice(plan(sparks(1), ask(FP8, engine="sglang", engine_args=["--max-total-tokens=262144"])))
        parts = {part.name: part.bytes for part in sglang.prediction.memory_parts}
        kv = 2 * 17 * 4 * 256 * 2 * 262_144  # K and V of 16 full layers and a head's, 4 heads of 256, in bf16
        assert sum(parts[name] for name in pool if name != "states") == pytest.approx(kv)

    def test_sliding_layers_of_sglang_keep_a_share(self, sparks, plan, ask):
        spec = ask(
            SLIDING, engine="sglang", engine_args=["--max-total-tokens=262144", "--kv-cache-dtype=bf16"]
        )
        parts = choice(plan(sparks(1), spec)).prediction.memory_parts
        kv = 2 * 8 * 64 * 2 * 262_144 * (12 + 0.8 * 12)  # 12 full and 12 sliding layers, 8 heads of 64
        assert sum(part.bytes for part in parts if part.name.startswith("KV cache")) == pytest.approx(kv)

    def test_sizes_that_are_left_open_are_made_to_fit(self, sparks, plan, ask):
        for engine, arg in (("vllm", "--kv-cache-memory-bytes=1G"), ("sglang", "--max-total-tokens=8192")):
            rung = choice(plan(sparks(1), ask(MOE, engine=engine, engine_args=[arg])))
            per_token = PER_TOKEN / (2 if "fp8" in rung.candidate.kv_dtype else 1)
            wanted = rung.candidate.context * rung.candidate.concurrency
            assert wanted <= (GIB / per_token if engine == "vllm" else 8192)
            assert rung.prediction.verdict == "fits"

    def test_requests_that_wait_for_one_another_are_tight(self, sparks, plan, ask):
        args = ["--kv-cache-memory-bytes=6G", "--kv-cache-dtype=bfloat16"]
        rung = choice(
            plan(sparks(1), ask(MOE, engine="vllm", context=32768, concurrency=4, engine_args=args))
        )
        assert rung.prediction.verdict == "tight"
        assert "2 × 32768 tokens" in rung.prediction.memory_bytes_per_rank.basis
        parts = {part.name: part.bytes for part in rung.prediction.memory_parts}
        assert parts["KV cache"] == pytest.approx(6 * GIB)

    @pytest.mark.parametrize(
        ("model", "fields", "args", "told"),
        [
            # vLLM: "To serve at least one request with the model's max seq len" (_check_enough_kv_cache_memory).
            (
                MOE,
                {"engine": "vllm", "context": 32768},
                ["--kv-cache-memory-bytes=2G", "--kv-cache-dtype=auto"],
                "one request of 32768 tokens needs 3.00 GiB of KV cache, and --kv-cache-memory-bytes=2G is 2.00",
            ),
            (
                MOE,
                {"engine": "vllm", "context": 32768},
                ["--num-gpu-blocks-override=1024", "--block-size=16"],
                "one request of 32768 tokens exceeds the 16384 of --num-gpu-blocks-override=1024",
            ),
            (
                MOE,
                {"engine": "sglang", "context": 32768},
                ["--max-total-tokens=8192"],
                "one request of 32768 tokens exceeds the 8192 of --max-total-tokens=8192",
            ),
            (
                FP8,
                {"engine": "vllm"},
                ["--num-gpu-blocks-override=1024", "--block-size=16"],
                "is not known for a model with sliding or linear layers",
            ),
        ],
    )
    def test_what_cannot_be_is_refused_with_its_numbers(self, sparks, plan, ask, model, fields, args, told):
        one = refusal(plan(sparks(1), ask(model, engine_args=args, **fields)))
        assert told in "\n".join(reject.reason for reject in one.rejected)

    def test_the_share_beside_it_has_to_be_free_when_vllm_starts(self, sparks, spark, plan, ask):
        # vLLM 0.32, v1/worker/utils.py: request_memory, whatever the KV cache is made of.
        fleet = sparks(1).model_copy(
            update={"nodes": (spark("spark1", available=90_000_000_000),), "assumed": ()}
        )
        args = ["--kv-cache-memory-bytes=6G"]
        assert not plan(fleet, ask(MOE, engine="vllm", engine_args=args)).refused
        one = refusal(
            plan(fleet, ask(MOE, engine="vllm", engine_args=[*args, "--gpu-memory-utilization=0.8"]))
        )
        (told,) = {reject.reason for reject in one.rejected if reject.why == "memory"}
        assert "0.8 of the memory, set in the deployment, must be free when vLLM starts" in told

    @pytest.mark.parametrize(
        ("engine", "flag", "unit", "value"),
        [
            ("vllm", "--kv-cache-memory-bytes", "", "120G"),
            ("sglang", "--max-total-tokens", " tokens", "2000000"),
        ],
    )
    def test_one_that_a_node_has_no_room_for_names_one_that_would_fit(
        self, sparks, plan, ask, engine, flag, unit, value
    ):
        one = refusal(plan(sparks(1), ask(MOE, engine=engine, engine_args=[f"{flag}={value}"])))
        (told,) = {reject.reason for reject in one.rejected if reject.why == "memory"}
        fits = told.partition("set in the deployment; ")[2].partition(f"{unit} would fit")[0]
        size = str(int(float(fits) * GIB)) if engine == "vllm" else fits
        rung = choice(plan(sparks(1), ask(MOE, engine=engine, engine_args=[f"{flag}={size}"])))
        assert rung.prediction.verdict == "tight"

    def test_it_is_counted_on_the_node(self, sparks, plan, ask):
        both = [
            ask(MOE, name=name, engine="vllm", engine_args=["--kv-cache-memory-bytes=30G"])
            for name in ("a", "b")
        ]
        assert len(plan(sparks(1), *both).refused) == 1
        small = [spec.model_copy(update={"engine_args": ("--kv-cache-memory-bytes=6G",)}) for spec in both]
        assert not plan(sparks(1), *small).refused

    def test_tensorrt_llm_takes_its_options_file_over_the_share(self, sparks, plan, ask):
        args = ["--kv_cache_free_gpu_memory_fraction=0.5"]
        one = refusal(plan(sparks(1), ask(NVFP4, engine="trtllm", engine_args=args)))
        assert "has no effect" in one.rejected[0].reason
        own = [*args, "--extra_llm_api_options=/srv/options.yaml"]
        pinned = ask(f"{NVFP4}@{'c' * 40}", engine="trtllm", engine_args=own, trust_remote_code=True)
        said = choice(plan(sparks(1), pinned)).pinned
        assert "0.5 of the free memory for the KV cache, not counted" in said
        assert "its own options file, not counted" in said
