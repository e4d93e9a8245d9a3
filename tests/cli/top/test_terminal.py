"""Ends of the live view with its terminal."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios

import pytest

from sparkfleet.cli.top.terminal import EXIT

PROGRAM = """
import asyncio, fcntl, signal, sys, termios
if sys.argv[1] != "no controlling terminal":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
if sys.argv[1] == "masked":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
from sparkfleet.cli.top.app import TopApp
from sparkfleet.cli.top.terminal import end_with_terminal
from sparkfleet.errors import ControlError

async def read():
    raise ControlError("no fleet")

end_with_terminal(0)
asyncio.run(TopApp(read, None, 0.2).run_async())
"""


@pytest.mark.parametrize("hang_up", ["ignored", "masked", "no controlling terminal", "default"])
def test_it_ends_with_its_terminal(hang_up):
    """It went on with half a core: textual reads the end of the file without a pause, and waits to write."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, hang_up],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(slave)
    try:
        drawn = b""
        while b"no fleet" not in drawn:
            drawn += os.read(master, 65536)
        os.close(master)
        assert program.wait(timeout=30) in (EXIT, -signal.SIGHUP)
    finally:
        program.kill()
        program.wait()
