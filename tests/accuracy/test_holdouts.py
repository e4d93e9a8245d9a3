"""Decisions that are made with less evidence than there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from decision_values import one, rows_file

from sparkfleet.accuracy.decision_report import DecisionReport
from sparkfleet.accuracy.decisions import published_cases
from sparkfleet.accuracy.holdouts import Holdout, holdout_table, holdouts
from sparkfleet.knowledge.published.evidence import evidence


def test_decisions_with_less_evidence_are_compared_with_all_that_was_published(tmp_path: Path) -> None:
    rows = [
        "b1,github:a/b,1,1,1,Qwen/Qwen3.6-27B-FP8,fp8,vllm,none,,1024,8",
        "b2,github:c/d,1,1,1,Qwen/Qwen3.6-27B-FP8,fp8,sglang,nextn,5,1024,22.6",
        "b3,github:a/b,1,1,1,Qwen/Qwen3.6-27B-FP8,fp8,vllm,mtp,3,1024,18",
    ]
    file = rows_file(tmp_path, rows)
    whole = evidence()
    rows_left, sources_left, author_left, family_left = holdouts(published_cases(file), rounds=2)
    assert evidence() is whole, "what was left out comes back"
    assert (len(rows_left.report.decisions), len(sources_left.report.decisions)) == (2, 2)
    (found,) = author_left.report.decisions
    assert (found.best, found.best_tps) == ("sglang · mtp · fp8", 22.6)
    assert found.chosen == "vllm · mtp · fp8", "only a/b counts as evidence"
    assert found.regret == pytest.approx(1 - 18 / 22.6)
    assert len(family_left.report.decisions) == 1


def test_summaries_of_decisions_with_less_evidence_are_one_line_each() -> None:
    report = DecisionReport(decisions=(one(published_tps=15.0), one(published_tps=None, ran=False)))
    (line,) = holdout_table([Holdout("half of the rows", report)]).splitlines()[2:]
    assert line == "| half of the rows | 2 | 31 % | 37 % | 50 % | 0 |"
