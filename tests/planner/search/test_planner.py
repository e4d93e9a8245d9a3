import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planning_values import plan_on

from sparkfleet.checkpoints.io.licenses import License
from sparkfleet.knowledge.engines.advisories import advisories_of
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.predictor import predictor_of
from sparkfleet.planner.search.evaluate import Evaluation
from sparkfleet.planner.search.planner import infeasible, plan_fleet
from sparkfleet.planner.search.rung_builder import without_advisory_first
from sparkfleet.planner.types.plan import PublishedRuns

FP8 = "Qwen/Qwen3.6-27B-FP8"
SMALL = "Qwen/Qwen3-30B-A3B-FP8"
LARGE = "Qwen/Qwen3-235B-A22B-GPTQ-Int4"
HALF = 64_000_000_000
SUPER = "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"
MODELS = (FP8, SMALL, "openai/gpt-oss-120b", "nvidia/Qwen3.6-27B-NVFP4", LARGE)


def choice(plan, at=0):
    return plan.deployments[0].groups[at].choice


class TestReasons:
    """Reasons for the place of a rung."""

    def test_a_rung_that_promises_more_than_the_choice_says_why_it_is_below(self, sparks, plan, ask):
        """TensorRT-LLM promises more than vLLM, and nobody has published it for models of this shape."""
        spec = ask("stepfun-ai/Step-3.7-Flash-NVFP4", speculation="none")
        first, *rest = plan(sparks(2), spec).deployments[0].groups[0].ladder
        promised = first.prediction.decode_tps_per_request.mid
        more = [rung for rung in rest if rung.prediction.decode_tps_per_request.mid > promised]
        assert more
        most = max(more, key=lambda rung: rung.prediction.decode_tps_per_request.mid)
        assert f"; {most.candidate.how} is predicted faster (" in first.reason
        said = [
            rung
            for rung in rest
            if rung.reason.endswith("predicted faster than the choice, but fewer published measurements")
        ]
        assert said == more

    def test_a_rung_that_a_rule_ranks_lower_names_the_rule(self, sparks, plan, ask):
        """It was "fewer published measurements", which was not the cause."""
        spec = ask("nvidia/Qwen3.8-27B-NVFP4", content="agent", engine="vllm")
        first, *rest = plan(sparks(1), spec).deployments[0].groups[0].ladder
        assert any("DFLASH" in rung.candidate.how for rung in (first, *rest))
        for rung in rest:
            if "DFLASH" in rung.candidate.how and "predicted faster" in rung.reason:
                assert "`sparkfleet explain agent-prefix-cache-" in rung.reason
                break
        else:
            raise AssertionError([rung.reason for rung in rest])


