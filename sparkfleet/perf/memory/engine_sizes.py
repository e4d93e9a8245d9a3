"""Engine sizes of a checkpoint that its memory depends on."""

from __future__ import annotations

import math
from typing import Literal

from sparkfleet.perf.engine_config import EngineConfig
from sparkfleet.perf.model_shape import ModelShape

WHOLE_PROMPT = 100_000_000
"""Tokens that are prefilled at a time if chunks are switched off; no prompt is longer."""


class MemoryConfig(EngineConfig):
    """Engine configuration of one rank with the requests that it has memory for."""

    engine: str = "vllm"
    context: int = 8192
    """Longest prompt + completion, tokens."""
    concurrency: int = 1
    """Requests of that length at once."""
    kv_pool: float | None = None
    """Bytes of KV per rank if it is pinned; context × concurrency does not count then."""
    draft: ModelShape | None = None
    """The separate drafter, if its shapes are known."""
    draft_size: float | None = None
    """Bytes of the drafter's weights, if they are known and its shapes are not."""
    vision: bool = False
    kv_disk: bool = False
    """KV is kept on the disk, too, and goes there and back through memory."""
    device: Literal["cuda", "cpu"] = "cuda"


def fullest_share(things: int, ranks: int) -> float:
    """Share of the fullest of so many ranks, at least one whole."""
    return math.ceil(things / ranks) / things
