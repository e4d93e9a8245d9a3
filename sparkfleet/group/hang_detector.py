"""Detects a hung engine. Pure: `/health` returns 200 for minutes after a peer of a group has died."""

from __future__ import annotations

from sparkfleet.specs.timeouts import Timeouts

NAMED_S = 8.0
"""Seconds without a sign of life after which `status` names it: an owner who looks finds the reason within 15 s."""


class HangDetector:
    """Watches an engine's counters over time. A probe for a suspected hang does not count as work.

    Args:
        timeouts: seconds without a move while it has requests (`stuck_s`), and seconds without requests, by its own
            counters, before it has to prove that it takes some (`idle_s`).
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._stuck_s = timeouts.stuck_s
        self._idle_s = timeouts.idle_s
        self._figures: tuple[float, ...] | None = None
        self._busy = False
        self._suspect = False
        self._moved_at: float | None = None
        self._busy_at = 0.0
        self._read_at: float | None = None
        self._answers = True

    def is_suspect(self, now: float, requests: int, figures: tuple[float, ...] | None) -> bool:
        """Takes a reading; True if the engine has to be probed with a request for one token.

        Args:
            now: seconds of any clock that only goes forward.
            requests: number that run or wait in the engine.
            figures: counters of which at least one moves while it works; None if its metrics did not answer.
        """
        moved = figures is not None and figures != self._figures
        rested = self._moved_at is None or now - self._moved_at > self._stuck_s
        began = requests > 0 and not self._busy and not self._suspect and rested
        if self._moved_at is None or moved or began:
            self._moved_at, self._suspect = now, False
        self._answers = figures is not None
        if self._read_at is None or figures is not None:
            self._read_at = now
        if figures is not None:
            if requests and not self._busy:
                self._busy_at = now
            self._figures, self._busy = figures, requests > 0
        limit_s = self._idle_s if figures is not None and not requests else self._stuck_s
        self._suspect = self._suspect or now - self._moved_at >= limit_s
        return self._suspect

    def note_token(self, now: float) -> None:
        """Records that the probe got its token."""
        self._moved_at, self._suspect = now, False

    def doubt(self, now: float) -> str:
        """The reason for which it may hang, in words; "" if it has moved or answered lately, or has nothing to do."""
        if self._moved_at is None or self._read_at is None:
            return ""
        since, what = max(self._moved_at, self._busy_at), "the engine's counters have not moved"
        if not self._answers:
            since, what = self._read_at, "the engine's metrics have not answered"
        if now - since < NAMED_S or (self._answers and not self._busy):
            return ""
        cause = "it hangs, or computes a long prompt" if self._answers else "it hangs"
        return f"{what} for {now - since:.0f} s: {cause}; if a probe gets no token either, it is restarted"
