"""Keys of the fitted factors, and how much of each applies."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_values import setup

from sparkfleet.perf.latency.factor_keys import (
    PROMPT_TOKENS,
    PROMPTS_AT_ONCE,
    REQUESTS,
    anchor_shares,
    decode_keys,
    prefill_keys,
)

ANCHORS = (REQUESTS, PROMPTS_AT_ONCE, PROMPT_TOKENS)


@pytest.mark.parametrize("anchors", ANCHORS)
def test_an_anchor_has_its_own_effect_alone(anchors: tuple[int, ...]) -> None:
    for one in anchors:
        assert anchor_shares(one, anchors) == {one: 1.0}
    assert anchor_shares(0.5, anchors) == {anchors[0]: 1.0}
    assert anchor_shares(10 * anchors[-1], anchors) == {anchors[-1]: 1.0}


def test_halfway_by_the_logarithm_both_anchors_apply_alike() -> None:
    assert anchor_shares(sqrt(8 * 16), REQUESTS) == pytest.approx({8: 0.5, 16: 0.5})


@given(st.sampled_from(ANCHORS), st.floats(1, 10_000), st.floats(1, 1.01))
def test_shares_are_whole_and_move_little_with_the_load(
    anchors: tuple[int, ...], load: float, times: float
) -> None:
    before, after = (anchor_shares(value, anchors) for value in (load, load * times))
    assert sum(before.values()) == pytest.approx(1.0)
    moved = {one: after.get(one, 0.0) - before.get(one, 0.0) for one in anchors}
    assert max(map(abs, moved.values())) <= 0.015  # 1 % more of the smallest distance, twice as many


def test_setups_apply_whole_and_loads_in_shares() -> None:
    one = setup("Qwen/Qwen3.6-27B-FP8", "fp8", method="mtp", k=3)
    decode = decode_keys(one, 3)
    assert decode["engine=vllm"] == 1.0
    assert decode["crowd=2+vllm"] + decode["crowd=4+vllm"] == pytest.approx(1.0)
    assert decode["spec+method+crowd=mtp+4"] == decode["crowd=4+vllm"] > decode["crowd=2+vllm"]
    prefill = prefill_keys(one, 2048, 2)
    assert prefill["engine=vllm"] == 1.0
    assert prefill["prompt=1100"] + prefill["prompt=4000"] == pytest.approx(1.0)
    assert prefill["crowd+engine=1+vllm"] == prefill["crowd=1"] > prefill["crowd=5"]
