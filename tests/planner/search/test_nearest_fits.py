"""Every suggestion is applied, and planned."""

import re

import pytest
from planning_values import choice

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.packing.fleet_planner import plan_fleet

SMALL = "Qwen/Qwen3-30B-A3B-FP8"
GPT = "openai/gpt-oss-120b"
LARGE = "Qwen/Qwen3-235B-A22B-GPTQ-Int4"
BF16 = "Qwen/Qwen3.5-122B-A10B"
HALF = 64_000_000_000
NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "eight": 8}
CASES = {
    "longer than it is made for": (SMALL, {"context": 131_072}, 1, []),
    "many at once": (SMALL, {"context": 40_960, "concurrency": 1000}, 1, []),
    "long and many": (GPT, {"context": 131_072, "concurrency": 64}, 1, []),
    "long": (GPT, {"context": 131_072, "concurrency": 24}, 1, []),
    "bf16": (BF16, {}, 1, []),
    "large": (LARGE, {}, 1, []),
    "pinned shape": (LARGE, {"parallel": {"tp": 1, "pp": 1}}, 1, []),
    "one node of several": (LARGE, {"nodes": ["spark1"]}, 2, []),
    "pinned shape without a link": (LARGE, {"parallel": {"tp": 2}}, 1, []),
    "half a spark": (GPT, {}, 1, [HALF]),
    "one of two is half": (LARGE, {}, 2, [HALF]),
    "replicas": (SMALL, {"context": 40_960, "concurrency": 64, "replicas": 3}, 2, []),
    "replicas of many nodes": (LARGE, {"replicas": 2}, 2, []),
    "beside": (
        SMALL,
        {"context": 40_960, "concurrency": 20},
        1,
        [],
        GPT,
        {"context": 65_536, "concurrency": 4},
    ),
}


@pytest.fixture
def fleet(sparks, spark):
    def make(count, totals):
        fleet = sparks(count, switch=count != 2)
        nodes = [spark(node.name, total) for node, total in zip(fleet.nodes, totals, strict=False)]
        return fleet.model_copy(update={"nodes": (*nodes, *fleet.nodes[len(nodes) :])})

    return make


def likely(found):
    """True if it is planned, and not at the edge of the memory."""
    return not found.refused and not any("at the edge of the memory" in note for note in choice(found).notes)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_suggested_is_planned(plan, ask, fleet, case):
    model, fields, count, totals, *beside = case
    others = [ask(beside[0], "other", **beside[1])] if beside else []
    (refusal,) = plan(fleet(count, totals), ask(model, **fields), *others).refused
    assert refusal.name == "m"
    assert refusal.nearest
    for words in refusal.nearest:
        if number := re.fullmatch(r"fits at concurrency (\d+)", words):
            changed = {**fields, "concurrency": int(number[1])}
            again = plan(fleet(count, totals), ask(model, **changed), *others)
            more = ask(model, **{**fields, "concurrency": int(number[1]) + 1})
            assert others or not likely(plan(fleet(count, totals), more)), "it is the largest"
        elif number := re.fullmatch(r"fits at context (\d+)", words):
            again = plan(fleet(count, totals), ask(model, **{**fields, "context": int(number[1])}), *others)
        elif number := re.fullmatch(r"fits with `replicas: (\d)`", words):
            again = plan(fleet(count, totals), ask(model, **{**fields, "replicas": int(number[1])}))
        elif number := re.fullmatch(
            r"fits (on|with) (\w+)( more)?( linked)? nodes?( like \w+)?( per replica)?", words
        ):
            nodes = NUMBERS[number[2]] * fields.get("replicas", 1) + (count if number[3] else 0)
            assert bool(number[6]) == ("replicas" in fields)
            open_ = {name: value for name, value in fields.items() if name not in ("nodes", "parallel")}
            same = [] if number[5] else totals * nodes
            again = plan(fleet(nodes, same), ask(model, **open_), *others)
        else:
            quant = re.fullmatch(r"fits as (\w+) \(about \d+ GB of weights\)", words)[1].lower()
            smaller = known_checkpoint(model).requantized(quant)
            again = plan_fleet([ask(model, **fields)], fleet(count, totals), {model: smaller})
        assert not again.refused, words


