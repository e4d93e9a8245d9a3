"""Rows of measurements, and decisions, for the tests of `accuracy`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparkfleet.accuracy.decision_report import ScoredDecision

HEADER = (
    "id,source_url_or_repo_path,nodes,tp,concurrency,model,quant,engine,spec_method,spec_tokens,prompt_tokens,"
    "decode_tps_per_request"
)


def rows_file(directory: Path, rows: Sequence[str]) -> Path:
    """A file with these rows of measurements."""
    file = directory / "rows.csv"
    file.write_text("\n".join([HEADER, *rows]) + "\n")
    return file


def one(**given: object) -> ScoredDecision:
    """A decision with a regret of a quarter, but for what is given."""
    fields = {
        "model": "m",
        "nodes": 1,
        "objective": "interactive",
        "concurrency": 1,
        "configurations": 3,
        "best": "vllm · mtp · fp8",
        "best_tps": 20.0,
        "chosen": "vllm · none · fp8",
        "groups": 1,
        "published_tps": 15.0,
        "ran": True,
        "predicted_tps": 18.0,
    }
    return ScoredDecision.model_validate(fields | given)
