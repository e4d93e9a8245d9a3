"""The command line on a terminal, which a test reads, answers, interrupts and kills."""

import contextlib
import os
import pty
import select
import subprocess
import time

from lab_fleet import SPARKFLEET


class OnTerminal:
    """A verb on a terminal of its own, where every phase is shown.

    Args:
        fleet: the fleet.
        argv: the verb and its arguments.
    """

    def __init__(self, fleet, *argv):
        self._fleet = fleet
        self.shown = ""
        self._terminal, slave = pty.openpty()
        self._process = subprocess.Popen(
            [SPARKFLEET, *argv],
            cwd=fleet.directory,
            env={**os.environ, "COLUMNS": "200", "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def until_shown(self, step, timeout=120):
        """Read until a phase is shown, or the command ends."""
        deadline = time.monotonic() + timeout
        while step not in self.shown and self._read():
            assert time.monotonic() < deadline, (
                f"{step!r} was not shown\n{self.shown}\n{self._fleet.diagnosis()}"
            )
        assert step in self.shown, f"it ended without {step!r}\n{self.shown}"

    def type(self, text):
        """Answer its question."""
        os.write(self._terminal, text.encode())

    def end(self, number, timeout=30):
        """Signal it, and return its exit code."""
        self._process.send_signal(number)
        return self.wait(timeout)

    def wait(self, timeout):
        """Its exit code."""
        deadline = time.monotonic() + timeout
        while self._read():
            assert time.monotonic() < deadline, f"it did not end\n{self.shown}\n{self._fleet.diagnosis()}"
        return self._process.wait(timeout)

    def _read(self):
        """True while there may be more."""
        if select.select([self._terminal], [], [], 1.0)[0]:
            try:
                self.shown += os.read(self._terminal, 65536).decode(errors="replace")
            except OSError:
                return False  # its other end is closed
        return True
