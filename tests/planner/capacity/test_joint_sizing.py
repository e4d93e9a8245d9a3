"""Open sizes that are lowered so that others fit beside them."""

import pytest

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.capacity.joint_sizing import with_room
from sparkfleet.planner.packing.fleet_planner import plan_fleet

GPT = "openai/gpt-oss-120b"
SMALL = "Qwen/Qwen3-30B-A3B-FP8"
LARGE = "Qwen/Qwen3-235B-A22B-GPTQ-Int4"


def sizes(found, name):
    candidate = found.of(name).groups[0].choice.candidate
    return candidate.context, candidate.concurrency


def test_what_is_open_is_lowered_so_that_another_fits_and_the_plan_says_so(sparks, plan, ask):
    found = plan(sparks(2), ask(GPT, "gpt-oss"), ask(LARGE, "big"))
    assert not found.refused
    assert sizes(found, "big") == (32_768, 2), "as little as does it"
    for rung in found.of("big").groups[0].ladder:
        assert "concurrency 2 instead of 4 so that gpt-oss fits beside it" in rung.notes
    assert not any("beside it" in note for note in found.of("gpt-oss").groups[0].choice.notes)
    for load in found.nodes:
        assert sum(size for _, size in load.placed) <= load.usable


def test_what_is_pinned_stays(sparks, plan, ask):
    pinned = ask(LARGE, "big", context=32_768, concurrency=4)
    found = plan(sparks(2), ask(GPT, "gpt-oss"), pinned)
    assert [refusal.name for refusal in found.refused] == ["gpt-oss"]
    assert sizes(found, "big") == (32_768, 4)
    half = plan(sparks(2), ask(GPT, "gpt-oss"), ask(LARGE, "big", concurrency=4))
    assert not half.refused
    assert sizes(half, "big")[1] == 4
    assert sizes(half, "big")[0] < 32_768, "the context is open"


def test_only_those_are_lowered_beside_which_it_helps(sparks, plan, ask):
    apart = ask(SMALL, "apart", nodes=["spark3"])
    found = plan(sparks(3, switch=True), ask(GPT, "gpt-oss", nodes=["spark1", "spark2"]),
                 ask(LARGE, "big", nodes=["spark1", "spark2"]), apart)  # fmt: skip
    assert not found.refused
    assert sizes(found, "big")[1] < 4
    assert sizes(found, "apart") == (32_768, 4)


def test_a_long_context_makes_room(sparks, plan, ask):
    found = plan(
        sparks(1), ask(GPT, "long", objective="context"), ask(SMALL, "small", context=32_768, concurrency=8)
    )
    assert not found.refused
    assert sizes(found, "small") == (32_768, 8)
    context, _ = sizes(found, "long")
    assert 2048 < context < 131_072
    note = f"context {context} instead of 131072 so that small fits beside it"
    assert note in found.of("long").groups[0].choice.notes


def test_where_nothing_helps_the_plan_is_as_it_was(sparks, plan, ask):
    specs = [ask(LARGE, "big"), ask("Qwen/Qwen3.5-122B-A10B", "huge", context=32_768)]
    found = plan(sparks(2), *specs)
    assert len(found.refused) == 1
    (served,) = found.deployments
    assert sizes(found, served.name) == sizes(
        plan(sparks(2), next(s for s in specs if s.name == served.name)), served.name
    )


SUPER = "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"
A3B = "nvidia/Qwen3.6-35B-A3B-NVFP4"


def notes(found, name):
    return found.of(name).groups[0].choice.notes


def test_two_that_are_open_share_a_spark_evenly(sparks, plan, ask):
    """The large one had 32768 × 4, the small one 4096 × 1 in what was left, and no line named the cause."""
    found = plan(sparks(1), ask(SUPER, "big"), ask(A3B, "small"))
    assert sizes(found, "big") == (32_768, 2)
    assert sizes(found, "small") == (32_768, 4)
    note = "concurrency 2 instead of 4 so that small has 32768 × 4 beside it instead of 4096 × 1"
    assert all(note in rung.notes for rung in found.of("big").groups[0].ladder)
    assert not any("alone it would have" in one for one in notes(found, "small"))


def test_what_is_set_is_not_shared_but_named(sparks, plan, ask):
    found = plan(sparks(1), ask(SUPER, "big", context=32_768, concurrency=4), ask(A3B, "small"))
    assert sizes(found, "big") == (32_768, 4)
    assert sizes(found, "small") == (4096, 1)
    assert notes(found, "small")[-1] == (
        "alone it would have 32768 × 4: a lower `concurrency` or `context` of big (32768 × 4) leaves it more"
    )


def test_a_running_engine_keeps_its_sizes_for_a_larger_neighbour(sparks, ask):
    """It would start again for the comfort of another."""
    fleet, specs = sparks(1), [ask(SUPER, "big"), ask(A3B, "small")]
    checkpoints = {one.model: known_checkpoint(one.model) for one in specs}
    alone = plan_fleet(specs[:1], fleet, checkpoints)
    beside = plan_fleet(specs, fleet, checkpoints, running={"big": alone.of("big")})
    assert sizes(beside, "big") == (32_768, 4)
    assert "of big (32768 × 4) leaves it more" in notes(beside, "small")[-1]
    even = plan_fleet(specs, fleet, checkpoints)
    again = plan_fleet(specs, fleet, checkpoints, running={one.name: one for one in even.deployments})
    assert [sizes(again, name) for name in ("big", "small")] == [(32_768, 2), (32_768, 4)]


def test_what_has_its_sizes_alone_is_shared_with_nobody(sparks, plan, ask):
    """A model whose longest context is short has all that it can have."""
    found = plan(sparks(1), ask("Qwen/Qwen2.5-7B-Instruct", "short", context=2048), ask(SMALL, "small"))
    assert sizes(found, "small") == (32_768, 4)
    assert not any("beside it" in note for note in (*notes(found, "short"), *notes(found, "small")))


@pytest.mark.parametrize("helps", [True, False])
def test_it_is_packed_a_few_times_only(sparks, plan, ask, helps):
    before = plan(sparks(2), ask(GPT, "gpt-oss"), ask(LARGE, "big", context=32_768, concurrency=4))
    served = plan(sparks(2), ask(GPT, "gpt-oss"), ask(LARGE, "big"))
    asked = []

    def pack(most):
        asked.append(dict(most))
        return served if helps and most["big"].concurrency == 1 else before

    found = with_room(before, pack)
    assert len(found.refused) == (0 if helps else 1)
    assert len(asked) <= (6 if helps else 1)
    assert asked[0]["big"] == (2048, 1), "the strictest first: what it does not help nothing does"
