"""Published rows counted as evidence."""

from __future__ import annotations

import pytest

from sparkfleet.accuracy.evidence_rows import doublings_in, evidence_in
from sparkfleet.accuracy.rows import case_of
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.published.factors import factors


def case(content: str, tps: float, nodes: int = 1, source: str = "github:a/b"):
    row = {
        "id": f"b{tps:.0f}",
        "source_url_or_repo_path": source,
        "nodes": f"{nodes}",
        "model": "RadixArk/Qwen3.8-27B-NVFP4",
        "quant": "nvfp4",
        "engine": "vllm",
        "tp": f"{nodes}",
        "spec_method": "dflash2",
        "spec_tokens": "8",
        "prompt_tokens": "512",
        "concurrency": "1",
        "decode_tps_per_request": f"{tps}",
        "notes": content,
    }
    return case_of(row, architectures())


def test_a_text_that_every_drafter_guesses_is_no_rate_of_other_texts() -> None:
    (found,) = evidence_in([case("structured", 67.0)], factors())
    assert (found.rows, found.alone, found.off_alone, found.busy) == (1, None, None, 0)
    (both,) = evidence_in([case("structured", 67.0), case("code", 40.0)], factors())
    assert (both.rows, both.alone) == (2, 40.0)
    assert both.off_alone is not None


def test_twice_the_nodes_count_if_one_source_ran_both() -> None:
    one, two = case("code", 40.0), case("code", 60.0, nodes=2)
    ((run, gain),) = doublings_in([one, two], factors())
    assert (run.nodes, run.alone) == (1, 40.0)
    ((_, twice),) = doublings_in([one, case("code", 120.0, nodes=2)], factors())
    assert twice == pytest.approx(2 * gain, rel=0.01)
    assert doublings_in([one, case("code", 60.0, nodes=2, source="github:c/d")], factors()) == ()
    assert doublings_in([one, case("code", 60.0, nodes=4)], factors()) == ()
