"""Bounds how long vLLM's processes spin, and how long they sleep, for a message of each other. Runs inside vLLM.

vLLM's engine core and the workers on its node hand each step over in shared memory. A reader spins for a second after each
message before it sleeps (`SpinCondition`, vllm/distributed/device_communicators/shm_broadcast.py), so it never sleeps while
tokens are generated; and as the wake-up may be lost, one that sleeps without a limit may sleep for ever (before 0.27:
vllm-project/vllm#45224). vLLM loads this one file as a plugin in each of its processes. Standard library only.
"""

from __future__ import annotations

import functools
import os
from typing import Any

SPIN = "SPARKFLEET_SPIN_S"
"""Variable with the seconds for which a reader spins after a message."""
OWN_S = 1
"""vLLM's own: another value is that of a build which has mended it itself, and is kept."""
SLEEP_MS = 50
"""Longest sleep without a look at the memory: what a lost wake-up costs. vLLM 0.27 and later look every 5 s."""


def register() -> None:
    """Puts the bounds around vLLM's own waits, once for each process; nothing if this release has none like them."""
    try:
        from vllm.distributed.device_communicators import shm_broadcast

        waits: Any = shm_broadcast.SpinCondition
        begin, sleep = waits.__init__, waits.wait
    except (ImportError, AttributeError):
        return
    if getattr(waits, "is_bounded", False):
        return
    spin_s = _spin_s()

    @functools.wraps(begin)
    def bounded_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        if getattr(self, "busy_loop_s", None) == OWN_S:
            self.busy_loop_s = spin_s

    @functools.wraps(sleep)
    def bounded_sleep(self: Any, timeout_ms: int | None = None) -> None:
        # Below 0 libzmq sleeps for ever; vLLM's callers look at the memory and at their deadline after each return.
        sleep(self, SLEEP_MS if timeout_ms is None else max(0, min(timeout_ms, SLEEP_MS)))

    waits.__init__, waits.wait, waits.is_bounded = bounded_begin, bounded_sleep, True


def _spin_s() -> float:
    """The variable's seconds; vLLM's own if it has none that can be used."""
    try:
        given = float(os.environ.get(SPIN, ""))
    except ValueError:
        return OWN_S
    return given if given >= 0 else OWN_S
