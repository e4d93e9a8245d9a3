"""The clocks that the controller and its parts read, the machine's or a simulation's: `unix` may be set, `steady` only goes
forward. And notice of a wall clock that was set back, also while no controller ran."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path

from sparkfleet.controlplane.policy.state import Now
from sparkfleet.remote.atomic_write import write_atomically

Clocks = Callable[[], Now]

SET_BACK_S = 5.0
"""Seconds by which the wall clock must be behind for it to count as set back: a smaller correction is waited for."""


def read_clocks() -> Now:
    """The current moment."""
    return Now(unix=time.time(), steady=time.monotonic())


class WallClock:
    """Compares the wall clock with the one that only goes forward.

    Args:
        file: keeps their difference for the next controller. It has to be lost at a boot, as the memory of Ray Serve is.
    """

    def __init__(self, clocks: Clocks, file: Path | None = None) -> None:
        self._clocks = clocks
        self._file = file
        self._ahead = self._kept()

    def set_back_s(self) -> float:
        """Seconds by which the wall clock was set back since the last `accept`; 0.0 for less than `SET_BACK_S`."""
        ahead = self._read()
        if self._ahead is None or ahead > self._ahead + SET_BACK_S:
            self._keep(ahead)
            return 0.0
        back = self._ahead - ahead
        return back if back >= SET_BACK_S else 0.0

    def accept(self) -> None:
        """Takes the wall clock as it is now."""
        self._keep(self._read())

    def _read(self) -> float:
        now = self._clocks()
        return now.unix - now.steady

    def _kept(self) -> float | None:
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError):
                kept = float(self._file.read_text())
                return kept if math.isfinite(kept) else None  # nothing is later than "nan"
        return None

    def _keep(self, ahead: float) -> None:
        self._ahead = ahead
        if self._file is not None:
            # On a full disk the next controller does not know, as without a file.
            with contextlib.suppress(OSError):
                write_atomically(self._file, repr(ahead).encode())
