"""Regret of the plan's choices: `sparkfleet accuracy --decisions`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from decision_values import rows_file

from sparkfleet.accuracy.decision_report import DecisionReport
from sparkfleet.accuracy.decisions import _known, decide, published_cases, scored_unseen
from sparkfleet.accuracy.published import decisions_in
from sparkfleet.accuracy.rows import cases_of, read_rows
from sparkfleet.perf.weight_formats import format_of

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("decisions_script", ROOT / "scripts" / "decisions.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


def test_published_rows_become_decisions(tmp_path: Path) -> None:
    rows = [
        "b1,github:a/b,1,1,1,Qwen/Qwen3.6-27B-FP8,fp8,vllm,none,,1024,8",
        "b2,github:a/b,1,1,1,Qwen/Qwen3.6-27B-FP8,fp8,sglang,nextn,5,1024,22.6",
        "b3,github:a/b,1,1,1,Qwen/Qwen3.6-27B-FP8,fp8,vllm,mtp,3,1024,18",
    ]
    file = rows_file(tmp_path, rows)
    (found,) = decide(published_cases(file)).decisions
    assert (found.best, found.best_tps) == ("sglang · mtp · fp8", 22.6)
    assert found.chosen
    assert found.checkpoint == "Qwen/Qwen3.6-27B-FP8 fp8"
    assert found.regret is not None


def test_the_page_has_the_table_in_its_place() -> None:
    page = f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n"
    assert script.with_table(page, "| new |") == f"before\n{script.BEGIN}\n\n| new |\n\n{script.END}\nafter\n"
    assert script.BEGIN in script.PAGE.read_text()


def test_the_table_with_less_evidence_can_be_left_as_it_is() -> None:
    page = script.with_table("before\n", "| with less |\n\n| decisions |")
    assert script.held_out(page) == "| with less |"
    assert script.held_out(script.PAGE.read_text()).startswith("| left out of the evidence |")


@pytest.mark.full  # scripts/check, which is for every change, leaves that table out
def test_the_page_is_what_would_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["decisions.py", "--check"])
    assert script.main() == 0


def test_a_speed_that_no_spark_can_reach_is_not_the_best_published(tmp_path: Path) -> None:
    """51 tok/s without drafts of 10 billion active parameters in NVFP4 need 500 GB/s."""
    rows = [
        "b1,field report 004,1,1,1,Qwen3.5-122B-A10B,nvfp4,vllm,none,,1024,51",
        "b2,github:a/b,1,1,1,Qwen3.5-122B-A10B,nvfp4,vllm,mtp,2,1024,30",
        "b3,github:a/b,1,1,1,Qwen3.5-122B-A10B,nvfp4,vllm,none,,1024,16",
        "b4,github:a/b,1,1,1,Qwen3.5-122B-A10B,nvfp4,sglang,none,,1024,15",
    ]
    file = rows_file(tmp_path, rows)
    (found,) = decide(published_cases(file)).decisions
    assert (found.best, found.best_tps) == ("vllm · mtp · nvfp4", 30.0)


def test_a_mixture_is_planned_with_its_own_bits_and_evidence(tmp_path: Path) -> None:
    rows = [
        f"b{k},github:a/b,1,1,1,Intel/Qwen3.5-122B-A10B-int4-AutoRound,int4+fp8 hybrid,vllm,dflash,{k},1024,{speed}"
        for k, speed in ((5, 44), (8, 51), (12, 59))
    ]
    file = rows_file(tmp_path, rows)
    (found,) = decide(published_cases(file)).decisions
    assert found.best == "vllm · dflash · int4-int8"
    assert found.chosen in (found.best, "vllm · mtp · int4-int8")  # worth the same to 2 %
    known = _known("Intel/Qwen3.5-122B-A10B-int4-AutoRound", "int4-int8")
    assert format_of(known) == "int4-int8"


def test_a_given_format_leaves_the_checkpoints_of_other_formats_out(tmp_path: Path) -> None:
    """NVFP4 reads half the bytes of FP8, so it is chosen unless the deployment has named the checkpoint."""
    rows = [
        "b1,github:a/b,1,1,1,Qwen/Qwen3.6-27B-FP8,fp8,vllm,mtp,3,1024,40",
        "b2,github:a/b,1,1,1,Qwen/Qwen3.6-27B-FP8,fp8,vllm,none,,1024,8",
        "b3,github:a/b,1,1,1,Qwen/Qwen3.6-27B,nvfp4,vllm,none,,1024,12",
    ]
    file = rows_file(tmp_path, rows)
    (asked,) = decisions_in(cases_of(read_rows(file)))
    assert scored_unseen(asked).checkpoint.endswith(" nvfp4")
    assert scored_unseen(asked, given=True).checkpoint == "Qwen/Qwen3.6-27B-FP8 fp8"


def test_a_name_that_hides_its_format_is_planned_in_that_of_its_row() -> None:
    known = _known("sfxnz/DeepSeek-V4.1-Flash-EXL3", "fp8")
    assert not isinstance(known, str)
    assert format_of(known) == "fp8"


def test_a_choice_that_only_a_sibling_published_has_the_siblings_speed(tmp_path: Path) -> None:
    """MTP in NVFP4 is published for a fine-tune of equal shapes only: its rate counts, not 0.7 of a prediction."""
    rows = [
        "b1,github:a/b,1,1,1,nvidia/Qwen3.6-27B-NVFP4,nvfp4,vllm,none,,1024,8",
        "b2,github:a/c,1,1,1,nvidia/Qwen3.6-27B-NVFP4,nvfp4,vllm,none,,1024,9",
        "b3,github:a/b,1,1,1,nvidia/Qwen3.6-27B-NVFP4,nvfp4,sglang,none,,1024,8.5",
        "b4,github:a/b,1,1,1,nvidia/Qwen3.6-27B-NVFP4,nvfp4,sglang,nextn,3,1024,40",
    ]
    file = rows_file(tmp_path, rows)
    (alone,) = decide(published_cases(file)).decisions
    assert (alone.chosen, alone.published_tps, alone.unproven) == ("vllm · mtp · nvfp4", None, True)
    sibling = "b5,github:a/b,1,1,1,somebody/Qwen3.6-27B-tuned,nvfp4,vllm,mtp,3,1024,30"
    rows_file(tmp_path, [*rows, sibling])
    (found,) = decide(published_cases(file)).decisions
    assert (found.published_tps, found.by_sibling, found.unproven) == (30, True, False)
    assert found.regret == pytest.approx(0.25)
    assert "30 (a model of its shapes)" in DecisionReport(decisions=(found,)).text()
