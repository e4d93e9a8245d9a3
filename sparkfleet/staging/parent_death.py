"""Ends child processes with their parent, also if that is killed."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def tethered(parent: int) -> Callable[[], None]:
    """Hook between fork and exec that makes the kernel kill a child when its parent, a pid, ends."""

    def tether() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before prctl
            os._exit(1)

    return tether
