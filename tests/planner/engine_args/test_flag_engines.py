"""A flag that one engine has excludes the other engines."""

import pytest
from planning_values import MOE, NVFP4, choice, ladder, refusal

from sparkfleet.knowledge.engines.engine_flags import flag_faults, may_have_others
from sparkfleet.planner.capacity.sizing import BATCH_FLAGS
from sparkfleet.planner.engine_args.engine_args import COUNTS, EAGER_FLAGS, KV_FLAG, MEMORY_FLAGS, WHOLE
from sparkfleet.planner.engine_args.flag_engines import foreign
from sparkfleet.planner.engine_args.reserved_flags import OURS
from sparkfleet.planner.types.plan import ENGINE_LABELS
from sparkfleet.specs.flag_fields import DEGREES, SIZES


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

    @pytest.mark.parametrize(
        ("flag", "meant"),
        [
            ("--max-modl-len=4096", "`context: …`, which is --max-model-len"),
            ("--tensor-paralel-size=2", "`parallel: {tp: …}`, which is --tensor-parallel-size"),
            ("--enable-prefix-cachin", "--enable-prefix-caching"),
        ],
    )
    def test_a_misspelt_flag_names_the_one_that_is_meant(self, flag, meant):
        reason = foreign((flag,), "vllm", alone=False)
        assert f"(engine_args): did you mean {meant}? If it is a new one: set `engine`" in reason

    def test_another_engines_flag_is_refused_where_the_engine_is_said(self, sparks, plan, ask):
        one = refusal(plan(sparks(1), ask(MOE, engine="vllm", engine_args=["--mem-fraction-static=0.8"])))
        assert any(
            reject.reason == "--mem-fraction-static in engine_args is for SGLang" for reject in one.rejected
        )

    def test_what_both_have_leaves_both(self):
        for engine in ("vllm", "sglang"):
            assert foreign(("--trust-remote-code",), engine, alone=False) == ""
        assert foreign((), "trtllm", alone=False) == ""

    def test_a_flag_that_was_renamed_is_its_engines_by_both_names(self):
        """SGLang 0.5.12 has the first, 0.5.23 the second: that one was of no known engine."""
        for flag in ("--cuda-graph-max-bs=4", "--cuda-graph-max-bs-decode=4", "--cuda-graph-config.max=4"):
            assert foreign((flag,), "sglang", alone=False) == ""
            assert foreign((flag,), "vllm", alone=False).endswith("in engine_args is for SGLang")

    def test_a_release_that_came_later_may_have_taken_over_anothers_flag(self, sparks, plan, ask):
        """vLLM had --mamba-backend after SGLang."""
        args = ["--mem-fraction-static=0.8"]
        later = ask(MOE, engine="vllm", image="vllm/vllm-openai:v0.99.0", engine_args=args)
        assert choice(plan(sparks(1), later)).candidate.engine_args == tuple(args)
        known = ask(MOE, engine="vllm", image="vllm/vllm-openai:v0.32.0", engine_args=args)
        assert "is for SGLang" in refusal(plan(sparks(1), known)).rejected[0].reason


READ = {*SIZES, *DEGREES, *COUNTS, *OURS, KV_FLAG, WHOLE}.union(
    *(one.values() for one in (MEMORY_FLAGS, EAGER_FLAGS, BATCH_FLAGS))
)
NEWEST = {"vllm": "0.32.0", "sglang": "0.5.23", "trtllm": "1.3.0rc12"}


@pytest.mark.parametrize("flag", sorted(one for one in READ if one.startswith("--")))
def test_a_flag_that_is_read_is_one_of_the_newest_releases(flag):
    """One that a new release has renamed is read nowhere: it needs both names. Those that are written: test_flags.py."""
    assert any(flag_faults(engine, NEWEST[engine], {flag: ""}) == () for engine in NEWEST)


def test_the_newest_releases_are_those_of_the_tables():
    assert {engine: may_have_others(engine, version) for engine, version in NEWEST.items()} == dict.fromkeys(
        NEWEST, False
    )
    later = {"vllm": "0.33.0", "sglang": "0.5.24", "trtllm": "1.3.0"}
    assert all(may_have_others(engine, version) for engine, version in later.items())