class TestThroughput:
    """The choice for many clients is the highest total of what fits, at the concurrency that fits."""

    @pytest.mark.parametrize(
        "model",
        [SUPER, "google/gemma-4-31B-it", "Qwen/Qwen3-32B", "nvidia/Llama-3.3-70B-Instruct-FP4"],
    )
    def test_the_choice_has_the_highest_total_of_what_fits(self, sparks, plan, ask, model):
        def total_of(rung):
            return rung.prediction.decode_tps_aggregate.mid

        first, *rest = plan(sparks(1), ask(model, objective="throughput")).deployments[0].groups[0].ladder
        assert first.candidate.concurrency > 1
        assert first.worth == max(rung.worth for rung in (first, *rest))
        more = [rung for rung in rest if total_of(rung) > 1.005 * total_of(first)]
        for rung in more:
            assert "; predicted faster than the choice, but fewer published measurements" in rung.reason
        if more:
            most = max(more, key=total_of)
            speed = f"{total_of(most):.3g} tok/s shared by {most.candidate.concurrency}"
            assert f"; {most.candidate.how} is predicted faster ({speed}) but ranked lower: " in first.reason

    def test_a_rung_that_promises_more_together_is_among_them(self, sparks, plan, ask):
        (made,) = plan(sparks(1), ask("google/gemma-4-31B-it", objective="throughput")).deployments
        assert "is predicted faster" in made.groups[0].choice.reason

    @pytest.mark.parametrize("model", ["nvidia/Gemma-4-31B-IT-NVFP4", "nvidia/Qwen3.6-27B-NVFP4"])
    def test_no_rung_is_called_faster_that_has_the_same_rate(self, sparks, plan, ask, model):
        ladder = plan(sparks(1), ask(model)).deployments[0].groups[0].ladder
        speed = ladder[0].speed("interactive")
        assert f"is predicted faster ({speed})" not in ladder[0].reason
        same = [rung for rung in ladder[1:] if rung.speed("interactive") == speed]
        assert not [rung for rung in same if "predicted faster" in rung.reason]

    def test_of_two_that_nobody_ran_the_reason_is_other_models(self, sparks, plan, ask):
        found = choice(plan(sparks(1), ask("openai/gpt-oss-20b")))
        assert found.published.rows == 0
        assert "ranked lower: fewer published measurements of it with other models" in found.reason

    def test_requests_are_fewer_by_a_quarter_before_they_are_halved(self, sparks, plan, ask):
        """With three drafts a step the KV cache of 16 is tight, and that of 12 is not: of 8 it was slower than no drafts."""
        found = choice(plan(sparks(1), ask(SUPER, objective="throughput")))
        assert (str(found.candidate.speculation), found.candidate.concurrency) == ("MTP k=3", 12)
        bare = choice(plan(sparks(1), ask(SUPER, objective="throughput", speculation="none")))
        assert found.prediction.decode_tps_aggregate.mid > bare.prediction.decode_tps_aggregate.mid


class TestAdvisories:
    """A release with a published security advisory leads only if it is faster by more than two boots differ by."""

    @pytest.mark.parametrize("objective", ["interactive", "throughput"])
    def test_the_release_without_one_leads_if_the_two_are_about_equal(self, sparks, plan, ask, objective):
        spec = ask("meta-llama/Llama-3.1-8B-Instruct-FP8", objective=objective)
        first, second, *_ = plan(sparks(1), spec).deployments[0].groups[0].ladder
        assert first.worth < second.worth < 1.15 * first.worth
        assert first.candidate.engine_version
        assert not advisories_of(first.candidate.engine, first.candidate.engine_version)
        assert advisories_of(second.candidate.engine, second.candidate.engine_version)
        assert f"{second.candidate.how} " in first.reason
        assert "`sparkfleet explain security-advisory`" in first.reason
        assert "`sparkfleet explain security-advisory`" in second.reason

    def test_one_that_is_clearly_faster_leads(self, with_advisory, without):
        assert _order(with_advisory, without._replace(worth=with_advisory.worth / 1.14)) == [1, 0]
        assert _order(with_advisory, without._replace(worth=with_advisory.worth / 1.16)) == [0, 1]

    def test_a_release_that_nobody_ran_does_not_lead(self, with_advisory, without):
        assert _order(with_advisory, _with_rung(without, published=PublishedRuns())) == [0, 1]

    def test_a_version_that_is_not_known_does_not_lead(self, with_advisory, without):
        """No advisory is known of it because nothing is."""
        nameless = without.rung.candidate.model_copy(update={"engine_version": ""})
        assert _order(with_advisory, _with_rung(without, candidate=nameless)) == [0, 1]

    def test_drafts_that_may_not_lead_do_not(self, with_advisory, without):
        assert without_advisory_first([with_advisory, without], lambda _: False)[0] is with_advisory

    @pytest.fixture
    def with_advisory(self, sparks, plan, ask):
        spec = ask("meta-llama/Llama-3.1-8B-Instruct-FP8", engine="sglang")
        rung = choice(plan(sparks(1), spec))
        assert advisories_of(rung.candidate.engine, rung.candidate.engine_version)
        return Evaluation(None, rung, rung.worth)

    @pytest.fixture
    def without(self, sparks, plan, ask):
        rung = choice(plan(sparks(1), ask("meta-llama/Llama-3.1-8B-Instruct-FP8", engine="vllm")))
        return Evaluation(None, rung, rung.worth)


