"""Waits for standard input, in a way that Ctrl-C ends.

Within `asyncio.run` the first Ctrl-C only cancels the task, and a task that waits for a person in a plain call goes on.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Lets Ctrl-C raise KeyboardInterrupt meanwhile. Changes nothing outside of the main thread: others get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def read_standard_input(limit: int) -> bytes:
    """Read it to its end, or at most `limit` bytes. Raises KeyboardInterrupt after Ctrl-C."""
    with ended_by_ctrl_c():
        return sys.stdin.buffer.read(limit)
