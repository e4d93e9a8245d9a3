"""Decode context parallelism: planned if a deployment sets it, named if it would hold more, refused with the reason."""

import pytest
from planning_values import choice, refusal

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.prediction import MemoryUse
from sparkfleet.perf.predictor import predictor_of
from sparkfleet.planner.report.explain.plan import explain_plan, explain_refusal
from sparkfleet.planner.report.prediction_terms import prediction_sums

KIMI = "nvidia/Kimi-K2.6-NVFP4"
GLM = "QuantTrio/GLM-5.2-Int4-Int8Mix"
DENSE = "zai-org/GLM-4.7-Flash"
OWN = {"engine": "vllm", "image": "ghcr.io/org/glm52:b12x-dcp"}


@pytest.fixture
def planned(sparks, plan, ask):
    def planned(count, model, **fields):
        return plan(sparks(count, switch=count > 2), ask(model, **fields))

    return planned


def words(found):
    return " ".join(" ".join(explain_plan(found.deployments[0])).split())


def kv(rung):
    return sum(part.bytes for part in rung.prediction.memory_parts if part.name == MemoryUse.KV_CACHE)


class TestOffer:
    def test_a_choice_whose_ranks_keep_copies_names_what_would_fit(self, planned):
        first = choice(planned(8, KIMI))
        could = first.prediction.shared_kv
        assert first.candidate.shape.dcp == 1, "a plan does not choose it"
        assert (could.dcp, could.refused_by) == (8, "")
        assert could.largest_context > 2 * first.prediction.largest_context
        assert could.decode_tps < first.prediction.decode_tps_per_request.mid

    def test_what_is_offered_is_planned(self, planned):
        """Pinned to what the plan said, the same engine is planned with that context and that speed."""
        first = choice(planned(8, KIMI, engine="vllm"))
        could = first.prediction.shared_kv
        fields = {
            "engine": "vllm",
            "context": could.largest_context,
            "concurrency": first.candidate.concurrency,
        }
        shared = choice(planned(8, KIMI, parallel={"tp": 8, "dcp": 8}, **fields))
        assert (shared.candidate.shape.tp, shared.candidate.shape.dcp) == (8, 8)
        assert shared.prediction.verdict == first.prediction.verdict
        assert shared.prediction.decode_tps_per_request.mid == pytest.approx(could.decode_tps, rel=0.02)
        assert shared.prediction.shared_kv is None, "it is set"

    def test_it_is_a_line_of_the_plan(self, planned):
        found = planned(8, KIMI)
        could = choice(found).prediction.shared_kv
        line = (
            f"kv shared context {could.largest_context} × 4, or 32768 × {could.largest_concurrency} requests would fit if "
            "8 ranks shared one KV cache (`parallel: {tp: 8, dcp: 8}`); predicted: "
        )
        assert line in words(found)
        assert "published: 0.84× the decode rate alone" in words(found)

    def test_releases_that_do_not_run_it_are_named_with_the_rule(self, planned):
        found = planned(4, GLM, engine="vllm")
        assert choice(found).prediction.shared_kv.refused_by == "vllm-dcp-sm120-sparse"
        assert "does not run that (`sparkfleet explain vllm-dcp-sm120-sparse`)" in words(found)

    @pytest.mark.parametrize(
        ("count", "model", "fields"),
        [
            (2, "Qwen/Qwen3-235B-A22B-GPTQ-Int4", {}),  # four KV heads on two ranks
            (1, DENSE, {}),
            (2, DENSE, {"parallel": {"tp": 2}}),  # holds its longest context without it
        ],
    )
    def test_there_is_none_if_no_rank_keeps_a_copy_or_there_is_room(self, planned, count, model, fields):
        assert choice(planned(count, model, **fields)).prediction.shared_kv is None

    def test_of_pages_that_are_filled_unknown_nothing_is_said(self, planned):
        first = choice(planned(4, "deepseek-ai/DeepSeek-V4-Flash", parallel={"tp": 4}))
        assert first.prediction.shared_kv is None


