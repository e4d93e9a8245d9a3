"""Detects a hung engine. Pure: `/health` returns 200 for minutes after a peer of a group has died."""

from __future__ import annotations

from sparkfleet.specs.timeouts import Timeouts


class Liveness:
    """Watches figures of an engine over time. What is asked of it because it is suspect does not count as work.

    Args:
        timeouts: how long nothing may move while it has work in hand (`stuck_s`), and how long it may have none, by its own
            figures, before it has to show that it would take some (`idle_s`).
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._stuck_s = timeouts.stuck_s
        self._idle_s = timeouts.idle_s
        self._figures: tuple[float, ...] | None = None
        self._busy = False
        self._suspect = False
        self._moved_at: float | None = None

    def is_suspect(self, now: float, requests: int, figures: tuple[float, ...] | None) -> bool:
        """Take a reading; True if a request for one token has to show whether the engine lives.

        Args:
            now: seconds of any clock that only goes forward.
            requests: that run or wait in the engine.
            figures: any of them moves when it works; None if its metrics did not answer.
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
        """It has generated a token when it was asked for one."""
        self._moved_at, self._suspect = now, False
