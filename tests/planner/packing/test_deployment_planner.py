"""One deployment: its settings, and the rules on them."""

import re

import pytest
from planning_values import choice

from sparkfleet.checkpoints.io.licenses import License
from sparkfleet.hostfacts.node import Gpu
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet

FP8 = "Qwen/Qwen3.6-27B-FP8"

SMALL = "Qwen/Qwen3-30B-A3B-FP8"

LARGE = "Qwen/Qwen3-235B-A22B-GPTQ-Int4"

SUPER = "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"

MODELS = (FP8, SMALL, "openai/gpt-oss-120b", "nvidia/Qwen3.6-27B-NVFP4", LARGE)


class TestWishes:
    """Settings of the deployment are obeyed, or refused with the reason."""

    def test_a_pinned_shape(self, sparks, plan, ask):
        shape = choice(plan(sparks(2), ask(parallel={"tp": 2}))).candidate.shape
        assert (shape.tp, len(shape.nodes)) == (2, 2)

    def test_a_pinned_shape_that_is_not_there(self, sparks, plan, ask):
        (refusal,) = plan(sparks(1), ask(parallel={"tp": 2})).refused
        assert "needs 2 linked nodes" in refusal.rejected[-1].reason

    def test_pinned_nodes(self, sparks, plan, ask):
        assert choice(plan(sparks(8, switch=True), ask(nodes=["spark5"]))).candidate.shape.nodes == (
            "spark5",
        )

    def test_a_variant_that_has_no_room_is_named_where_it_cannot_be_missed(self, sparks, plan, ask):
        spec = ask(
            None, variants=[{"model": "openai/gpt-oss-120b"}, {"model": "nvidia/Llama-3.3-70B-Instruct-FP4"}]
        )
        (made,) = plan(sparks(1), spec).deployments
        assert len(made.groups) == 1
        assert [one.model for one in made.left_out] == ["nvidia/Llama-3.3-70B-Instruct-FP4"]

    def test_memory_is_told_by_custom_workloads_only(self, sparks, plan, ask):
        (refusal,) = plan(sparks(2), ask(memory="24 GiB")).refused
        assert refusal.rejected[0].what == "memory"
        assert "only for `engine: custom`" in refusal.rejected[0].reason

    def test_a_node_that_does_not_exist(self, sparks, plan, ask):
        (refusal,) = plan(sparks(2), ask(nodes=["spark2", "spark9"])).refused
        assert "spark9: not in this fleet" in refusal.rejected[0].reason

    def test_a_pinned_engine_and_method(self, sparks, plan, ask):
        rung = choice(plan(sparks(1), ask(engine="vllm", speculation={"method": "mtp", "tokens": 2})))
        assert (rung.candidate.engine, rung.candidate.speculation.tokens) == ("vllm", 2)

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"image": "me/mine:1"}, "to the engine in it"),
            ({"image": "vllm/vllm-openai:v0.27.1", "engine": "sglang"}, "contains another engine"),
            ({"engine": "trtllm", "model": "Qwen/Qwen3-30B-A3B-FP8"}, "no known image serves"),
        ],
    )
    def test_images_and_engines_that_do_not_go_together(self, sparks, plan, ask, fields, reason):
        (refusal,) = plan(sparks(1), ask(**fields)).refused
        assert any(reason in one.reason for one in refusal.rejected)

    def test_arguments_and_environment_are_kept(self, sparks, plan, ask):
        spec = ask(engine="vllm", engine_args=["--enforce-eager"], env={"MINE": "1"})
        candidate = choice(plan(sparks(1), spec)).candidate
        assert candidate.engine_args[0] == "--enforce-eager"
        assert ("MINE", "1") in candidate.env

    def test_pinned_context_and_concurrency_are_never_shrunk(self, sparks, plan, ask):
        found = plan(sparks(1), ask(LARGE, context=32768, concurrency=4))
        assert not found.deployments
        rung = choice(plan(sparks(1), ask(SMALL, context=40960, concurrency=7)))
        assert (rung.candidate.context, rung.candidate.concurrency) == (40960, 7)

    def test_a_context_beyond_the_model(self, sparks, plan, ask):
        (refusal,) = plan(sparks(1), ask(SMALL, context=500_000)).refused
        assert "supports at most 40960 tokens" in refusal.rejected[0].reason

    def test_vision_by_the_weight_map(self, sparks, plan, ask):
        blind = "rdtand/Qwen3.6-35B-A3B-PrismaQuant-4.75bit-vllm"
        (refusal,) = plan(sparks(1), ask(blind, needs=["vision"])).refused
        assert "no vision tower" in refusal.rejected[0].reason
        assert plan(
            sparks(1), ask("Intel/Qwen3.6-35B-A3B-int4-mixed-AutoRound", needs=["vision"])
        ).deployments

    @pytest.mark.parametrize(("license_", "served"), [("apache-2.0", True), ("llama3.3", False), ("", False)])
    def test_open_licenses_only(self, sparks, ask, license_, served):
        kind = {"apache-2.0": "open-source", "": "unknown"}.get(license_, "other")
        checkpoint = known_checkpoint(SMALL).model_copy(update={"license": License(id=license_, kind=kind)})
        found = plan_fleet([ask(SMALL, license="open")], sparks(1), {SMALL: checkpoint})
        assert bool(found.deployments) is served

    def test_limits_of_rules_against_pinned_numbers(self, sparks, plan, ask):
        spec = ask("olka-fi/MiniMax-M2.7-MXFP4", engine="vllm", parallel={"tp": 2}, context=100_000, concurrency=10,
                   image="ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest")  # fmt: skip
        (refusal,) = plan(sparks(2), spec).refused
        assert any(one.rule == "m27-c10-100k-oom" for one in refusal.rejected) or any(
            one.why == "memory" for one in refusal.rejected
        )

    def test_limits_of_rules_against_pinned_arguments(self, sparks, plan, ask):
        spec = ask(FP8, engine="vllm", engine_args=["--gpu-memory-utilization=0.95"])
        (refusal,) = plan(sparks(1), spec).refused
        against = next(one for one in refusal.rejected if one.rule == "xid43-util")
        assert "memory fraction 0.95 is set, at most 0.87 works" in against.reason

    def test_a_fraction_that_a_rule_limits_is_room_that_is_not_there(self, sparks, plan, ask):
        spec = ask(
            "nvidia/Qwen3.5-397B-A17B-NVFP4", engine="vllm", context=8192, concurrency=1, speculation="none"
        )
        rung = choice(plan(sparks(2), spec))
        total, needs = 130.6e9, rung.prediction.memory_bytes_per_rank
        assert rung.prediction.verdict == "tight"
        assert needs.low <= rung.candidate.memory_fraction * total + 1e9

    def test_prompts_that_a_rule_limits_are_told(self, sparks, plan, ask):
        spec = ask("nvidia/Qwen3-235B-A22B-FP4", engine="trtllm", context=2048, concurrency=1, parallel={"tp": 2},
                   speculation={"method": "eagle3", "draft": "nvidia/Qwen3-235B-A22B-Eagle3"})  # fmt: skip
        rung = choice(plan(sparks(2), spec))
        assert "takes prompts of at most 1024 tokens (trtllm-eagle3-1024-tokens)" in rung.notes
        assert rung.candidate.batch_tokens == 1024

    @pytest.mark.parametrize(
        ("model", "fields", "told"),
        [
            (SMALL, {"engine": "vllm"}, 8192),
            (SMALL, {"engine": "vllm", "context": 2048, "concurrency": 1}, 2048),
            (SMALL, {"engine": "vllm", "engine_args": ["--max-num-batched-tokens=2048"]}, None),
            (SMALL, {"engine": "vllm", "engine_args": ["--no-enable-chunked-prefill"]}, None),
            (SMALL, {"engine": "sglang"}, None),
            (SUPER, {"engine": "vllm", "engine_args": ["--kv-cache-dtype=fp8"]}, 16_384),
            (SUPER, {"engine": "vllm", "engine_args": ["--kv-cache-dtype=bfloat16"]}, 8192),
        ],
    )
    def test_how_much_is_prefilled_at_a_time_is_not_left_to_vllm(
        self, sparks, plan, ask, model, fields, told
    ):
        rung = choice(plan(sparks(1), ask(model, speculation="none", **fields)))
        assert rung.candidate.batch_tokens == told

    def test_whole_prompts_are_counted_as_such(self, sparks, plan, ask):
        chunks, whole = (
            choice(
                plan(
                    sparks(1), ask(SMALL, engine="vllm", speculation="none", context=32_768, engine_args=args)
                )
            )
            for args in ([], ["--no-enable-chunked-prefill"])
        )
        parts = [
            next(part.bytes for part in one.prediction.memory_parts if part.name == "activations")
            for one in (chunks, whole)
        ]
        assert 3 < parts[1] / parts[0] < 4  # 32,768 tokens for 8192, beside the logits

    def test_what_is_said_of_a_step_in_thousands_is_held_against_a_limit(self, sparks, plan, ask):
        spec = ask("nvidia/DeepSeek-V4-Flash-0731-NVFP4", engine="vllm", context=131_072, concurrency=1,
                   speculation="none", parallel={"tp": 2},
                   engine_args=["--max-num-batched-tokens=16k", "--gpu-memory-utilization=0.8"])  # fmt: skip
        (refusal,) = plan(sparks(2), spec).refused
        assert any("batch tokens 16000 is set, at most 2048 works" in one.reason for one in refusal.rejected)

    def test_a_limit_that_nobody_pinned_is_kept(self, sparks, plan, ask):
        spec = ask("nvidia/Qwen3-235B-A22B-FP4", engine="trtllm", parallel={"tp": 2},
                   speculation={"method": "eagle3", "draft": "nvidia/Qwen3-235B-A22B-Eagle3"})  # fmt: skip
        assert choice(plan(sparks(2), spec)).candidate.concurrency == 1

    def test_an_unknown_checkpoint(self, sparks, ask):
        (refusal,) = plan_fleet([ask("nobody/knows")], sparks(1)).refused
        assert "unknown checkpoint" in refusal.rejected[0].reason
        assert refusal.model == "nobody/knows"

    def test_heads_that_do_not_divide_are_refused_unless_the_image_pads_them(self, sparks, plan, ask):
        model, three = "MiniMaxAI/MiniMax-M2.7", {"tp": 3}
        refused = plan(sparks(3, switch=True), ask(model, parallel=three)).refused[0]
        assert "tp-needs-power-of-two" in {one.rule for one in refused.rejected}
        padded = ask(model, parallel=three, engine="vllm", image="org/dsv4-3spark:1")
        assert choice(plan(sparks(3, switch=True), padded)).candidate.shape.tp == 3


