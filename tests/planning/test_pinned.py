"""What a deployment's own arguments fix is planned with, told, and kept to the engine whose flags they are."""

import json
from pathlib import Path

import pytest

from sparkfleet.planning.choose import infeasible
from sparkfleet.planning.pinned import DEGREES, KNOWN, SIZES, foreign, in_words, share_said, take_over
from sparkfleet.planning.plan import ENGINE_LABELS
from sparkfleet.spec.deployment import SpeculationChoice

FLAGS = Path(__file__).parents[1] / "engines" / "flags"
NVFP4 = "nvidia/Llama-3.3-70B-Instruct-FP4"
FP8, MOE, GPTQ = "Qwen/Qwen3.6-27B-FP8", "Qwen/Qwen3-30B-A3B-FP8", "Qwen/Qwen3-235B-A22B-GPTQ-Int4"
TOTAL = 130.6e9


def choice(found):
    assert not found.refused, found.refused
    return found.deployments[0].groups[0].choice


def ladder(found):
    return found.deployments[0].groups[0].ladder


def options(engine):
    """Flags of every release of an engine that is known."""
    files = [json.loads(file.read_text()) for file in FLAGS.glob(f"{engine}-*.json")]
    assert files
    return {name.replace("_", "-") for file in files for name in file["options"]}


def refusal(found):
    (one,) = found.refused
    return one


class TestMemory:
    def test_vllm_takes_its_share_of_all_that_there_is(self, sparks, plan, ask):
        rung = choice(plan(sparks(1), ask(MOE, engine_args=["--gpu-memory-utilization=0.6"])))
        assert rung.candidate.memory_fraction == 0.6
        assert rung.prediction.memory_bytes_per_rank.mid == pytest.approx(0.6 * TOTAL, rel=0.01)
        assert "0.6 of the memory" in rung.said
        assert sum(part.bytes for part in rung.prediction.memory_parts) == pytest.approx(
            0.6 * TOTAL, rel=0.01
        )

    def test_sglangs_share_is_of_what_is_free_and_not_all_that_it_takes(self, sparks, plan, ask):
        rung = choice(plan(sparks(1), ask(MOE, engine_args=["--mem-fraction-static=0.6"])))
        parts = {part.name: part.bytes for part in rung.prediction.memory_parts}
        static = sum(
            parts.get(name, 0)
            for name in ("weights", "KV cache", "KV cache beyond that", "states", "drafter")
        )
        assert 0.5 * TOTAL < static < 0.6 * TOTAL
        assert rung.prediction.memory_bytes_per_rank.mid > static + parts["process"]

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
            "and 0.2 of the memory, as the deployment says, is 24" in reject.reason for reject in one.rejected
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
        fits = told.partition("as the deployment says; ")[2].partition(" would fit")[0]
        again = plan(fleet, ask(MOE, engine="vllm", engine_args=[f"--gpu-memory-utilization={fits}"]))
        assert choice(again).candidate.memory_fraction == float(fits)

    def test_field_report_004(self, sparks, plan, ask):
        args = ["--attention-backend=TRITON_ATTN", "--kv-cache-dtype=fp8", "--gpu-memory-utilization=0.87"]
        spec = ask(
            GPTQ, engine="vllm", parallel={"tp": 2, "ep": 2}, context=32768, concurrency=4, engine_args=args
        )
        rung = choice(plan(sparks(2), spec))
        assert (rung.prediction.verdict, rung.candidate.kv_dtype) == ("tight", "fp8")
        assert rung.said == ("0.87 of the memory", "KV cache in fp8", "attention by TRITON_ATTN")
        assert rung.prediction.memory_bytes_per_rank.mid == pytest.approx(0.87 * TOTAL, rel=0.01)


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
        assert {"context 8192", "concurrency 2"} <= set(rung.said)

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
            ({}, "--max-model-len=many", "'many', which is not a whole number"),
            ({}, "--max-num-seqs=0", "'0', which is not a whole number"),
            ({}, "--tensor-parallel-size=5000", "'5000', which is not a whole number from 1 to 1024"),
            ({}, "--max-model-len=\u0663", "which is not a whole number"),
            ({}, "--gpu-memory-utilization=87", "'87', which is not a share"),
            ({}, "--gpu-memory-utilization=nan", "'nan', which is not a share"),
            ({"speculation": "ngram"}, "--speculative-config={}", "both say how to draft"),
        ],
    )
    def test_contradictions_are_refused_with_what_to_do(self, sparks, plan, ask, fields, arg, told):
        one = refusal(plan(sparks(2), ask(MOE, engine="vllm", engine_args=[arg], **fields)))
        assert told in one.rejected[0].reason
        error = infeasible(one)
        assert told in error.means
        assert error.do.startswith("Nearest: ")

    def test_the_same_twice_is_no_contradiction(self, sparks, plan, ask):
        spec = ask(MOE, engine="vllm", context=8192, engine_args=["--max-model-len=8192"])
        assert choice(plan(sparks(1), spec)).candidate.context == 8192

    def test_weights_of_another_kind(self, sparks, plan, ask):
        one = refusal(plan(sparks(1), ask(MOE, engine="vllm", engine_args=["--quantization=awq_marlin"])))
        assert "reads awq, and the weights are fp8" in one.rejected[0].reason

    def test_drafting_by_its_own_flags_is_left_to_them(self, sparks, plan, ask):
        config = '--speculative-config={"method":"mtp","num_speculative_tokens":1}'
        rungs = ladder(plan(sparks(1), ask(FP8, engine="vllm", engine_args=[config])))
        assert {rung.candidate.speculation.method for rung in rungs} == {"none"}
        assert "drafts as its own flags say, which are not predicted" in rungs[0].said
        assert take_over(ask(FP8).resolved()[0])[0].speculation == SpeculationChoice(method="auto")


