"""Children that end with their parent, also when that is killed."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def tethered(parent: int) -> Callable[[], None]:
    """Makes a child, between fork and exec, die with `parent`, a pid."""

    def tether() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the kernel was told
            os._exit(1)

    return tether