class TestRules:
    def test_what_a_rule_requires_is_in_the_candidate(self, sparks, plan, ask):
        spec = ask("openai/gpt-oss-120b", engine="trtllm")
        rung = choice(plan(sparks(1), spec))
        assert dict(rung.candidate.env)["TRITON_PTXAS_PATH"]
        assert "trtllm-ptxas-path" in rung.rules

    def test_two_ranks_do_not_autotune_on_a_release_that_hangs_with_a_kept_cache(self, sparks, plan, ask):
        pinned = {"engine": "vllm", "image": "vllm/vllm-openai:v0.31.0-aarch64"}
        for ranks in (1, 2):
            rung = choice(plan(sparks(2), ask("openai/gpt-oss-120b", parallel={"tp": ranks}, **pinned)))
            assert ("--no-enable-flashinfer-autotune" in rung.candidate.engine_args) == (ranks == 2)
            assert ("autotune-cache-deadlock" in rung.rules) == (ranks == 2)
            assert not any("autotune" in note for note in rung.notes)

    @pytest.mark.parametrize(
        ("model", "nodes"),
        [("local-inference-lab/Qwen3.8-Flash-Next-NVFP4", 2), ("deepseek-ai/DeepSeek-V4.1-Flash", 4)],
    )
    def test_no_note_contradicts_the_flags_and_the_image_of_the_plan(self, sparks, plan, ask, model, nodes):
        rung = choice(plan(sparks(nodes, switch=nodes > 2), ask(model)))
        assert "b12x" in (rung.candidate.image or "")
        assert re.search(r"--gdn-decode-kernel|--engram-config", " ".join(rung.candidate.engine_args))
        notes = " ".join(rung.notes)
        assert "is no flag of" not in notes
        assert "vLLM 0.11 and 0.12" not in notes

    def test_a_flag_of_the_deployment_that_no_release_has_is_noted(self, sparks, plan, ask):
        spec = ask(
            "local-inference-lab/Qwen3.8-Flash-Next-NVFP4", engine="vllm", engine_args=["--no-such-flag=1"]
        )
        assert "--no-such-flag is no flag of vLLM" in " ".join(choice(plan(sparks(2), spec)).notes)

    @pytest.mark.parametrize("content", ["agent", "edits"])
    def test_an_agent_gets_drafts_that_keep_the_prefix_cache(self, sparks, plan, ask, content):
        model = "nvidia/Qwen3.5-122B-A10B-NVFP4"
        assert choice(plan(sparks(1), ask(model))).candidate.speculation.method == "dflash"
        found = plan(sparks(1), ask(model, content=content)).deployments[0]
        assert found.groups[0].choice.candidate.speculation.method == "mtp"
        (below,) = [one for one in found.groups[0].ladder if one.candidate.speculation.method == "dflash"]
        only = choice(plan(sparks(1), ask(model, content=content, engine="vllm", speculation="dflash")))
        assert below.repeated_prefill.rule == only.repeated_prefill.rule == "hybrid-dflash-prefix-cache-empty"

    def test_eager_mode_is_predicted_slower(self, sparks, plan, ask):
        image = {
            "engine": "vllm",
            "image": "vllm/vllm-openai:v0.26.0",
            "speculation": "none",
            "parallel": {"tp": 2},
        }
        eager = choice(plan(sparks(2), ask("nvidia/Qwen3.6-27B-NVFP4", **image)))
        assert "--enforce-eager" in eager.candidate.engine_args
        assert {"cross-node-graph-capture-ima", "tp2-gdn-wrong-output"} & set(eager.rules)

    def test_rejections_carry_rule_and_source(self, sparks, plan, ask):
        spec = ask("nvidia/Qwen3.6-27B-NVFP4", engine="vllm", image="vllm/vllm-openai:v0.12.0-aarch64")
        (refusal,) = plan(sparks(1), spec).refused
        assert "fp4-cutlass-gemm-runner-sm120" in {one.rule for one in refusal.rejected}
        assert all(one.source for one in refusal.rejected if one.rule)

    def test_what_a_pull_would_give_is_judged(self, sparks, plan, ask):
        """The re-tagged image is rejected with NEXTN, and another that runs what was published is taken."""
        found = plan(sparks(1), ask(FP8)).deployments[0]
        candidate = found.groups[0].choice.candidate
        assert (candidate.engine, candidate.speculation.method) == ("sglang", "nextn")
        assert candidate.engine_version != "0.5.12 re-tag"
        retag = [one for one in found.rejected if "0.5.12 re-tag" in one.what]
        assert {"sglang-eagle-prealloc-oom"} <= {one.rule for one in retag}
        assert found.rejected[0].why == "rule", "what a rule rejects is told first"
        only = plan(sparks(1), ask(FP8, engine="sglang", speculation="ngram")).deployments[0]
        assert only.groups[0].choice.candidate.engine_version == "0.5.12 re-tag"

    def test_the_ladder_ends_with_plain_decoding(self, sparks, plan, ask):
        for model in MODELS[:4]:
            ladder = plan(sparks(1), ask(model)).deployments[0].groups[0].ladder
            assert any(rung.candidate.speculation.method == "none" for rung in ladder), model
            assert len({str(rung.candidate) for rung in ladder}) == len(ladder)
            assert {rung.candidate.shape.nodes for rung in ladder} == {("spark1",)}


