"""The choice of a group, and published harm of other routers."""

from __future__ import annotations

import math
import random
from collections import Counter
from statistics import fmean
from typing import Any

import pytest
from fleet_simulation import FleetSimulation, SimulatedRequest, arrivals, least_loaded, ours, round_robin
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.policy.forecast import GroupLoad, forecasts, reason_of
from sparkfleet.gateway.policy.prefix_cache import PrefixCaches, room_of
from sparkfleet.gateway.policy.speeds import decode_tps
from sparkfleet.gateway.request.prefix_blocks import ENDS, length_of, prefix_of
from sparkfleet.gateway.request.requirements import Requirements, can, needs_of, too_small
from sparkfleet.gateway.routing_table import GroupEntry, GroupSpeed


def group(
    app: str, *, prefill: float = 2000, alone: float = 40, together: float = 160, **more: Any
) -> GroupEntry:
    speed = GroupSpeed(prefill_tps=prefill, alone_tps=alone, together_tps=together, concurrency=8)
    return GroupEntry.model_validate(
        {"app": app, "concurrency": 8, "context": 131072, "speed": speed, **more}
    )


def asked(prompt: int, answer: int = 0, prefix: tuple[int, ...] = ()) -> Requirements:
    return Requirements(tokens=prompt + answer, prompt_tokens=prompt, prefix=prefix, characters=prompt * 4)


def best(*loads: GroupLoad, needs: Requirements, answer: float = 200) -> str:
    return forecasts(loads, needs, answer)[0].group.app


# Predicted finish


def test_a_long_prompt_goes_where_prompts_are_read_fast_and_a_long_answer_where_they_are_written_fast() -> (
    None
):
    reads, writes = GroupLoad(group("reads", prefill=4000, alone=20)), GroupLoad(group("writes", prefill=500))
    assert best(reads, writes, needs=asked(30_000), answer=50) == "reads"
    assert best(reads, writes, needs=asked(100), answer=1000) == "writes"


def test_load_is_seconds_not_a_number_of_requests() -> None:
    quick, slow = group("quick", prefill=8000, alone=80, together=400), group("slow", prefill=800, alone=8)
    assert best(GroupLoad(quick, held=4), GroupLoad(slow), needs=asked(1000)) == "quick"
    assert best(GroupLoad(quick, held=80), GroupLoad(slow, held=0), needs=asked(10), answer=20) == "slow"


def test_prompts_ahead_are_waited_for() -> None:
    one, other = group("one"), group("other")
    ahead, behind = forecasts(
        [GroupLoad(one, held=1, pending=20_000), GroupLoad(other, held=1)], asked(100), 10
    )
    assert (ahead.group.app, behind.wait_s) == ("other", 10.0)


def test_a_warm_prefix_is_waited_for_as_long_as_it_saves() -> None:
    """16,000 cached tokens save 8 s of prefill."""
    warm, cold = group("warm"), group("cold")
    needs = asked(16_000)
    held = GroupLoad(warm, held=1, warm=1.0)
    assert best(held._replace(pending=15_000), GroupLoad(cold, held=1), needs=needs) == "warm"
    assert best(held._replace(pending=17_000), GroupLoad(cold, held=1), needs=needs) == "cold"


def test_a_group_that_failed_lately_comes_behind_one_whose_capabilities_are_not_known() -> None:
    failed = GroupLoad(group("failed", vision=True), failed=True)
    unknown = GroupLoad(group("unknown", vision=None))
    needs = Requirements(vision=True, prompt_tokens=10)
    assert best(failed, unknown, needs=needs) == "unknown"
    assert best(failed._replace(failed=False), unknown, needs=needs) == "failed"


def test_what_is_learned_counts() -> None:
    one, other = group("one"), group("other")
    assert best(GroupLoad(one, decode_factor=2.0), GroupLoad(other), needs=asked(10)) == "other"
    assert best(GroupLoad(one), GroupLoad(other, prefill_factor=3.0), needs=asked(9000)) == "one"


