"""Rows of measurements: packaged ones, and one with the usual cells."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from sparkfleet.accuracy.accuracy import predict
from sparkfleet.accuracy.models import Declined
from sparkfleet.accuracy.rows import case_of, read_rows
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.perf.prediction import Band


def row(**given: str) -> dict[str, str]:
    text = {"nodes": "1", "tp": "1", "concurrency": "1", "model": "Qwen/Qwen3.6-27B-FP8", "quant": "fp8"}
    return text | {"engine": "vllm", "spec_method": "none", "prompt_tokens": "1024"} | given


@cache
def packaged() -> list[dict[str, str]]:
    return read_rows(Path(str(files("sparkfleet.knowledge.measurements").joinpath("benchmarks.csv"))))


def rates(cells: dict[str, str]) -> dict[str, Band | None] | None:
    """Predictions, or None if the row is declined."""
    try:
        return predict(case_of(cells, architectures()), factors())
    except Declined:
        return None