class TestOtherGpus:
    """Nothing is predicted of another GPU than a GB10."""

    @pytest.fixture
    def other(self, spark):
        def other(name, gpu):
            return spark(name).model_copy(update={"gpu": Gpu(name=gpu, driver="616.00")})

        return other

    def test_a_node_with_another_gpu_is_left_out(self, spark, other, plan, ask):
        fleet = Fleet(nodes=(other("n1", "NVIDIA RTX Spark N1X"), spark("n2")))
        found = plan(fleet, ask(replicas=2)).deployments[0]
        assert {group.choice.candidate.shape.nodes for group in found.groups} == {("n2",)}

    @pytest.mark.parametrize("gpu", ["NVIDIA RTX Spark N1X", "NVIDIA GeForce RTX 5090"])
    def test_a_fleet_without_a_spark_is_refused(self, other, plan, ask, gpu):
        refused = plan(Fleet(nodes=(other("n1", gpu),)), ask()).refused[0]
        (why,) = refused.rejected
        assert "no node has the GPU of a DGX Spark, a GB10" in why.reason
        assert "`external`" in why.reason

    def test_a_deployment_that_names_such_a_node_is_refused(self, spark, other, plan, ask):
        fleet = Fleet(nodes=(other("n1", "NVIDIA RTX Spark N1X"), spark("n2")))
        refused = plan(fleet, ask(nodes=["n1"])).refused[0]
        assert "none of the nodes n1 has the GPU of a Spark" in refused.rejected[0].reason

    def test_a_custom_workload_runs_there(self, other, plan, ask):
        fleet = Fleet(nodes=(other("n1", "NVIDIA RTX Spark N1X"),))
        custom = ask("/srv/x", engine="custom", image="i@sha256:" + "0" * 64, memory="10 GiB", port=9000)
        (group,) = plan(fleet, custom).deployments[0].groups
        assert group.choice.candidate.shape.nodes == ("n1",)


def test_a_split_that_cannot_be_served_names_the_one_that_can(sparks, plan, ask):
    """It had nothing but `needs 3 linked nodes; 2 available`."""
    three = ask("Qwen/Qwen3.6-27B-FP8", parallel={"tp": 3})
    (refused,) = plan(sparks(2), three).refused
    assert refused.nearest == ("fits without `parallel`, as TP=2",)
    other = ask("openai/gpt-oss-120b", "other", parallel={"tp": 2})
    assert [one.name for one in plan(sparks(2), three, other).deployments] == ["other"], (
        "its trial holds no memory"
    )
