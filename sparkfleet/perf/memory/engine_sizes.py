"""Engine sizes of a checkpoint that its memory depends on."""

from __future__ import annotations

import math
from typing import Literal

from sparkfleet.perf.latency.roofline_terms import CHUNK
from sparkfleet.perf.model_shape import ModelShape
from sparkfleet.values import Value

WHOLE_PROMPT = 100_000_000
"""Tokens that are prefilled at a time if chunks are switched off; no prompt is longer."""


class Run(Value):
    """Engine, split, sizes and drafts of one rank."""

    engine: str = "vllm"
    tp: int = 1
    pp: int = 1
    ep: int = 1
    context: int = 8192
    """Longest prompt + completion, tokens."""
    concurrency: int = 1
    """Requests of that length at once."""
    kv_bytes: float = 1.0
    """Bytes per cached element."""
    kv_pool: float | None = None
    """Bytes of KV per rank if it is pinned; context × concurrency does not count then."""
    method: str = "none"
    k: int = 0
    draft: ModelShape | None = None
    """The separate drafter, if its shapes are known."""
    chunk: int = CHUNK
    eager: bool = False
    vision: bool = False
    device: Literal["cuda", "cpu"] = "cuda"


def fullest_share(things: int, ranks: int) -> float:
    """Share of the fullest of so many ranks, at least one whole."""
    return math.ceil(things / ranks) / things