class TestWhose:
    @pytest.mark.parametrize(
        ("args", "engine"),
        [
            (["--gpu-memory-utilization=0.6"], "vllm"),
            (["--mem-fraction-static", "0.6"], "sglang"),
            (["--max_num_tokens=4096"], "trtllm"),
            (["--kv-cache-dtype=fp8", "--trust-remote-code"], "vllm"),
        ],
    )
    def test_no_rung_is_another_engines(self, sparks, plan, ask, args, engine):
        found = plan(sparks(1), ask(NVFP4, engine_args=args))
        assert {rung.candidate.engine for rung in ladder(found)} == {engine}
        others = {one.what for one in found.deployments[0].rejected if "in engine_args is for" in one.reason}
        assert others == {"vLLM", "SGLang", "TensorRT-LLM"} - {ENGINE_LABELS[engine]}

    def test_a_flag_that_nobody_knows_needs_its_engine_said(self, sparks, plan, ask):
        args = ["--some-new-flag"]
        rejected = refusal(plan(sparks(1), ask(MOE, engine_args=args))).rejected
        assert {one.what for one in rejected if "say it with `engine`" in one.reason} == {"vLLM", "SGLang"}
        assert choice(
            plan(sparks(1), ask(MOE, engine="vllm", engine_args=args))
        ).candidate.engine_args == tuple(args)

    def test_another_engines_flag_is_refused_where_the_engine_is_said(self, sparks, plan, ask):
        one = refusal(plan(sparks(1), ask(MOE, engine="vllm", engine_args=["--mem-fraction-static=0.8"])))
        assert any(
            reject.reason == "--mem-fraction-static in engine_args is for SGLang" for reject in one.rejected
        )

    def test_what_both_have_leaves_both(self):
        for engine in ("vllm", "sglang"):
            assert foreign(("--trust-remote-code",), engine, alone=False) == ""
        assert foreign((), "trtllm", alone=False) == ""

    @pytest.mark.parametrize("engine", KNOWN)
    def test_the_table_is_what_the_parsers_say(self, engine):
        assert not KNOWN[engine] - options(engine)
        for other in set(KNOWN) - {engine}:
            assert not (KNOWN[engine] - KNOWN[other]) & options(other), f"{other} has them too"


def test_what_is_said_in_words():
    args = (
        "--gpu-memory-utilization=0.87",
        "--max-num-batched-tokens=2048",
        "--tp-size",
        "2",
        "--unheard-of",
    )
    assert in_words(args) == ("0.87 of the memory", "prefill 2048 tokens at a time", "TP=2")
    assert share_said(args, "vllm") == 0.87
    assert share_said(args, "sglang") is None
    assert not set(SIZES) & set(DEGREES)