def _with_rung(judged, **update):
    return judged._replace(rung=judged.rung.model_copy(update=update))


def _order(*ladder):
    """The places that the rungs had, in their new order."""
    return [ladder.index(one) for one in without_advisory_first(list(ladder), lambda _: True)]


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
        assert "nobody/knows" in str(infeasible(refusal))

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
        lost = {one.rule for one in found.rejected if "DFLASH" in one.what}
        below = [note for rung in found.groups[0].ladder[1:] for note in rung.notes]
        assert "agent-prefix-cache-empty" in lost or any("agent-prefix-cache-empty" in note for note in below)
        only = choice(plan(sparks(1), ask(model, content=content, engine="vllm", speculation="dflash")))
        assert any("agent-prefix-cache-empty" in note for note in only.notes)

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


class TestObjectives:
    def test_throughput_takes_replicas_where_they_yield_more_than_one_wide_group(self, sparks, plan, ask):
        found = plan(sparks(2), ask(SMALL, objective="throughput", concurrency=64)).deployments[0]
        assert len(found.groups) == 2
        assert all(group.choice.candidate.shape.ranks == 1 for group in found.groups)
        assert {group.choice.candidate.shape.nodes for group in found.groups} == {("spark1",), ("spark2",)}

    def test_requests_are_distributed_evenly_so_no_node_is_left_idle(self, sparks, plan, ask):
        """Seven groups have three requests or two, not three each: eight with two are faster."""
        asked = ask("openai/gpt-oss-120b", objective="throughput", concurrency=16)
        assert len(plan(sparks(8, switch=True), asked).deployments[0].groups) == 8

    def test_an_open_load_follows_the_nodes(self, sparks, plan, ask):
        """Each of four Sparks does what one alone would; a group over two has the requests of both."""
        one, four = (
            plan(sparks(count, switch=True), ask(FP8, objective="throughput")).deployments[0].groups
            for count in (1, 4)
        )
        assert len(four) == 4
        assert {group.choice.candidate.how for group in four} == {one[0].choice.candidate.how}
        wide = choice(plan(sparks(2), ask("stepfun-ai/Step-3.7-Flash-NVFP4", objective="throughput")))
        assert (wide.candidate.shape.tp, wide.candidate.concurrency) == (2, 32)
        assert "ranked for 16 requests at once per Spark: `concurrency: N` for N in all" in wide.reason

    def test_a_load_that_is_set_is_that_of_all_nodes_together(self, sparks, plan, ask):
        found = plan(sparks(4, switch=True), ask(FP8, objective="throughput", concurrency=16)).deployments[0]
        assert [group.choice.candidate.shape.tp for group in found.groups] == [4]
        assert "requests at once" not in found.groups[0].choice.reason
        assert any("for 16 requests together against" in one.reason for one in found.rejected)

    def test_context_takes_the_longest_that_fits(self, sparks, plan, ask):
        rung = choice(plan(sparks(1), ask(FP8, objective="context")))
        assert rung.candidate.context == 262_144

    def test_interactive_makes_one_group(self, sparks, plan, ask):
        assert len(plan(sparks(8, switch=True), ask(SMALL)).deployments[0].groups) == 1

    def test_asked_for_replicas(self, sparks, plan, ask):
        found = plan(sparks(8, switch=True), ask(SMALL, replicas=3)).deployments[0]
        assert len({group.choice.candidate.shape.nodes for group in found.groups}) == 3

    def test_more_replicas_than_there_is_room(self, sparks, plan, ask):
        found = plan(sparks(2), ask(LARGE, replicas=2), ask(SMALL, "small"))
        refused = found.refused[0]
        assert any("replica 2" in one.what for one in refused.rejected)
        assert refused.nearest == ("fits with `replicas: 1`", "fits on two linked nodes per replica")
        assert found.of("small"), "what was not placed takes no room"
        assert all(name == "small" for node in found.nodes for name, _ in node.placed)