def test_the_largest_that_fits_and_not_a_quarter(plan, ask, fleet):
    (refusal,) = plan(fleet(1, []), ask(SMALL, context=40_960, concurrency=1000)).refused
    (number,) = re.findall(r"fits at concurrency (\d+)", " ".join(refusal.nearest))
    assert 30 <= int(number) <= 60


def test_in_a_mixed_fleet_the_larger_kind_is_named(plan, ask, fleet):
    (refusal,) = plan(fleet(2, [HALF]), ask(LARGE)).refused
    assert "fits on two linked nodes like spark2" in refusal.nearest


def test_beside_others_nodes_of_its_own(plan, ask, fleet):
    pinned = {"context": 32_768, "concurrency": 4}
    (refusal,) = plan(fleet(2, []), ask(GPT), ask(LARGE, "big", **pinned)).refused
    assert refusal.nearest == ("fits with one more node",)


def test_as_many_replicas_as_are_asked_for_on_fewer_nodes_each(plan, ask, fleet):
    """One replica would be quicker on several nodes, of which there are not enough for four."""
    asked = {"context": 2048, "concurrency": 200}
    dense = "nvidia/Llama-3.3-70B-Instruct-FP4"
    (one,) = plan(fleet(4, []), ask(dense, **asked)).deployments
    assert one.groups[0].choice.candidate.shape.ranks > 1
    (four,) = plan(fleet(4, []), ask(dense, **asked, replicas=4)).deployments
    assert [group.choice.candidate.shape.ranks for group in four.groups] == [1] * 4
    assert any("kept for the other replicas" in one.reason for one in four.rejected)


class TestWords:
    def test_a_shorter_context(self, sparks, plan, ask):
        (refusal,) = plan(sparks(1), ask("openai/gpt-oss-120b", context=131_072, concurrency=64)).refused
        assert any(words.startswith("fits at concurrency") for words in refusal.nearest)

    @pytest.mark.parametrize(
        ("engine", "args", "named"),
        [
            ("vllm", ["--gpu-memory-utilization=0.2", "--moe-backend=marlin"], "--gpu-memory-utilization"),
            ("sglang", ["--mem_fraction_static", "0.2"], "--mem-fraction-static"),
            ("vllm", ["--kv-cache-memory-bytes", "1m"], "--kv-cache-memory-bytes"),
        ],
    )
    def test_an_argument_that_leaves_too_little(self, sparks, plan, ask, engine, args, named):
        model = "Qwen/Qwen3.6-27B-FP8"
        (refusal,) = plan(sparks(1), ask(model, engine=engine, engine_args=args)).refused
        assert refusal.nearest[0] == f"leave {named} out of engine_args"
        assert plan(sparks(1), ask(model, engine=engine)).deployments

    def test_an_argument_that_is_not_the_cause_is_not_named(self, sparks, plan, ask):
        args = ["--gpu-memory-utilization=0.8"]
        (refusal,) = plan(sparks(1), ask(LARGE, engine="vllm", engine_args=args)).refused
        assert not any("engine_args" in words for words in refusal.nearest)

    def test_more_nodes_and_fewer_bits(self, sparks, plan, ask):
        (refusal,) = plan(sparks(1), ask("Qwen/Qwen3.5-122B-A10B")).refused
        assert any("linked nodes" in words for words in refusal.nearest)
        assert any(words.startswith("fits as NVFP4") for words in refusal.nearest)

    def test_a_format_is_no_way_out_of_itself(self, sparks, plan, ask):
        """The maker left some parts in 16 bits; in 4 bits throughout it would fit, which nobody has made."""
        (refusal,) = plan(sparks(1), ask("stepfun-ai/Step-3.7-Flash-NVFP4")).refused
        assert refusal.nearest == ("fits on two linked nodes",)

    def test_not_where_memory_is_not_the_matter(self, sparks, plan, ask):
        (refusal,) = plan(sparks(1), ask(SMALL, needs=["vision"])).refused
        assert refusal.nearest == ()
