"""The pause before something that has just ended is started again: none at first, then twice as long each time."""

from __future__ import annotations

from collections.abc import Iterable

FIRST_S = 1.0
LONGEST_S = 60.0
"""An engine takes about that long to load, or more: to wait longer would bring it back noticeably later."""
COUNTS_S = 600.0
"""A start that began longer ago no longer counts: what lived that long did not end because of it."""


def pause_s(before: int) -> float:
    """The pause after so many starts of late, seconds."""
    return min(FIRST_S * 2.0 ** (before - 1), LONGEST_S) if before else 0.0


def of_late(times: Iterable[float], now: float) -> list[float]:
    """Times that still count. Those after `now` do not: the clock was set back."""
    return [at for at in times if now - COUNTS_S < at <= now]
