"""Progress of staging: real byte counts, rates and remaining time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from sparkfleet.values import Value

TransferPhase = Literal["looking", "checking", "hub", "link", "lan", "image", "waiting", "note", "done"]

WINDOW_S = 10.0
"""Averaging time of a rate: short enough to show a cable that slows down, long enough not to flicker."""


class TransferProgress(Value):
    """Progress of one model or image on one node.

    Attributes:
        phase: the present step: `hub` downloads, `link` copies over rails, `lan` copies over the LAN.
        name: model or image.
        node: the node that receives.
        source: the node that sends, or "".
        done_bytes: bytes on the node, those of earlier runs included.
        total_bytes: bytes in all.
        bytes_per_s: the rate over the last seconds; 0 if nothing has moved.
        eta_s: remaining seconds at that rate; None while it is unknown.
        text: a message for people, or "".
    """

    phase: TransferPhase
    name: str
    node: str
    source: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    bytes_per_s: float = 0.0
    eta_s: float | None = None
    text: str = ""


OnProgress = Callable[[TransferProgress], None]


def silent(_: TransferProgress) -> None:
    """Discard progress."""


class RateMeter:
    """Turns byte counts into a rate. Times are seconds of any monotonic clock."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int]] = deque()

    def rate(self, now_s: float, done_bytes: int) -> float:
        """Bytes/s since the start of the window, with `done_bytes` at `now_s`.

        A count that falls (a damaged file is fetched again) restarts the window.
        """
        if self._seen and done_bytes < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now_s, done_bytes))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= self._window_s:
            self._seen.popleft()
        (first_s, first_bytes) = self._seen[0]
        return (done_bytes - first_bytes) / (now_s - first_s) if now_s > first_s else 0.0


def eta_s(rate: float, left_bytes: int) -> float | None:
    """Seconds until `left_bytes` have moved at `rate`; None if nothing moves."""
    if left_bytes <= 0:
        return 0.0
    return left_bytes / rate if rate > 0 else None
