"""Ends a program whose terminal is gone, also if it ignores SIGHUP, as under `nohup`, or has no controlling terminal."""

from __future__ import annotations

import os
import select
import signal
from threading import Thread

GONE = select.POLLHUP | select.POLLERR
EXIT = 128 + signal.SIGHUP


def end_with_terminal(fileno: int) -> None:
    """Ends this process, as SIGHUP would, once the terminal behind `fileno` has hung up.

    textual goes on then: its input thread reads the end of the file again and again (half a core), its output thread has
    died, and further writes wait for that one without end, so that nothing is left that could end it in order.
    """
    Thread(target=_end, args=(fileno,), daemon=True, name="terminal-watch").start()


def _end(fileno: int) -> None:
    terminal = select.poll()
    terminal.register(fileno, 0)  # a hang-up is reported without being requested
    if any(found & GONE for _, found in terminal.poll()):  # macOS cannot poll every kind of terminal
        os._exit(EXIT)
