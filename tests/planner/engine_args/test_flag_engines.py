"""A flag that one engine has excludes the other engines."""

import json
from pathlib import Path

import pytest
from planning_values import MOE, NVFP4, choice, ladder, refusal

import sparkfleet
from sparkfleet.planner.engine_args.flag_engines import KNOWN, foreign
from sparkfleet.planner.types.plan import ENGINE_LABELS

FLAGS = Path(sparkfleet.__file__).parent / "knowledge" / "engines" / "engine_flags"


def options(engine):
    """Flags of every release of an engine that is known."""
    files = [json.loads(file.read_text()) for file in FLAGS.glob(f"{engine}-*.json")]
    assert files
    return {name.replace("_", "-") for file in files for name in file["options"]}


class TestWhose:
    @pytest.mark.parametrize(
        ("args", "engine"),
        [
            (["--gpu-memory-utilization=0.6"], "vllm"),
            (["--mem-fraction-static", "0.6"], "sglang"),
            (["--max_num_tokens=4096"], "trtllm"),
            (["--kv-cache-dtype=fp8", "--tokenizer-mode=auto"], "vllm"),
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
        assert {one.what for one in rejected if "set `engine`" in one.reason} == {"vLLM", "SGLang"}
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
