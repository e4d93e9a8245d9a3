"""Regret of decisions, and their table."""

from __future__ import annotations

import json

import pytest
from decision_values import one

from sparkfleet.accuracy.decision_report import DecisionReport


def test_regret_is_the_distance_to_the_best() -> None:
    assert one().regret == pytest.approx(0.25)
    assert one(published_tps=22.0).regret == 0.0
    assert not one().unproven


def test_an_unpublished_choice_counts_seven_tenths_of_its_prediction() -> None:
    assert one(published_tps=None).regret == pytest.approx(1 - 0.7 * 18 / 20)
    assert one(published_tps=None, ran=False).unproven
    assert not one(published_tps=None).unproven, "somebody ran it, under another load"


def test_a_decision_without_a_choice_is_no_regret_and_is_counted() -> None:
    refused = one(chosen="", published_tps=None, refused=("m fp8: too large",))
    unknown = one(chosen="", published_tps=None, unknown=("m fp8: no config is known by that name",))
    report = DecisionReport(decisions=(one(), refused, unknown))
    assert refused.regret is None
    assert (report.summary["refused"], report.summary["unknown"], report.summary["decisions"]) == (1, 1, 3)
    assert report.summary["median_regret"] == 0.25
    assert "too large" in report.markdown()
    body = json.loads(report.json())
    assert (body["version"], len(body["table"]), body["table"][0]["regret"]) == (1, 3, 0.25)


def test_no_decision_has_its_reason_in_words() -> None:
    for shown in (DecisionReport(decisions=()).text(), DecisionReport(decisions=()).markdown()):
        assert "0 decisions: no model has three published configurations" in shown
        assert "–" not in shown


def test_decisions_without_the_family_are_a_table_of_their_own() -> None:
    report = DecisionReport(decisions=(one(),), unseen=(one(published_tps=10.0),))
    parsed = json.loads(report.json())
    assert parsed["median_regret"] == pytest.approx(0.25)
    assert parsed["family_left_out"]["median_regret"] == pytest.approx(0.5)
    for shown in (report.text(), report.markdown()):
        first, _, second = shown.partition("made as if nothing of the model's family")
        assert "25 % in the" in first
        assert "50 % in the" in second
    assert "family_left_out" not in json.loads(DecisionReport(decisions=(one(),)).json())
