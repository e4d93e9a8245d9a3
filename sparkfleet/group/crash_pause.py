"""Exponential backoff of starts: no pause before the first restart, then twice as long each time."""

from __future__ import annotations

from collections.abc import Iterable

from sparkfleet.specs.timeouts import Timeouts

COUNTS_S = 600.0
"""Age after which a start no longer counts, seconds: a process that ran this long did not end because of its start."""


def pause_s(before: int, timeouts: Timeouts) -> float:
    """The pause after this many recent starts, seconds."""
    return min(timeouts.pause_s * 2.0 ** (before - 1), timeouts.longest_pause_s) if before else 0.0


def of_late(times: Iterable[float], now: float) -> list[float]:
    """Times that still count. Those after `now` do not: the clock was set back."""
    return [at for at in times if now - COUNTS_S < at <= now]
