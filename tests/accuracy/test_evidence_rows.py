"""Published rows counted as evidence."""

from __future__ import annotations

from sparkfleet.accuracy.evidence_rows import evidence_in
from sparkfleet.accuracy.rows import case_of
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.published.factors import factors


def case(content: str, tps: float):
    row = {
        "id": f"b{tps:.0f}",
        "source_url_or_repo_path": "github:a/b",
        "nodes": "1",
        "model": "RadixArk/Qwen3.8-27B-NVFP4",
        "quant": "nvfp4",
        "engine": "vllm",
        "tp": "1",
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
