"""No speculative method disappears: each is in a ladder, or rejected by name, on every engine."""

import itertools

import pytest

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.place.drafting import METHODS
from sparkfleet.planner.place.weight_containers import engines_for
from sparkfleet.planner.report.explain.plan import explain_plan, explain_refusal
from sparkfleet.planner.search.method_account import Fate, MethodAccount, Stage
from sparkfleet.planner.types.plan import Rejection

FP8 = "Qwen/Qwen3.6-27B-FP8"
ENGINES = engines_for(known_checkpoint(FP8))
"""Those that load safetensors."""
QWEN38 = "nvidia/Qwen3.8-27B-NVFP4"
DEEPSEEK = "deepseek-ai/DeepSeek-V4-Flash-0731"
CLOSED = "incoai/GLM-5.3-Flash-DFlash2"


def taken(made):
    return {
        (rung.candidate.engine, rung.candidate.speculation.method)
        for group in made.groups
        for rung in group.ladder
    }


def told(rejected):
    return {(one.engine, method) for one in rejected for method in one.methods}


WISHES = (
    {},
    {"objective": "throughput", "concurrency": 32},
    {"speculation": "none"},
    {"speculation": "mtp"},
    {"speculation": {"method": "dspark", "draft": "me/draft"}},
    {"engine": "sglang"},
    {"image": "vllm/vllm-openai:v0.27.0"},
    {"license": "open"},
    {"context": 32_768, "concurrency": 64},
    {"context": 200_000},
    {"parallel": {"tp": 1, "pp": 2}},
    {"engine_args": ["--max-num-seqs", "4"]},
)


@pytest.mark.parametrize("model", [FP8, QWEN38, DEEPSEEK, "openai/gpt-oss-120b", "Qwen/Qwen3-30B-A3B-FP8"])
@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_every_method_on_every_engine_is_taken_or_rejected_with_a_reason(sparks, plan, ask, model, wish):
    found = plan(sparks(2), ask(model, **wish))
    if found.deployments:
        (made,) = found.deployments
        covered = taken(made) | told(made.rejected)
        rejected = made.rejected
    else:
        (refusal,) = found.refused
        covered, rejected = told(refusal.rejected), refusal.rejected
    if [one.what for one in rejected] == [model.rpartition("/")[2]]:
        return  # the model itself is excluded, before any engine: by its licence, or its longest context
    assert covered == set(itertools.product(ENGINES, METHODS))
    assert all(one.reason and "not tried" not in one.reason for one in rejected)


def test_the_whole_list_is_shown_and_is_in_json(sparks, plan, ask):
    (made,) = plan(sparks(1), ask(QWEN38)).deployments
    text = " ".join(" ".join(explain_plan(made, everything=True)).split())
    for one in made.rejected:
        assert one.what.split(" · ")[0] in text
    assert "TensorRT-LLM has no such method" in text
    assert "vLLM has no such method; it has MTP" in text
    said = made.model_dump(mode="json")["rejected"]
    assert {"engine", "methods", "reason"} <= set(said[0])
    assert any(one["engine"] == "trtllm" and "dflash2" in one["methods"] for one in said)


def test_both_methods_of_today_are_in_the_plan_of_qwen(sparks, plan, ask):
    (made,) = plan(sparks(1), ask(QWEN38)).deployments
    assert {"dflash2", "dspark"} <= {method for _, method in taken(made)}


@pytest.mark.parametrize(
    ("engine", "image", "draft"),
    [
        ("vllm", "vllm/vllm-openai:v0.32.0", "z-lab/Qwen3.8-27B-DFlash2"),
        ("sglang", "lmsysorg/sglang:v0.5.23", "z-lab/Qwen3.8-27B-DFlash2"),
    ],
)
def test_a_pinned_dflash2_brings_its_published_draft_and_bytes(sparks, plan, ask, engine, image, draft):
    wish = {"engine": engine, "image": image, "speculation": "dflash2"}
    rung = plan(sparks(1), ask(QWEN38, **wish)).deployments[0].groups[0].choice
    assert (rung.candidate.speculation.method, rung.candidate.speculation.draft) == ("dflash2", draft)
    (size,) = (part.bytes for part in rung.prediction.memory_parts if part.name == "drafter")
    assert size == pytest.approx(3.85e9)


