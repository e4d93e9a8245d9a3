"""Ends this process if its event loop no longer runs, so that its successor takes over as after a crash.

A process that hangs (stopped, out of memory, a call that never returns) keeps its sockets, and its clients wait. Ray and
Serve take 30 s to a minute to notice. The guard is a child of a few megabytes:

    python -I -S hang_guard.py READ_FD PID HUNG_S NOTE

It reads heartbeats from a pipe. Without one for `HUNG_S` of its own running time it writes NOTE, for the successor, and
kills the process. It ends with the pipe. Stdlib only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

BEAT_S = 0.5
FRESH_S = 600.0
"""Seconds for which a note belongs to the next process: an older one was left by a process without a successor."""


class HangGuard:
    """Guards the process that enters it, from the event loop that runs then.

    Args:
        hung_s: seconds without a heartbeat after which the process counts as hung.
        note: file that is written before the process is killed.
    """

    def __init__(self, hung_s: float, note: Path) -> None:
        self._hung_s = hung_s
        self._note = note
        self._beats: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the guard. Without one (no memory, no process) the process works on, unguarded."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        argv = (
            sys.executable,
            "-I",
            "-S",
            __file__,
            str(reader),
            str(os.getpid()),
            str(self._hung_s),
            str(self._note),
        )
        nothing = subprocess.DEVNULL  # no pipe of the process may be held open by its guard
        try:
            guard = subprocess.Popen(
                argv, pass_fds=(reader,), stdin=nothing, stdout=nothing, stderr=nothing, cwd="/"
            )
        except OSError:
            os.close(writer)
        else:
            self._beats = asyncio.get_running_loop().create_task(_beat(writer, guard))
        finally:
            os.close(reader)

    def stop(self) -> None:
        """Ends the guard."""
        if self._beats is not None:
            self._beats.cancel()


def leave_note(note: Path, reason: str) -> None:
    """Leaves a reason to the next process. Nothing if the disk is full: that process starts all the same."""
    with contextlib.suppress(OSError):
        note.write_text(json.dumps({"at": time.time(), "reason": reason}))


def take_note(note: Path) -> str:
    """The reason that the process before has left, once; "" if it left none, or not recently."""
    try:
        left = json.loads(note.read_bytes())
        note.unlink()
        return str(left["reason"]) if time.time() - left["at"] < FRESH_S else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


async def _beat(writer: int, guard: subprocess.Popen[bytes]) -> None:
    try:
        while True:
            with contextlib.suppress(BlockingIOError):  # the guard itself is stopped
                os.write(writer, b".")
            await asyncio.sleep(BEAT_S)
    except BrokenPipeError:
        pass  # the guard was killed: the process works on
    finally:
        os.close(writer)
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.wait(BEAT_S)


def watch(reader: int, pid: int, hung_s: float, note: Path) -> None:
    """Reads heartbeats until the pipe is closed, or kills the process that does not send any.

    It counts its own waits and not the clock: after a pause of the whole machine both processes go on.
    """
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        missed = 0
        while missed < math.ceil(hung_s / BEAT_S):
            if not select.select([reader], [], [], BEAT_S)[0]:
                missed += 1
            elif os.read(reader, 1 << 12):
                missed = 0
            else:
                return
        reason = f"it did not run for {missed * BEAT_S:g} s and was ended"
        leave_note(note, reason)
        signal.pidfd_send_signal(process, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