class TestTogether:
    def test_unlike_deployments_get_nodes_of_their_own(self, sparks, plan, ask):
        found = plan(sparks(2), ask(FP8, "a"), ask(SMALL, "b"))
        assert {choice(found).candidate.shape.nodes for _ in "a"} != {
            found.of("b").groups[0].choice.candidate.shape.nodes
        }

    def test_the_large_one_is_placed_first(self, sparks, plan, ask):
        found = plan(sparks(3, switch=True), ask(SMALL, "small"), ask(LARGE, "large", parallel={"tp": 2}))
        large, small = found.of("large"), found.of("small")
        assert not set(large.groups[0].choice.candidate.shape.nodes) & set(
            small.groups[0].choice.candidate.shape.nodes
        )

    def test_a_pinned_one_keeps_its_node(self, sparks, plan, ask):
        found = plan(sparks(2), ask("openai/gpt-oss-120b", "big"), ask(SMALL, "here", nodes=["spark1"]))
        assert found.of("here").groups[0].choice.candidate.shape.nodes == ("spark1",)
        assert found.of("big").groups[0].choice.candidate.shape.nodes == ("spark2",)

    def test_sharing_a_node_is_told(self, sparks, plan, ask):
        found = plan(sparks(1), ask(FP8, "a"), ask(SMALL, "b"))
        notes = [note for one in found.deployments for note in one.groups[0].choice.notes]
        assert any("shares memory bandwidth with" in note for note in notes)

    def test_what_does_not_fit_beside_the_others_is_refused(self, sparks, plan, ask):
        specs = [ask("openai/gpt-oss-120b", f"m{n}", context=32768, concurrency=8) for n in range(3)]
        found = plan(sparks(1), *specs)
        assert len(found.deployments) == 1
        assert {refusal.rejected[-1].why for refusal in found.refused} <= {"memory", "engine"}

    def test_custom_workloads_are_counted(self, sparks, plan, ask):
        tts = ask("org/tts", "tts", engine="custom", image="localhost/tts:1", port=5005, memory="24 GiB")
        found = plan(sparks(1), tts, ask(SMALL, "lm"))
        (load,) = found.nodes
        assert dict(load.placed)["tts"] == 24 << 30
        rung = found.of("tts").groups[0].choice
        candidate = rung.candidate
        assert (candidate.engine, candidate.port, candidate.health) == ("custom", 5005, "/health")
        assert "hangs after the start are not detected" in rung.reason
        huge = ask("org/tts", "tts", engine="custom", image="localhost/tts:1", port=5005, memory="200 GiB")
        (refused,) = plan(sparks(1), huge).refused
        assert "200 GiB declared" in refused.rejected[0].reason
        assert not refused.nearest

    def test_a_custom_workload_that_says_where_it_is_well_is_asked_there(self, sparks, plan, ask):
        image = "localhost/tts:1"
        tts = ask("org/tts", "tts", engine="custom", image=image, port=5005, memory="24 GiB", health="/well")
        rung = plan(sparks(1), tts).of("tts").groups[0].choice
        assert (rung.candidate.health, rung.reason) == ("/well", "set in the deployment")

    def test_a_custom_workload_without_room_beside_others_would_fit_on_a_node_of_its_own(
        self, sparks, plan, ask
    ):
        tts = ask("org/tts", "tts", engine="custom", image="localhost/tts:1", port=5005, memory="24 GiB")
        full = {"engine_args": ["--gpu-memory-utilization=0.85"], "engine": "vllm", "nodes": ["spark1"]}
        (refused,) = plan(sparks(1), tts, ask(SMALL, "lm", **full)).refused
        assert (refused.name, refused.nearest) == ("tts", ("fits with one more node",))

    def test_running_groups_stay_where_they_are(self, sparks, plan, ask):
        fleet = sparks(4, switch=True)
        spec = ask(SMALL, "b")
        first = plan(fleet, spec, ask(FP8, "a", nodes=["spark1"]))
        again = plan(fleet, spec, running={"b": first.of("b")})
        assert (
            again.of("b").groups[0].choice.candidate.shape == first.of("b").groups[0].choice.candidate.shape
        )

    @pytest.mark.parametrize(
        ("seen", "declared", "known"),
        [(True, True, True), (False, True, False), (None, True, None), (None, False, False)],
    )
    def test_of_each_group_it_is_said_what_its_weights_are(self, sparks, ask, seen, declared, known):
        changed = known_checkpoint(SMALL).model_copy(update={"vision": seen, "declares_vision": declared})
        (made,) = plan_fleet([ask(SMALL)], sparks(1), {SMALL: changed}).deployments
        assert {(group.family, group.vision) for group in made.groups} == {("qwen3_moe", known)}

    def test_of_a_model_without_facts_nothing_is_said(self, cpu_node, ask):
        (group,) = plan_on(ask("builtin:tiny"), [cpu_node()]).groups
        assert (group.family, group.vision) == ("", None)

    def test_a_variant_that_does_not_fit_leaves_the_others(self, sparks, ask, plan):
        spec = ask(None, variants=[{"model": SMALL}, {"model": LARGE}])
        found = plan(sparks(1), spec)
        assert [group.variant for group in found.deployments[0].groups] == [0]
        assert any("235B" in one.what for one in found.deployments[0].rejected)
        (left,) = found.deployments[0].left_out
        assert (left.variant, left.model, left.nearest) == (1, LARGE, ("fits with two more linked nodes",))
        assert "does not fit: " in left.reason
        assert not plan(sparks(4, switch=True), spec).deployments[0].left_out

    @pytest.mark.parametrize("concurrency", [11, 12, 16, 24, 32, 48])
    def test_what_a_rule_leaves_no_room_for_is_made_smaller(self, sparks, plan, ask, concurrency):
        """A rule lets three pipelined nodes use 0.8 of their memory: the open sizes have to go into that."""
        spec = ask("Qwen/Qwen3.5-122B-A10B-FP8", engine="vllm", concurrency=concurrency)
        (made,) = plan(sparks(3, HALF, switch=True), spec).deployments
        choice = made.groups[0].choice
        assert choice.candidate.concurrency == concurrency
        assert "pp3-util-085-silent-death" in choice.rules
        assert choice.prediction.memory_bytes_per_rank.low <= 0.8 * HALF
        if choice.candidate.context < 32_768:
            assert any(f"context {choice.candidate.context} instead of" in note for note in choice.notes)


