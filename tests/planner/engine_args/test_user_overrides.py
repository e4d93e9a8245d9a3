"""Values that a deployment's own arguments fix are planned with and shown, or refused."""

import pytest
from planning_values import FP8, MOE, NVFP4, choice, ladder, refusal

from sparkfleet.planner.engine_args.user_overrides import in_words, take_over
from sparkfleet.specs.deployment import SpeculationChoice


class TestChunks:
    @pytest.mark.parametrize(
        ("engine", "small", "large"),
        [
            ("vllm", "--max-num-batched-tokens=1K", "--max-num-batched-tokens=16K"),
            ("sglang", "--chunked-prefill-size=1024", "--chunked-prefill-size=-1"),
            ("trtllm", "--max_num_tokens=1024", "--max_num_tokens=16384"),
        ],
    )
    def test_larger_ones_are_faster_and_take_more(self, sparks, plan, ask, engine, small, large):
        model = NVFP4 if engine == "trtllm" else MOE
        few, many = (
            choice(
                plan(sparks(1), ask(model, engine=engine, speculation="none", engine_args=[arg]))
            ).prediction
            for arg in (small, large)
        )
        assert few.prefill_tps.mid < many.prefill_tps.mid
        assert few.memory_bytes_per_rank.mid < many.memory_bytes_per_rank.mid

    @pytest.mark.parametrize(
        ("engine", "fields", "args", "told"),
        [
            # config/scheduler.py, verify_max_model_len: "must be greater than or equal to max_num_seqs".
            (
                "vllm",
                {"concurrency": 8},
                ["--max-num-batched-tokens=4"],
                "--max-num-batched-tokens=4 is less than the concurrency of 8",
            ),
            (
                "vllm",
                {},
                ["--max-num-batched-tokens=4", "--max-num-seqs=8"],
                "is less than the concurrency of 8",
            ),
            # The same: "is smaller than max_model_len".
            (
                "vllm",
                {"context": 32768},
                ["--max-num-batched-tokens=8192", "--no-enable-chunked-prefill"],
                "--max-num-batched-tokens=8192 is less than the context of 32768",
            ),
            # arg_groups/validation_hook.py:243 (0.5.23): "chunked_prefill_size must be divisible by page_size".
            (
                "sglang",
                {},
                ["--chunked-prefill-size=100", "--page-size=64"],
                "--chunked-prefill-size=100 is no multiple of --page-size=64",
            ),
            ("sglang", {}, ["--chunked-prefill-size=8k"], "'8k', not a whole number"),
            ("vllm", {}, ["--max-num-batched-tokens=0"], "'0', not a whole number"),
            ("vllm", {}, ["--kv-cache-memory-bytes=0"], "'0', not a whole number"),
            ("vllm", {}, ["--kv-cache-memory-bytes=1.5G"], "'1.5G', not a whole number"),
            ("vllm", {}, ["--kv-cache-memory-bytes"], "'', not a whole number"),
            ("vllm", {}, ["--kv-cache-memory-bytes=99999999999999999999"], "not a whole number"),
            (
                "vllm",
                {},
                ["--num-gpu-blocks-override=4k", "--block-size=16"],
                "'4k', not a whole number",
            ),
            ("vllm", {}, ["--num-gpu-blocks-override=4096"], "whose size depends"),
            ("sglang", {}, ["--max-total-tokens=-1"], "'-1', not a whole number"),
        ],
    )
    def test_what_an_engine_does_not_start_with(self, sparks, plan, ask, engine, fields, args, told):
        one = refusal(plan(sparks(1), ask(MOE, engine=engine, engine_args=args, **fields)))
        assert told in one.rejected[0].reason
        assert one.nearest