def test_context_that_may_not_suffice_comes_last_and_one_that_cannot_is_named() -> None:
    small, large = group("small", context=8192, alone=400), group("large")
    assert best(GroupLoad(small), GroupLoad(large), needs=asked(9000)) == "large"
    assert best(GroupLoad(small), GroupLoad(large), needs=asked(500)) == "small"
    needs = needs_of({"messages": [{"role": "user", "content": "word " * 400_000}]})
    named = too_small([small, large], needs)
    assert named is not None
    assert named.app == "large"
    assert too_small([small, large.model_copy(update={"context": None})], needs) is None
    assert too_small([small, large], needs_of({"prompt": "x" * 300_000})) is None  # it may be 25,000 tokens


def test_reasons() -> None:
    one, other = group("one"), group("other")

    def why(*loads: GroupLoad) -> str:
        return reason_of(forecasts(loads, asked(4000), 100))

    assert why(GroupLoad(one)) == "the only group that can serve it"
    assert why(GroupLoad(one), GroupLoad(other, held=3)) == "finishes first"
    assert "4000 tokens of the prompt are probably cached" in why(GroupLoad(one, warm=1.0), GroupLoad(other))
    assert "idle for the longest" in why(GroupLoad(one), GroupLoad(other))
    small = group("small", context=1000, alone=400)
    assert "known to suffice" in why(GroupLoad(one), GroupLoad(small))


@given(st.integers(0, 100), st.integers(1, 64))
def test_more_load_is_never_faster(held: int, slots: int) -> None:
    for one in (group("one"), group("one", speed=None), group("one", together=0.0)):
        assert 0 < decode_tps(one, held + 1, slots) <= decode_tps(one, held, slots) <= 40


def test_the_curve_meets_its_prediction() -> None:
    one = group("one", alone=40, together=160)
    assert decode_tps(one, 0, 8) == pytest.approx(40)
    assert decode_tps(one, 7, 8) * 8 == pytest.approx(160)


def test_those_beyond_the_slots_wait_and_slow_nobody_down() -> None:
    """With a plan for one request both were counted: the second behind it was told 41 s instead of 15."""
    alone = group("one", alone=50, together=0.0, concurrency=1)
    totals = [forecasts([GroupLoad(alone, held=held)], asked(0), 250)[0].total_s for held in (0, 1, 2)]
    assert totals == pytest.approx([5, 10, 15])


# Prefixes


def test_conversations_share_the_blocks_that_they_share() -> None:
    system = "You are a careful assistant. " * 100
    first = needs_of(
        {"messages": [{"role": "system", "content": system}, {"role": "user", "content": "a" * 3000}]}
    )
    other = needs_of(
        {"messages": [{"role": "system", "content": system}, {"role": "user", "content": "b" * 3000}]}
    )
    shared = sum(x == y for x, y in zip(first.prefix, other.prefix, strict=True))
    assert shared == len(system) // 512
    assert first.prefix[shared] != other.prefix[shared]
    turn = needs_of(
        {
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": "a" * 3000},
                {"role": "assistant", "content": "c" * 900},
            ]
        }
    )
    assert turn.prefix[: len(first.prefix)] == first.prefix
    anthropic = needs_of({"messages": [{"role": "user", "content": "a" * 3000}], "system": system})
    assert anthropic.prefix[:shared] == first.prefix[:shared]


@given(st.text(max_size=3000), st.text(max_size=3000))
def test_equal_beginnings_have_equal_names(start: str, rest: str) -> None:
    whole, part = prefix_of([start + rest]), prefix_of([start])
    assert whole[: len(part)] == part
    assert len(whole) == sum(end <= len(start + rest) for end in ENDS)


def test_a_cache_forgets_what_was_used_least_recently_and_the_end_before_the_beginning() -> None:
    one = group("one", context=1024, concurrency=1)
    room = room_of(one) // 512
    caches, old, new = PrefixCaches(), tuple(range(1, 9)), tuple(range(101, 106))
    assert room == 8
    caches.add(one, old)
    assert caches.blocks("one", old) == 8
    caches.add(one, new)
    assert (caches.blocks("one", new), caches.blocks("one", old)) == (5, 3)
    caches.forget("one")
    assert caches.blocks("one", new) == 0
    assert (length_of(old, 8192), length_of(old, 0), length_of((), 7)) == (8192, 8 * 512, 7)


