"""Simulated time: events in order, on a clock that moves only from one to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from sparkfleet.controlplane.policy.state import Now

EPOCH = 1_700_000_000.0
"""Wall clock at the beginning, Unix seconds."""


class Timeline:
    """Events that are still to come, and the present moment."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Since the beginning; only goes forward."""
        self.wall_offset = 0.0
        """Sum of the jumps of the wall clock, seconds."""
        self.set_back_s = 0.0
        """Sum of its jumps back."""
        self._now = Now(unix=EPOCH, steady=0.0)
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], object]]] = []

    def now(self) -> Now:
        """Both clocks."""
        unix = self.unix()
        if self._now.steady != self.seconds or self._now.unix != unix:
            self._now = Now(unix=unix, steady=self.seconds)
        return self._now

    def unix(self) -> float:
        """The wall clock, which may jump."""
        return EPOCH + self.seconds + self.wall_offset

    def jump(self, seconds: float) -> None:
        """Sets the wall clock forward, or back if negative."""
        self.wall_offset += seconds
        self.set_back_s -= min(0.0, seconds)

    def after(self, seconds: float, event: Callable[[], object]) -> None:
        """Let something happen that many seconds from now."""
        heapq.heappush(self._events, (self.seconds + seconds, next(self._order), event))

    def next_at(self) -> float:
        """Moment of the next event; inf if there is none."""
        return self._events[0][0] if self._events else float("inf")

    def move_to(self, seconds: float) -> bool:
        """Move forward and let everything happen that is due; True if anything was."""
        happened = False
        while self._events and self._events[0][0] <= seconds:
            at, _, event = heapq.heappop(self._events)
            self.seconds = max(self.seconds, at)
            event()
            happened = True
        self.seconds = max(self.seconds, seconds)
        return happened
