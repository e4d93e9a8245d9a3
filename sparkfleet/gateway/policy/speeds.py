"""Speed of a group under load, from its plan's prediction. Pure."""

from __future__ import annotations

import math
from functools import lru_cache

from sparkfleet.gateway.routing_table import GroupEntry

PREFILL_TPS = 1000.0
"""Tokens of prompts per second of a group of which nothing is known."""
DECODE_TPS = 20.0


def prefill_tps(group: GroupEntry) -> float:
    """Tokens of prompts per second."""
    return group.speed.prefill_tps if group.speed is not None else PREFILL_TPS


def decode_tps(group: GroupEntry, held: int, slots: int) -> float:
    """Tokens per second of one further request, beside `held` others.

    The prediction has one request alone, and all together at one concurrency; between them the sum grows by a power of the
    number of requests, as it does for decoding that is bound by memory and then by compute. Without a prediction each
    request takes an equal share of what a slot costs.
    """
    speed = group.speed
    if speed is None:
        return DECODE_TPS / (1 + held / slots)
    together = held + 1 if held < slots else slots  # the others wait, which is counted as that
    if speed.concurrency <= 1 or speed.together_tps <= 0:
        return speed.alone_tps / (1 + (together - 1) / slots)
    return _each(speed.alone_tps, speed.together_tps, speed.concurrency, together)


@lru_cache(maxsize=4096)
def _each(alone: float, together: float, at: int, requests: int) -> float:
    power = math.log(together / alone) / math.log(at)
    return float(alone * requests ** (min(1.0, max(0.0, power)) - 1))
