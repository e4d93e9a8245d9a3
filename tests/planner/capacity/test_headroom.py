"""Headroom of a choice, and what was taken off it."""

import pytest
from planning_values import plan_on

from sparkfleet.planner.capacity.headroom import bisect
from sparkfleet.planner.report.explain.plan import explain_plan

FP8 = "Qwen/Qwen3.6-27B-FP8"
GPT = "openai/gpt-oss-120b"
SMALL = "Qwen/Qwen3-30B-A3B-FP8"
GLM = "zai-org/GLM-5.2-FP8"


def choice(found, at=0):
    return found.deployments[at].groups[0].choice


@pytest.mark.parametrize(("most", "low", "high", "found"), [(7, 0, 20, 7), (99, 3, 20, 20), (1, 3, 20, 3)])
def test_the_largest_number_that_does(most, low, high, found):
    assert bisect(lambda number: number <= most, low, high) == found


@pytest.mark.parametrize("model", [FP8, GPT, "nvidia/Qwen3.6-27B-NVFP4"])
def test_the_largest_sizes_fit_and_one_more_does_not(sparks, plan, ask, model):
    """Held against the planner itself: pinned to what it said, the same engine is planned with the same verdict."""
    fields = {"context": 8192, "concurrency": 2, "speculation": "none", "engine": "vllm"}
    first = choice(plan(sparks(1), ask(model, **fields)))
    could = first.prediction
    assert could.largest_context > 8192
    assert could.largest_concurrency > 2
    for wider in ({"context": could.largest_context}, {"concurrency": could.largest_concurrency}):
        same = choice(plan(sparks(1), ask(model, **{**fields, **wider})))
        assert same.prediction.verdict == could.verdict
    requests = could.largest_concurrency + 1
    found = plan(sparks(1), ask(model, **{**fields, "concurrency": requests}))
    assert found.refused or (choice(found).prediction.verdict, choice(found).candidate.kv_dtype) != (
        could.verdict, first.candidate.kv_dtype,
    )  # fmt: skip


def test_what_others_take_is_not_to_be_had(sparks, plan, ask):
    alone = choice(plan(sparks(1), ask(SMALL, "small"))).prediction
    beside = plan(sparks(1), ask(SMALL, "small"), ask(GPT, "other", context=32_768, concurrency=4))
    assert beside.of("small").groups[0].choice.prediction.largest_concurrency < alone.largest_concurrency


def test_the_plan_prints_it_in_a_line(sparks, plan, ask):
    found = plan(sparks(1), ask(FP8, context=8192, concurrency=2)).deployments[0]
    could = found.groups[0].choice.prediction
    said = f"also fits   context {could.largest_context} × 2, or 8192 × {could.largest_concurrency} requests"
    assert any(said in line for line in explain_plan(found))


def test_of_an_engine_whose_memory_is_not_modelled_nothing_is_said(cpu_node, ask):
    found = plan_on(ask("builtin:tiny"), [cpu_node()])
    assert found.groups[0].choice.prediction.largest_context is None
    assert not any("room for" in line for line in explain_plan(found))


def test_fewer_requests_before_a_context_too_short_to_work_with(sparks, plan, ask):
    rung = choice(plan(sparks(8, 112_000_000_000, switch=True), ask(GLM)))
    assert (rung.candidate.context, rung.candidate.concurrency) == (8192, 1)
    assert any(
        note.startswith("context 8192 instead of 32768, concurrency 1 instead of 4") for note in rung.notes
    )


@pytest.mark.parametrize(("model", "nodes", "memory"), [(GPT, 2, 64), (GLM, 8, 126), (GLM, 8, 130.6)])
def test_room_for_a_context_too_short_to_work_with_lowers_no_size(sparks, plan, ask, model, nodes, memory):
    """Of GLM the smallest sizes fit with 130.6 GB and are tight with 126."""
    rung = choice(plan(sparks(nodes, int(memory * 1e9), switch=nodes > 2), ask(model, engine="vllm")))
    assert (rung.candidate.context, rung.candidate.concurrency) == (32768, 4)
    assert rung.prediction.verdict == "tight"


