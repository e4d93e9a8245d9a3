"""Output speeds of groups, from their engines' counters of tokens. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

WINDOW_S = 6.0
"""Seconds over which a speed is the mean: a group reports its counter every two seconds, so shorter ones would jump."""
KEPT = 120
"""Speeds that are kept of each group, for a sparkline."""
_BLOCKS = "▁▂▃▄▅▆▇█"


class SpeedHistory:
    """Speeds of every group, tok/s, one for each reading."""

    def __init__(self) -> None:
        self._counts: dict[str, deque[tuple[float, float]]] = {}
        self._speeds: dict[str, deque[float]] = {}

    def see(self, at: float, tokens: Mapping[str, float | None]) -> None:
        """Takes a reading.

        Args:
            at: its time, seconds.
            tokens: counter by group; None if it is not known. Groups that are missing here are forgotten.
        """
        for gone in self._counts.keys() - tokens.keys():
            del self._counts[gone]
            self._speeds.pop(gone, None)
        for name, count in tokens.items():
            if count is not None:
                self._see(name, at, count)

    def _see(self, name: str, at: float, count: float) -> None:
        counts = self._counts.setdefault(name, deque())
        if counts and (count < counts[-1][1] or at <= counts[-1][0]):
            counts.clear()  # another engine, or a clock that was set back
        counts.append((at, count))
        while len(counts) > 2 and at - counts[1][0] >= WINDOW_S:
            counts.popleft()
        if len(counts) > 1:
            (since, before), speeds = counts[0], self._speeds.setdefault(name, deque(maxlen=KEPT))
            speeds.append((count - before) / (at - since))

    def of(self, name: str) -> Sequence[float]:
        """Speeds of a group, oldest first; () if none is known."""
        return tuple(self._speeds.get(name, ()))

    def now(self, name: str) -> float | None:
        """The last speed of a group; None if none is known."""
        return self._speeds[name][-1] if name in self._speeds else None

    def total(self) -> float:
        """The last speeds of all groups together."""
        return sum(speeds[-1] for speeds in self._speeds.values())


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as blocks, the highest of them as the full one; "" without values."""
    shown = values[-width:] if width > 0 else ()
    most = max(shown, default=0.0)
    return "".join(_BLOCKS[round(value / most * (len(_BLOCKS) - 1)) if most else 0] for value in shown)
