"""Circuit of a group: open after a failure, half-open after a pause, closed by an answer. Pure.

A group that failed has no requests in flight, so that it would be the first choice for all that wait. It comes behind all
others while its circuit is open. After the pause one request, the probe, finds it as any other; the others find it last as
before, until an answer closes the circuit or a failure opens it for longer. A group without another beside it gets all
requests meanwhile: a refusal would help nobody.
"""

from __future__ import annotations

from typing import NamedTuple

OPEN_S = 5.0
"""First pause, and the time after which another probe joins one that has no answer yet. Not longer: if the request was at
fault, the other groups must not carry everything."""
LONGEST_OPEN_S = 60.0
"""Longest pause: each failure of a probe doubles it."""


class Circuit(NamedTuple):
    """A circuit that is not closed; a closed one has none. Times are seconds of a clock that only goes forward."""

    failures: int
    """Pauses without an answer between them."""
    until: float
    """End of the pause, or of the time in which one probe is enough."""
    first: int = 0
    """Number of the first probe, among all requests; 0: it is open."""
    probe: int = 0
    """Number of the last one."""

    def is_open(self, now: float) -> bool:
        """True if the group comes behind all others."""
        return now < self.until

    def pause_s(self) -> float:
        """Seconds of the pause after so many failures."""
        return float(min(LONGEST_OPEN_S, OPEN_S * 2 ** min(self.failures - 1, 16)))

    def probed_by(self, number: int, now: float) -> Circuit:
        """The circuit after a request was sent to the group: half-open with a probe if the pause is over."""
        if self.is_open(now):
            return self
        return self._replace(until=now + OPEN_S, first=self.first or number, probe=number)

    def after_end_of(self, number: int, now: float) -> Circuit:
        """The circuit after a request ended. If it was the probe and brought no verdict, the next one is the probe."""
        return self._replace(until=now) if number and number == self.probe else self

    def is_closed_by(self, number: int) -> bool:
        """True if an answer to this request closes it: one from before the pause's end does not."""
        return 0 < self.first <= number

    def line(self, now: float) -> str:
        """The circuit in words."""
        times = f"failed {self.failures} times in a row" if self.failures > 1 else "failed"
        if self.is_open(now):
            if self.probe:
                return f"half-open: {times}, a request tries it"
            return f"open: {times}, tried again in {self.until - now:.1f} s"
        return f"half-open: {times}, the next request tries it"


def opened(circuit: Circuit | None, now: float) -> Circuit:
    """The circuit after a failure. Several of one pause count once: requests that were in flight fail together."""
    counts = circuit is None or circuit.probe > 0 or not circuit.is_open(now)
    found = Circuit((circuit.failures if circuit is not None else 0) + counts, now)
    return found._replace(until=now + found.pause_s())