class TestAsked:
    def test_each_rank_keeps_its_part(self, planned):
        sizes = {"context": 65_536, "concurrency": 1, "speculation": "none"}
        alone = choice(planned(4, GLM, parallel={"tp": 4}, **OWN, **sizes))
        shared = choice(planned(4, GLM, parallel={"tp": 4, "dcp": 4}, **OWN, **sizes))
        assert kv(shared) == pytest.approx(kv(alone) / 4)
        slower = shared.prediction.decode_tps_per_request.mid / alone.prediction.decode_tps_per_request.mid
        assert 0.5 < slower < 0.9

    def test_the_published_million_tokens_fit_on_four(self, planned):
        """0xdfi: 320K tokens with a copy on each of four ranks, 1M with one cache, both at the edge of the memory."""
        sizes = {
            "context": 1_000_000,
            "concurrency": 1,
            "speculation": "none",
            "engine_args": ["--kv-cache-dtype=nvfp4"],
        }
        found = planned(4, GLM, parallel={"tp": 4, "dcp": 4}, **OWN, **sizes)
        assert choice(found).candidate.context == 1_000_000
        assert planned(4, GLM, parallel={"tp": 4}, **OWN, **sizes).refused

    def test_the_plan_has_its_price(self, planned):
        found = planned(8, KIMI, parallel={"tp": 8, "dcp": 4})
        assert "TP=8 DCP=4" in str(choice(found).candidate)
        assert (
            "kv shared 4 of the 8 ranks keep one KV cache, split by tokens: room for 4× the tokens"
            in words(found)
        )
        assert {"vllm-dcp-drift", "dcp-unpublished"} <= {
            word.strip("()") for note in choice(found).notes for word in note.split()
        }

    def test_drafts_are_refused_with_it_in_releases(self, planned):
        found = planned(8, "nvidia/DeepSeek-V3.1-NVFP4", parallel={"tp": 8, "dcp": 8})
        assert choice(found).candidate.speculation.method == "none"
        assert any(one.rule == "vllm-dcp-drafts" for one in found.deployments[0].rejected)

    def test_a_release_without_it_is_refused_with_the_way_out(self, planned):
        refused = refusal(planned(4, GLM, parallel={"tp": 4, "dcp": 4}))
        assert any(one.rule == "vllm-dcp-sm120-sparse" for one in refused.rejected)
        assert "explain vllm-dcp-sm120-sparse" in " ".join(explain_refusal(refused))

    @pytest.mark.parametrize(
        ("model", "parallel", "reason"),
        [
            (KIMI, {"tp": 8, "dcp": 8, "pp": 2}, "TP times PP is 16"),
            (
                "Qwen/Qwen3-30B-A3B-FP8",
                {"tp": 4, "dcp": 4},
                "TP=4 splits its 4 heads, and no rank keeps a copy",
            ),
            (
                "Qwen/Qwen3-30B-A3B-FP8",
                {"dcp": 4},
                "DCP=4 is more than the 2 copies that TP=8 makes of 4 KV heads",
            ),
        ],
    )
    def test_a_model_that_cannot_share_is_refused_in_words(self, planned, model, parallel, reason):
        assert any(reason in one.reason for one in refusal(planned(8, model, parallel=parallel)).rejected)

    def test_of_fewer_sparks_the_reason_is_about_them(self, planned):
        model = "Qwen/Qwen3.6-35B-A3B-FP8"
        reasons = [one.reason for one in refusal(planned(2, model, parallel={"dcp": 2})).rejected]
        assert any("TP=2 splits its 2 heads, and no rank keeps a copy" in reason for reason in reasons)
        assert not planned(4, model, parallel={"dcp": 2}).refused

    def test_tp_follows_it_if_it_is_open(self, planned):
        shape = choice(planned(8, KIMI, parallel={"dcp": 8})).candidate.shape
        assert (shape.tp, shape.dcp) == (8, 8)


class TestNearest:
    def test_what_would_fit_with_it_is_named_and_is_planned(self, planned):
        fields = {"engine": "vllm", "context": 262_144, "concurrency": 8}
        nearest = refusal(planned(8, KIMI, **fields, parallel={"tp": 8})).nearest
        assert "fits with `parallel: {tp: 8, dcp: 8}` (ranks share one KV cache)" in nearest
        assert not planned(8, KIMI, **fields, parallel={"tp": 8, "dcp": 8}).refused

    def test_it_is_not_named_if_no_engine_runs_it(self, planned):
        refused = refusal(planned(4, GLM, context=1_000_000, concurrency=4))
        assert not any("dcp" in words for words in refused.nearest)


class TestArguments:
    @pytest.mark.parametrize(
        "flag", ["--decode-context-parallel-size=8", "--decode_context_parallel_size 8", "-dcp 8"]
    )
    def test_the_engines_own_flag_counts(self, planned, flag):
        found = choice(planned(8, KIMI, engine="vllm", engine_args=flag.split()))
        assert found.candidate.shape.dcp == 8
        assert "DCP=8" in found.pinned

    def test_it_may_not_contradict_the_field(self, planned):
        refused = refusal(
            planned(
                8,
                KIMI,
                engine="vllm",
                parallel={"tp": 8, "dcp": 4},
                engine_args=["--decode-context-parallel-size=8"],
            )
        )
        (reason,) = (one.reason for one in refused.rejected)
        assert "`parallel: {dcp: 4}` and --decode-context-parallel-size=8 in engine_args contradict" in reason

    def test_flags_that_do_not_divide_are_refused_in_words(self, planned):
        refused = refusal(planned(4, KIMI, engine="vllm", engine_args=["-tp", "4", "-dcp", "3"]))
        assert any("DCP=3 does not divide TP=4" in one.reason for one in refused.rejected)
        mixed = refusal(planned(4, KIMI, engine="vllm", parallel={"tp": 4}, engine_args=["-dcp=8"]))
        assert any("DCP=8 does not divide TP=4" in one.reason for one in mixed.rejected)

    def test_blocks_of_all_ranks_hold_a_request(self, planned):
        """`--num-gpu-blocks-override` is each rank's: with DCP they hold a request together."""
        args = ["--num-gpu-blocks-override=2048", "--block-size=64"]
        fields = {
            "engine": "vllm",
            "context": 262_144,
            "concurrency": 1,
            "engine_args": args,
            "speculation": "none",
        }
        assert planned(8, KIMI, parallel={"tp": 8}, **fields).refused
        assert not planned(8, KIMI, parallel={"tp": 8, "dcp": 8}, **fields).refused


def test_the_terms_of_a_prediction_name_the_further_collectives(sparks, plan, ask):
    fleet, spec = sparks(8, switch=True), ask(KIMI, parallel={"tp": 8, "dcp": 8})
    groups = plan(fleet, spec).deployments[0].groups
    itl, ttft = prediction_sums(predictor_of(known_checkpoint(KIMI)), fleet, groups)
    latency = next(term for term in itl.terms if term.name == "latency")
    assert latency.what == "all-reduces and DCP, latency"
    assert any(term.what == "all-reduces and DCP, bytes" for term in ttft.terms)
    assert 1e3 / itl.predicted.mid == pytest.approx(groups[0].choice.prediction.decode_tps_per_request.mid)
