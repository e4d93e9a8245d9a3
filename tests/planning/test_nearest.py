"""Every suggestion is applied, and planned."""

import re

import pytest

from sparkfleet.knowledge.models import known_checkpoint
from sparkfleet.planning.choose import plan_fleet

SMALL = "Qwen/Qwen3-30B-A3B-FP8"
GPT = "openai/gpt-oss-120b"
LARGE = "Qwen/Qwen3-235B-A22B-GPTQ-Int4"
BF16 = "Qwen/Qwen3.5-122B-A10B"
HALF = 64_000_000_000
NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "eight": 8}
CASES = {
    "many at once": (SMALL, {"context": 40_960, "concurrency": 1000}, 1, []),
    "long and many": (GPT, {"context": 131_072, "concurrency": 64}, 1, []),
    "long": (GPT, {"context": 131_072, "concurrency": 24}, 1, []),
    "bf16": (BF16, {}, 1, []),
    "large": (LARGE, {}, 1, []),
    "pinned shape": (LARGE, {"parallel": {"tp": 1, "pp": 1}}, 1, []),
    "one node of several": (LARGE, {"nodes": ["spark1"]}, 2, []),
    "half a spark": (GPT, {}, 1, [HALF]),
    "one of two is half": (LARGE, {}, 2, [HALF]),
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
            assert others or plan(fleet(count, totals), more).refused, "it is the largest"
        elif number := re.fullmatch(r"fits at context (\d+)", words):
            again = plan(fleet(count, totals), ask(model, **{**fields, "context": int(number[1])}), *others)
        elif number := re.fullmatch(r"fits (on|with) (\w+)( more)?( linked)? nodes?( like \w+)?", words):
            nodes = NUMBERS[number[2]] + (count if number[3] else 0)
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