def test_a_smaller_kv_cache_is_told(sparks, plan, ask):
    rungs = [choice(plan(sparks(1), ask(GPT, context=131_072, concurrency=n))) for n in (1, 12, 16, 20)]
    small = [rung for rung in rungs if rung.candidate.kv_dtype == "fp8"]
    assert small
    assert len(small) < len(rungs)
    for rung in rungs:
        assert any("a KV cache in fp8" in note for note in rung.notes) == (rung in small)


def test_a_smaller_kv_cache_is_not_said_to_have_room_for_what_a_rule_lowered(sparks, plan, ask):
    """With both a smaller cache and a shorter context, "32768 × 1000 does not fit otherwise" was not so."""
    notes = choice(plan(sparks(2), ask(GPT, concurrency=1000))).notes
    assert "a KV cache in fp8: 32768 × 1000 does not fit" in notes
    assert any("instead of" in note and "within what rules require" in note for note in notes)


def test_a_smaller_kv_cache_that_a_rule_requires_has_room_for_the_same_sizes(sparks, plan, ask):
    """ "32768 × 4 does not fit", said of a plan with 32768 × 4, contradicted it."""
    rung = choice(plan(sparks(8, switch=True), ask("zai-org/GLM-5.3-FP8", engine="vllm")))
    assert (rung.candidate.context, rung.candidate.concurrency) == (32768, 4)
    assert (
        "a KV cache in fp8: 32768 × 4 does not fit otherwise within what rules require (xid43-util)"
        in rung.notes
    )


def test_what_was_asked_for_and_had_is_not_remarked(sparks, plan, ask):
    assert not any("instead of" in note for note in choice(plan(sparks(1), ask(FP8))).notes)


def test_what_a_rule_sets_is_not_put_down_to_memory(sparks, plan, ask):
    spec = ask("nvidia/Qwen3-235B-A22B-FP4", engine="trtllm", parallel={"tp": 2},
               speculation={"method": "eagle3", "draft": "nvidia/Qwen3-235B-A22B-Eagle3"})  # fmt: skip
    rung = choice(plan(sparks(2), spec))
    assert rung.candidate.concurrency == 1
    assert not any("concurrency 1 instead of 4" in note for note in rung.notes)


@pytest.mark.parametrize(
    ("model", "nodes"),
    [
        ("saricles/MiniMax-M2.7-REAP-172B-A10B-NVFP4-GB10", 1),
        ("Tengyunw/GLM-4.7-NVFP4", 2),
        ("2wild4tv/GLM-5.3-Int4-Int8Mix", 4),
    ],
)
def test_sizes_that_rules_do_not_allow_are_not_among_those_that_fit(sparks, plan, ask, model, nodes):
    """A rule limits the share of the memory, and the larger sizes were computed without it: whoever set them had another
    engine, or another split that is slower by half."""
    fleet = sparks(nodes, switch=nodes > 2)
    first = plan(fleet, ask(model)).deployments[0].groups[0].choice
    could, has = first.prediction, first.candidate
    assert could.verdict == "tight"
    for wider in (
        {"context": could.largest_context, "concurrency": has.concurrency},
        {"context": has.context, "concurrency": could.largest_concurrency},
    ):
        found = plan(fleet, ask(model, **wider)).deployments[0].groups[0].choice.candidate
        assert (found.how, found.shape.split) == (has.how, has.shape.split)
        assert (found.context, found.concurrency) == (wider["context"], wider["concurrency"])


def test_a_rule_about_a_large_share_takes_no_more_sizes_than_it_is_about(sparks, plan, ask):
    """GLM-5.2 on four Sparks had one request without drafts, 16.9 tok/s: 32768 × 4 would take 0.9 of the memory, for which a
    rule allows 0.8. Two with drafts take 0.88, for which it does not hold."""
    rung = plan(sparks(4, switch=True), ask("QuantTrio/GLM-5.2-Int4-Int8Mix")).deployments[0].groups[0].choice
    has = rung.candidate
    assert (has.engine, has.speculation.method, has.context, has.concurrency) == (
        "sglang",
        "nextn",
        32_768,
        2,
    )
    assert 0.8 < has.memory_fraction < 0.9
    assert "jit-compile-oom" not in rung.rules
    assert any(
        "concurrency 2 instead of 4: 32768 × 4 does not fit within what rules" in one for one in rung.notes
    )
