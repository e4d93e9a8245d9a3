"""Published rows as rates with their checkpoint, text and load."""

from __future__ import annotations

from statistics import mean

import pytest

from sparkfleet.accuracy.figure_rows import drawn_errors, figures_in
from sparkfleet.accuracy.rows import case_of
from sparkfleet.knowledge.data_file import packaged
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.knowledge.published.figures import FILE, read_figures


def case(content: str, tps: float, requests: int = 1, model: str = "RadixArk/Qwen3.8-27B-NVFP4"):
    row = {
        "id": f"b{tps:.0f}",
        "source_url_or_repo_path": "github:a/b",
        "nodes": "1",
        "model": model,
        "quant": "nvfp4",
        "engine": "vllm",
        "tp": "1",
        "spec_method": "dflash2",
        "spec_tokens": "8",
        "prompt_tokens": "512",
        "concurrency": f"{requests}",
        "decode_tps_aggregate": f"{tps}",
        "notes": content,
    }
    return case_of(row, architectures())


def test_rows_of_one_source_checkpoint_text_and_load_are_one_rate() -> None:
    cases = [case("code", 40.0), case("code", 50.0), case("prose", 20.0), case("code", 150.0, 8)]
    found = {(one.content, one.requests): one for one in figures_in(cases, factors())}
    assert {key: (one.tps, one.rows) for key, one in found.items()} == {
        ("code", 1): (45.0, 2),
        ("prose", 1): (20.0, 1),
        ("code", 8): (150.0, 1),
    }
    assert found["code", 1].expected > found["prose", 1].expected > 0
    assert found["code", 1].source == "a/b"


def test_other_checkpoints_are_apart() -> None:
    found = figures_in([case("code", 40.0), case("code", 50.0, model="nvidia/Qwen3.8-27B-NVFP4")], factors())
    assert {one.checkpoint for one in found} == {"RadixArk/Qwen3.8-27B-NVFP4", "nvidia/Qwen3.8-27B-NVFP4"}


def test_rates_of_other_sources_bring_a_prediction_no_nearer() -> None:
    """So plans show the prediction as it is, beside what is published (decision 174)."""
    one, *_ = figures_in([case("code", 40.0)], factors())
    apart = [
        one.model_copy(update={"source": name, "tps": tps, "expected": 40.0})
        for name, tps in (("a", 80.0), ("b", 40.0))
    ]
    assert [(round(each.alone, 3), round(each.drawn, 3)) for each in drawn_errors(apart)] == [
        (0.693, 0.693),
        (0.0, 0.347),
    ]
    assert drawn_errors(apart[:1]) == ()
    found = [each for each in drawn_errors(read_figures(packaged(FILE))) if each.drafted]
    assert len(found) > 100
    assert mean(each.drawn for each in found) > mean(each.alone for each in found)


@pytest.mark.parametrize(("content", "requests"), [("structured", 1), ("code", 2)])
def test_what_is_no_evidence_has_no_rate(content: str, requests: int) -> None:
    """Texts that every drafter guesses, and two or three requests at once, which no decision is about."""
    assert figures_in([case(content, 60.0, requests)], factors()) == ()
