"""Corrections of predicted speeds."""

from __future__ import annotations

import pytest

from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.policy.learned_speeds import FARTHEST, LearnedSpeeds
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.routing_table import GroupEntry, GroupSpeed

SPEED = GroupSpeed(prefill_tps=1000, alone_tps=20, together_tps=60, concurrency=4)


def test_speeds_are_learned_within_bounds() -> None:
    learned = LearnedSpeeds()
    for _ in range(100):
        learned.saw_prefill("a", 1.0, 2.0)
        learned.saw_decode("a", 1.0, 1e9)
        learned.saw_answer("m", 1000)
    assert learned.factors("a") == pytest.approx((2.0, FARTHEST), rel=0.01)
    assert learned.answer_tokens("m", 0) == pytest.approx(1000, rel=0.01)
    assert learned.answer_tokens("m", 5) == 5
    learned.saw_prefill("a", 0.0, 1.0)
    learned.keep([], [])
    assert (learned.factors("a"), learned.answer_tokens("m", 0)) == ((1.0, 1.0), 256)


def test_the_first_observations_correct_a_prediction_the_most() -> None:
    learned = LearnedSpeeds()
    steps = [1.0]
    for _ in range(12):
        learned.saw_decode("a", 1.0, 4.0)
        steps.append(learned.factors("a")[1])
    assert steps[1] == pytest.approx(4 ** (1 / 3)), "the prediction counts for two"
    assert steps[3] > 2
    assert steps == sorted(steps)


def test_a_group_without_a_prediction_begins_at_what_others_of_its_model_have_shown() -> None:
    learned = LearnedSpeeds()
    for _ in range(30):
        learned.saw_prefill("a", 1.0, 0.25, "m")
        learned.saw_decode("a", 1.0, 0.25, "m")
    assert learned.factors("b", "m") == pytest.approx(learned.factors("a", "m"), rel=0.01)
    learned.saw_decode("b", 1.0, 1.0, "m")
    assert learned.factors("b", "m")[1] == pytest.approx(0.25 * 4 ** (1 / 3), rel=0.15)
    assert learned.factors("c") == learned.factors("c", "other") == (1.0, 1.0), (
        "predicted, and of another model"
    )
    learned.keep(["a"], [])
    assert learned.factors("b", "m") == (1.0, 1.0)


def test_a_group_begins_at_the_speed_of_its_start_until_traffic_has_shown_another() -> None:
    learned = LearnedSpeeds()
    learned.saw_start("a", 2.0)
    assert learned.factors("a") == pytest.approx((1.0, 0.5)), "twice as fast: half the seconds"
    learned.saw_start("a", 0.5)
    assert learned.factors("a") == pytest.approx((1.0, 2.0)), "the newest start"
    learned.saw_decode("a", 1.0, 1.0)
    assert learned.factors("a")[1] == pytest.approx(2 ** (2 / 3)), "its start counts for two, as a prediction"
    shown = learned.factors("a")
    learned.saw_start("a", 4.0)
    assert learned.factors("a") == shown
    learned.saw_start("b", 1e9)
    assert learned.factors("b") == pytest.approx((1.0, 1 / FARTHEST))


def test_a_group_that_started_faster_than_its_equal_is_asked_first() -> None:
    observed = ObservedGroups()
    groups = [
        GroupEntry(app=app, concurrency=4, speed=SPEED, measured=ratio)
        for app, ratio in (("a", 0.8), ("b", None), ("c", 1.3))
    ]
    observed.follow(groups, ["m"])
    found = observed.forecasts(groups, Requirements(tokens=300, prompt_tokens=100), "m")
    assert [one.group.app for one in found] == ["c", "b", "a"]
    assert found[0].decode_s * 1.3 == pytest.approx(found[1].decode_s)


def test_corrections_belong_to_a_plan() -> None:
    observed, one = ObservedGroups(), GroupEntry(app="a", speed=SPEED)
    observed.follow([one])
    for _ in range(5):
        observed.learned.saw_decode("a", 1.0, 3.0)
    shown = observed.learned.factors("a")
    observed.follow([one.model_copy(update={"measured": 1.1})])
    assert observed.learned.factors("a") == shown, "the same plan: an engine that started again"
    observed.follow([one.model_copy(update={"speed": SPEED.model_copy(update={"alone_tps": 10.0})})])
    assert observed.learned.factors("a") == (1.0, 1.0), "another rung"
