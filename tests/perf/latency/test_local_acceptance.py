"""Acceptance that was counted on a deployment's own requests, and what follows from it for other depths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.perf.latency.acceptance import CEILING, tokens_per_step
from sparkfleet.perf.latency.local_acceptance import LocalAcceptance, chances_of
from sparkfleet.perf.prediction import Speculation

MTP = Speculation(method="mtp", tokens=3)


def counted(speculation=MTP, **counts) -> LocalAcceptance:
    chances = chances_of(speculation, **counts)
    return LocalAcceptance(
        model="m",
        method=speculation.method,
        draft=speculation.draft,
        tokens=speculation.tokens,
        steps=int(counts["steps"]),
        chances=chances,
    )


def test_positions_give_each_smaller_depth_exactly() -> None:
    """One chance for all positions would give 1.69 tokens for one draft token instead of 1.85."""
    one = counted(steps=100, proposed=300, accepted=150, by_position=(85, 45, 20))
    assert [one.tokens_per_step(k) for k in range(4)] == pytest.approx([1.0, 1.85, 2.3, 2.5])
    assert one.tokens_per_step(4) == pytest.approx(2.5 + 0.2 * 20 / 45)
    alike = counted(steps=100, proposed=300, accepted=150)
    assert alike.tokens_per_step(3) == pytest.approx(2.5)
    assert alike.tokens_per_step(1) == pytest.approx(1.69, abs=0.01)


@given(
    chance=st.floats(0.0, CEILING - 1e-6),
    k=st.integers(1, 8),
    other=st.integers(0, 10),
    steps=st.integers(1, 10**6),
)
def test_without_positions_the_counts_of_one_chance_give_it_back(chance, k, other, steps) -> None:
    wanted = Speculation(method="mtp", tokens=k)
    accepted = steps * (tokens_per_step(chance, k) - 1)
    one = counted(wanted, steps=steps, proposed=steps * k, accepted=accepted)
    assert one.tokens_per_step(other) == pytest.approx(tokens_per_step(chance, other), rel=1e-4)


@given(counts=st.lists(st.integers(0, 100), min_size=3, max_size=3), steps=st.integers(1, 100))
def test_chances_fall_and_are_no_more_than_one_whatever_was_counted(counts, steps) -> None:
    found = chances_of(MTP, steps=steps, proposed=3 * steps, accepted=sum(counts), by_position=counts)
    assert all(0 <= later <= earlier <= 1 for earlier, later in zip((1.0, *found), found, strict=False))


@pytest.mark.parametrize("deep", [1.0, 0.6, 0.25])
def test_a_depth_by_load_counts_each_position_among_the_steps_that_had_it(deep: float) -> None:
    """Of 1,000 steps a part had three draft tokens, the others one."""
    wanted = Speculation(method="mtp", tokens=3, busy=1, busy_from=8)
    positions = (800.0, deep * 500, deep * 300)
    proposed, accepted = 1000 * (3 * deep + 1 - deep), sum(positions)
    one = counted(wanted, steps=1000, proposed=proposed, accepted=accepted, by_position=positions)
    assert one.chances == pytest.approx((0.8, 0.5, 0.3))


def test_of_a_depth_that_hardly_ever_ran_nothing_is_known() -> None:
    wanted = Speculation(method="mtp", tokens=3, busy=1, busy_from=2)
    one = counted(wanted, steps=1000, proposed=1010, accepted=700, by_position=(700.0, 0.0, 0.0))
    assert one.chances == (0.7,)
    by_mean = counted(wanted, steps=1000, proposed=1000, accepted=700)
    assert by_mean.chances == pytest.approx((0.7,))


def test_positions_that_are_not_those_of_the_accepted_tokens_are_left_out() -> None:
    """The page was cut, or the engine counts something else by position."""
    one = counted(steps=100, proposed=300, accepted=150, by_position=(10, 5, 2))
    assert one.chances == counted(steps=100, proposed=300, accepted=150).chances


def test_a_draft_is_the_same_at_every_depth_and_no_other_draft() -> None:
    one = counted(steps=100, proposed=300, accepted=100)
    assert one.of(Speculation(method="mtp", tokens=1))
    assert one.of(Speculation(method="mtp", tokens=5, topk=4))
    assert not one.of(Speculation(method="eagle3", tokens=3))
    assert not one.of(Speculation(method="mtp", tokens=3, draft="org/another"))


def test_nothing_accepted_is_one_token_at_every_depth() -> None:
    one = counted(steps=100, proposed=300, accepted=0, by_position=(0, 0, 0))
    assert [one.tokens_per_step(k) for k in (0, 1, 3, 9)] == [1.0, 1.0, 1.0, 1.0]
