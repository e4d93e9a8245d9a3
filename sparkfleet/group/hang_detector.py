"""Detects a hung engine. Pure: `/health` returns 200 for minutes after a peer of a group has died."""

from __future__ import annotations

from sparkfleet.specs.timeouts import Timeouts


class Liveness:
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
        if figures is not None:
            self._figures, self._busy = figures, requests > 0
        limit_s = self._idle_s if figures is not None and not requests else self._stuck_s
        self._suspect = self._suspect or now - self._moved_at >= limit_s
        return self._suspect

    def proved(self, now: float) -> None:
        """Records that the probe got its token."""
        self._moved_at, self._suspect = now, False