class TestSizes:
    @pytest.mark.parametrize(
        ("engine", "args"),
        [
            ("vllm", ("--max-model-len=8192", "--max-num-seqs=2")),
            ("vllm", ("--max_model_len", "8192", "--max-num-seqs", "2")),
            ("sglang", ("--context-length=8192", "--max-running-requests=2")),
            ("trtllm", ("--max_seq_len=8192", "--max_batch_size=2")),
        ],
    )
    def test_they_stand_for_fields(self, sparks, plan, ask, engine, args):
        rung = choice(plan(sparks(1), ask(NVFP4, engine=engine, engine_args=args)))
        assert (rung.candidate.context, rung.candidate.concurrency) == (8192, 2)
        assert {"context 8192", "concurrency 2"} <= set(rung.pinned)

    @pytest.mark.parametrize("flag", ["--tensor-parallel-size=2", "-tp=2"])
    def test_degrees(self, sparks, plan, ask, flag):
        assert choice(plan(sparks(2), ask(MOE, engine="vllm", engine_args=[flag]))).candidate.shape.tp == 2

    @pytest.mark.parametrize(
        ("text", "value"), [("32k", 32_000), ("32K", 32_768), ("auto", None), ("-1", None)]
    )
    def test_numbers_as_vllm_reads_them(self, ask, text, value):
        variant, wrong = take_over(ask(MOE, engine_args=[f"--max-model-len={text}"]).resolved()[0])
        assert (variant.context, wrong) == (value, ())

    @pytest.mark.parametrize(
        ("fields", "arg", "told"),
        [
            ({"context": 32768}, "--max-model-len=8192", "`context: 32768` and --max-model-len=8192"),
            ({"concurrency": 8}, "--max-num-seqs=4", "`concurrency: 8` and --max-num-seqs=4"),
            (
                {"parallel": {"tp": 2}},
                "--tensor-parallel-size=1",
                "`parallel: {tp: 2}` and --tensor-parallel-size=1",
            ),
            ({}, "--max-model-len=many", "'many', not a whole number"),
            ({}, "--max-num-seqs=0", "'0', not a whole number"),
            ({}, "--tensor-parallel-size=5000", "'5000', not a whole number from 1 to 1024"),
            ({}, "--max-model-len=\u0663", "not a whole number"),
            ({}, "--gpu-memory-utilization=87", "'87', not a share"),
            ({}, "--gpu-memory-utilization=nan", "'nan', not a share"),
            ({"speculation": "ngram"}, "--speculative-config={}", "both configure speculation"),
            ({"speculation": "mtp"}, "--spec-method=dspark", "both configure speculation"),
            ({"speculation": "mtp"}, "--speculative-config.method=dspark", "both configure speculation"),
        ],
    )
    def test_contradictions_are_refused_with_what_to_do(self, sparks, plan, ask, fields, arg, told):
        one = refusal(plan(sparks(2), ask(MOE, engine="vllm", engine_args=[arg], **fields)))
        assert told in one.rejected[0].reason
        assert one.nearest

    def test_the_same_twice_is_no_contradiction(self, sparks, plan, ask):
        spec = ask(MOE, engine="vllm", context=8192, engine_args=["--max-model-len=8192"])
        assert choice(plan(sparks(1), spec)).candidate.context == 8192

    def test_weights_of_another_kind(self, sparks, plan, ask):
        one = refusal(plan(sparks(1), ask(MOE, engine="vllm", engine_args=["--quantization=awq_marlin"])))
        assert "is for awq weights, but these are fp8" in one.rejected[0].reason

    def test_drafting_by_its_own_flags_is_left_to_them(self, sparks, plan, ask):
        config = '--speculative-config={"method":"mtp","num_speculative_tokens":1}'
        rungs = ladder(plan(sparks(1), ask(FP8, engine="vllm", engine_args=[config])))
        assert {rung.candidate.speculation.method for rung in rungs} == {"none"}
        assert "speculation by its own flags, not predicted" in rungs[0].pinned
        single = ask(FP8, engine="vllm", engine_args=["--spec-method=dspark", "--spec-tokens=5"])
        assert take_over(single.resolved()[0])[0].speculation == SpeculationChoice(method="none")
        assert take_over(ask(FP8).resolved()[0])[0].speculation == SpeculationChoice(method="auto")


def test_what_is_said_in_words():
    args = (
        "--gpu-memory-utilization=0.87",
        "--max-num-batched-tokens=2048",
        "--tp-size",
        "2",
        "--unheard-of",
    )
    assert in_words(args) == ("0.87 of the memory", "prefill 2048 tokens at a time", "TP=2")
    kv = ("--kv-cache-memory-bytes=20G", "--max-total-tokens=8192", "--chunked-prefill-size=-1")
    assert in_words(kv) == (
        "KV cache of 20G bytes on each rank",
        "KV cache of at most 8192 tokens",
        "prefill whole prompts",
    )