def test_deepseeks_dspark_is_counted_with_its_stages(sparks, plan, ask):
    """Three blocks with all their experts, of 46 that the file has: no draft checkpoint is staged for them."""
    wish = {"speculation": "dspark", "image": "ghcr.io/anemll/dspark-vllm-gx10:0.1.1"}
    rung = plan(sparks(2), ask(DEEPSEEK, **wish)).deployments[0].groups[0].choice
    assert rung.candidate.speculation.draft is None
    (size,) = (part.bytes for part in rung.prediction.memory_parts if part.name == "drafter")
    weights = next(part.bytes for part in rung.prediction.memory_parts if part.name == "weights")
    assert 2 * weights / 43 < size < 4 * weights / 43


def test_over_a_pipeline_sglang_has_no_parallel_drafts(sparks, plan, ask):
    wish = {
        "engine": "sglang",
        "parallel": {"tp": 1, "pp": 2},
        "speculation": {"method": "dspark", "draft": "me/draft"},
    }
    (refusal,) = plan(sparks(2), ask(QWEN38, **wish)).refused
    reasons = {one.reason for one in refusal.rejected if one.engine == "sglang" and "dspark" in one.methods}
    assert reasons == {"SGLang runs DSPARK without a pipeline (PP) only"}


class TestLicences:
    def test_a_closed_draft_is_not_taken_where_open_is_required(self, sparks, plan, ask):
        wish = {"speculation": {"method": "dflash2", "draft": CLOSED}, "license": "open"}
        (refusal,) = plan(sparks(2), ask(FP8, **wish)).refused
        text = " ".join(" ".join(explain_refusal(refusal)).split())
        assert f"license of the draft {CLOSED} cc-by-nc-nd-4.0: not open source" in text

    def test_a_draft_that_forbids_commercial_use_is_warned_of(self, sparks, plan, ask):
        wish = {"speculation": {"method": "dflash2", "draft": CLOSED}, "image": "vllm/vllm-openai:v0.32.0"}
        rung = plan(sparks(2), ask(FP8, **wish)).deployments[0].groups[0].choice
        assert any("not for commercial use" in note for note in rung.notes)

    def test_without_a_closed_draft_there_is_no_such_warning(self, sparks, plan, ask):
        rung = plan(sparks(1), ask(QWEN38)).deployments[0].groups[0].choice
        assert not any("commercial" in note for note in rung.notes)


class TestAccount:
    def test_the_reason_of_the_furthest_stage_counts(self):
        account = MethodAccount(ENGINES)
        account.note("vllm", ("mtp",), Fate(Stage.SIZED, "too large", "memory"))
        account.note("vllm", ("mtp",), Fate(Stage.EXCLUDED, "no head", "engine"))
        account.note("vllm", ("mtp",), Fate(Stage.EVALUATED, "12 tok/s against 20", "slower"))
        (line,) = (one for one in account.unmentioned((), ()) if one.methods == ("mtp",))
        assert (line.what, line.reason, line.why) == ("vLLM · MTP", "12 tok/s against 20", "slower")

    def test_what_is_taken_or_rejected_by_name_is_not_said_again(self):
        known = Rejection(what="x", reason="y", engine="vllm", methods=("mtp", "ngram"))
        account = MethodAccount(ENGINES)
        lines = list(account.unmentioned({("vllm", "none"), ("sglang", "nextn")}, [known]))
        assert not told(lines) & {("vllm", "mtp"), ("vllm", "ngram"), ("vllm", "none"), ("sglang", "nextn")}
        assert len(told(lines)) == len(ENGINES) * len(METHODS) - 4

    def test_an_engine_that_is_out_is_one_line(self):
        account = MethodAccount(ENGINES)
        account.note("trtllm", METHODS, Fate(Stage.ENGINE, "no known image serves fp8", "engine"))
        (line,) = (one for one in account.unmentioned((), ()) if one.engine == "trtllm")
        assert (line.what, line.reason) == ("TensorRT-LLM", "no known image serves fp8")