# --- properties -------------------------------------------------------------------------------------------------------

asked = st.lists(
    st.tuples(
        st.sampled_from(MODELS),
        st.sampled_from(("interactive", "throughput", "context")),
        st.sampled_from((None, 4096, 32768)),
        st.sampled_from((None, 1, 8)),
    ),
    min_size=1,
    max_size=4,
)
slow = settings(
    max_examples=settings.default.max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def specs_of(asked, ask):
    return [
        ask(
            model,
            f"m{at}",
            **{k: v for k, v in (("context", c), ("concurrency", n)) if v},
            objective=objective,
        )
        for at, (model, objective, c, n) in enumerate(asked)
    ]


@slow
@given(asked=asked, nodes=st.integers(1, 5), total=st.sampled_from((64_000_000_000, 130_600_000_000)))
def test_a_plan_never_places_more_than_a_node_has(sparks, plan, ask, asked, nodes, total):
    found = plan(sparks(nodes, total=total, switch=True), *specs_of(asked, ask))
    for load in found.nodes:
        assert sum(size for _, size in load.placed) <= load.usable <= load.total
    usable = {load.node: load.usable for load in found.nodes}
    for rung in (rung for one in found.deployments for group in one.groups for rung in group.ladder):
        for node in rung.candidate.shape.nodes:
            assert rung.prediction.memory_bytes_per_rank.mid <= usable[node], (
                "no rung is too large for its nodes"
            )
    counted = sum(len(load.placed) for load in found.nodes)
    ranks = sum(group.choice.candidate.shape.ranks for one in found.deployments for group in one.groups)
    assert counted == ranks
    assert len(found.deployments) + len(found.refused) == len(asked)
    for at, (_, _, context, concurrency) in enumerate(asked):
        for group in served.groups if (served := found.of(f"m{at}")) else ():
            for rung in group.ladder:
                assert rung.candidate.context == (context or rung.candidate.context), "pinned is pinned"
                assert rung.candidate.concurrency == (concurrency or rung.candidate.concurrency)
                sizes = rung.prediction.largest_context, rung.prediction.largest_concurrency
                assert sizes == (None, None) or sizes >= (rung.candidate.context, rung.candidate.concurrency)


@slow
@given(asked=asked, nodes=st.integers(1, 4))
def test_the_same_input_gives_the_same_plan(sparks, plan, ask, asked, nodes):
    predictor_of.cache_clear()
    first = plan(sparks(nodes, switch=True), *specs_of(asked, ask))
    assert first == plan(sparks(nodes, switch=True), *specs_of(asked, ask))


@slow
@given(
    model=st.sampled_from(MODELS[:4]),
    latency=st.floats(10, 600),
    slower=st.floats(1, 20),
)
def test_a_slower_link_never_favours_more_nodes(sparks, plan, ask, model, latency, slower):
    fast = choice(plan(sparks(2, latency_us=latency), ask(model)))
    slow_ = choice(plan(sparks(2, latency_us=latency * slower, gb_per_s=22.1 / slower), ask(model)))
    assert slow_.candidate.shape.ranks <= fast.candidate.shape.ranks


@slow
@given(
    model=st.sampled_from(MODELS),
    total=st.integers(40, 140),
    more=st.integers(0, 60),
    context=st.sampled_from((4096, 32768)),
)
def test_more_memory_never_makes_a_fit_unfit(sparks, plan, ask, model, total, more, context):
    spec = ask(model, context=context, concurrency=2)
    small = plan(sparks(2, total=total * 10**9), spec)
    large = plan(sparks(2, total=(total + more) * 10**9), spec)
    assert not small.deployments or large.deployments


def test_a_declared_port_of_another_deployment_is_not_planned_on_the_same_node(sparks, plan, ask):
    """Both were planned, and the second failed at its start."""
    own = {"engine": "custom", "image": "localhost/tts:1", "port": 5005, "memory": "24 GiB"}
    tts, stt = ask("org/tts", "tts", **own), ask("org/stt", "stt", **own)
    together = plan(sparks(1), tts, stt)
    assert [one.name for one in together.deployments] == ["stt"]
    running = {"tts": plan(sparks(1), tts).of("tts")}
    (refused,) = plan(sparks(1), stt, running=running).refused
    assert [one.reason for one in refused.rejected] == ["tts has port 5005 of spark1"]
    assert refused.nearest == ("fits with another `port` (also in its `command`) than tts's",)
    assert plan(sparks(2), tts, stt).refused == ()
    other = stt.model_copy(update={"port": 5006})
    assert plan(sparks(1), other, running=running).refused == ()
    edited = tts.model_copy(update={"env": {"MARK": "new"}})
    assert plan(sparks(1), edited, running=running).refused == (), "its own generation before has the port"


def test_replicas_of_a_custom_workload_are_on_different_nodes_as_they_have_one_port(sparks, plan, ask):
    own = {"engine": "custom", "image": "localhost/tts:1", "port": 5005, "memory": "24 GiB"}
    tts = ask("org/tts", "tts", replicas=2, **own)
    (refused,) = plan(sparks(1), tts).refused
    assert (
        "for more than 1 of 2 replicas, one per node as all listen on port 5005" in refused.rejected[0].reason
    )
    assert refused.nearest == ("fits with `replicas: 1`",)
    assert len(plan(sparks(2), tts).of("tts").groups) == 2


def test_without_a_node_that_may_be_used_a_custom_workload_is_refused_with_that(sparks, plan, ask):
    """As on one Spark that is drained."""
    tts = ask("org/tts", "tts", engine="custom", image="localhost/tts:1", port=5005, memory="24 GiB")
    (refused,) = plan(sparks(1).model_copy(update={"nodes": (), "drained": ("spark1",)}), tts).refused
    assert refused.rejected[0].reason == "24 GiB declared, and no usable node has that much free"