def test_one_prefix_in_all_prompts_does_no_harm() -> None:
    """sgl-project/sglang#21199: 9,800 tokens of which 2,548 are common, 430 tokens of answer, 3 requests a second, 36 at
    once on two workers. A router with a threshold had 2.6 times the TTFT of round robin."""
    groups = [
        group("a", prefill=12_000, alone=60, together=1000, concurrency=36),
        group("b", prefill=12_000, alone=60, together=1000, concurrency=36),
    ]
    common = tuple(range(1, 27))
    requests = [
        SimulatedRequest(at, asked(9800, 430, (*common, *range(1000 * n, 1000 * n + 74))), 430)
        for n, at in enumerate(arrivals(3.0, 400), start=1)
    ]
    mine, turns = (
        FleetSimulation(groups, ours).run(requests),
        FleetSimulation(groups, round_robin()).run(requests),
    )
    assert mine.ttft_s <= turns.ttft_s * 1.01
    assert mine.mean_s <= turns.mean_s * 1.01
    assert min(Counter(mine.sent).values()) >= 150


def test_conversations_stay_where_they_are_warm() -> None:
    groups, drawn = [group("a"), group("b")], random.Random(3)
    requests, place = [], {}
    for turn, at in enumerate(arrivals(0.25, 300, seed=2)):
        talk = drawn.randrange(12)
        blocks = place[talk] = place.get(talk, 4) + 2
        prefix = tuple(10_000 * (talk + 1) + index for index in range(min(blocks, 100)))
        requests.append(SimulatedRequest(at, asked(len(prefix) * 128, 100, prefix), 100 + turn % 3))
    found = FleetSimulation(groups, ours).run(requests)
    turns = FleetSimulation(groups, round_robin()).run(requests)
    alone = FleetSimulation([group("a", concurrency=100)], ours).run(requests)
    assert fmean(found.hits) > fmean(alone.hits) - 0.05  # of one engine, which has had everything
    assert fmean(turns.hits) < fmean(alone.hits) - 0.05
    assert found.ttft_s < turns.ttft_s


def test_two_unlike_groups_are_used_for_what_they_are_good_at() -> None:
    """A slow one with vision and a long context, a quick one with 8K, against the least loaded that suffices: requests that
    both can serve finish 1.3 times sooner, and no other one later."""
    groups = [
        group("careful", prefill=900, alone=14, together=60, context=131072, vision=True),
        group("quick", prefill=4000, alone=45, together=220, context=8192, vision=False, concurrency=16),
    ]
    drawn, requests = random.Random(5), []
    for at in arrivals(0.3, 600, seed=4):
        kind = drawn.random()
        if kind < 0.8:
            needs, answer = asked(drawn.randrange(100, 3000), 300), drawn.randrange(50, 300)
        elif kind < 0.9:
            needs, answer = asked(drawn.randrange(9000, 16_000), 300), drawn.randrange(50, 200)
        else:
            needs, answer = asked(800, 200)._replace(vision=True), 150
        requests.append(SimulatedRequest(at, needs, answer))

    def fits(one: GroupEntry, needs: Requirements) -> bool:
        return can(one, needs) and needs.tokens <= (one.context or 0)

    def able_ours(observed: ObservedGroups, there: Any, one: SimulatedRequest) -> Any:
        return ours(observed, [g for g in there if can(g, one.needs)], one)

    mine = FleetSimulation(groups, able_ours).run(requests)
    theirs = FleetSimulation(groups, least_loaded(fits)).run(requests)
    assert all(
        fits(next(g for g in groups if g.app == app), one.needs)
        for app, one in zip(mine.sent, requests, strict=True)
    )
    short = [at for at, one in enumerate(requests) if all(fits(each, one.needs) for each in groups)]
    assert fmean(theirs.durations[at] for at in short) / fmean(mine.durations[at] for at in short) >= 1.3
    assert mine.mean_s < theirs.mean_s


def test_times_are_finite() -> None:
    for load in (
        GroupLoad(GroupEntry(app="a")),
        GroupLoad(group("a"), held=10**6, pending=10**9, failed=True),
    ):
        (found,) = forecasts([load], asked(10**6), 1e6)
        assert math.isfinite(found.total_s)
