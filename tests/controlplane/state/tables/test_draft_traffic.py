"""Setups and counts of drafts."""

import pytest
from control_values import plan

from sparkfleet.controlplane.state.tables.draft_traffic import DraftCounts, DraftSetup, draft_setup_of
from sparkfleet.perf.prediction import Speculation


def candidate(speculation, engine="vllm"):
    return plan(speculation=speculation, engine=engine).groups[0].choice.candidate


def test_a_setup_is_the_draft_with_its_depths_and_the_engine():
    wanted = Speculation(method="eagle3", tokens=3, draft="o/d", busy=2, busy_from=8)
    assert draft_setup_of(candidate(wanted)) == DraftSetup(
        model="builtin:tiny", engine="vllm", speculation=wanted
    )


@pytest.mark.parametrize(
    ("engine", "wanted"),
    [
        ("vllm", Speculation()),
        ("vllm", Speculation(method="ngram", tokens=3)),
        ("sglang", Speculation(method="nextn", tokens=3, busy=1, busy_from=8)),
    ],
)
def test_steps_that_are_not_all_counted_are_none(engine, wanted):
    assert draft_setup_of(candidate(wanted, engine)) is None


def test_counters_that_fell_are_those_of_another_engine():
    before = DraftCounts(steps=10, proposed=30, accepted=12, by_position=(8, 3, 1))
    later = DraftCounts(steps=14, proposed=42, accepted=17, by_position=(11, 4, 2))
    assert later.since(before) == DraftCounts(steps=4, proposed=12, accepted=5, by_position=(3, 1, 1))
    assert before.since(later) is None
    assert DraftCounts(steps=20, proposed=60, accepted=11, by_position=(8, 3, 0)).since(before) is None


def test_a_position_that_was_not_there_counted_nothing():
    first = DraftCounts(steps=1, proposed=3, accepted=1, by_position=(1,))
    later = DraftCounts(steps=2, proposed=6, accepted=3, by_position=(2, 1))
    assert later.since(first).by_position == (1, 1)
    assert first.plus(later).by_position == (3, 1)
