"""All processes that one rank's supervisor has started, including orphans. Stdlib only.

Only for a process with a single thread: it runs code between fork and exec, and reaps all of its children.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from sparkfleet.runtime.processes import (
    Killed,
    Process,
    carries,
    descendants,
    kill_all,
    processes,
    signal_all,
)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
OOM_SCORE = 500
"""OOM score adjustment of a rank, -1000 to 1000: without memory the kernel should kill it before sshd, Ray and the
supervisor, which would inherit 1000 from a Ray worker."""
_SETTLE_S = 0.01
_SETTLE_TRIES = 200

_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)


class Children:
    """Starts processes that die with this one, and ends them with everything they have started.

    Args:
        env: the whole environment of the processes.
        labels: the part of `env` that identifies strays.
        output: a descriptor for stdout and stderr.
        directory: their working directory.
    """

    def __init__(
        self, env: Mapping[str, str], labels: Mapping[str, str], output: int, directory: str
    ) -> None:
        self._env = {**env, **labels}
        self._labels = labels
        self._output = output
        self._directory = directory
        self._exits: dict[int, asyncio.Future[int]] = {}
        _adopt_orphans()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def spawn(self, argv: Sequence[str], output: int | None = None) -> tuple[int, asyncio.Future[int]]:
        """Starts `argv` in a session of its own; returns its pid, and a future of its exit code.

        `output` receives its output, instead of the common descriptor.

        Raises:
            OSError, ValueError: it cannot be started.
        """
        stream = self._output if output is None else output
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=self._env,
            cwd=self._directory,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 (there are no threads: see above)
        )
        child.returncode = 0  # reaped here, not by Popen, which would warn
        end = self._exits[child.pid] = asyncio.get_running_loop().create_future()
        return child.pid, end

    def find(self) -> list[Process]:
        """All live processes: by descent, which a process cannot change, and by label."""
        others = [p for p in processes() if p.pid != os.getpid()]
        by_descent = descendants(os.getpid(), others)
        return list({*by_descent, *(p for p in others if carries(p.pid, self._labels))})

    async def terminate(self) -> None:
        """Sends SIGTERM to all processes, without waiting."""
        await signal_all(self.find(), signal.SIGTERM, wait_s=0)

    async def clear(self, grace_s: float) -> Killed:
        """Ends all processes: SIGTERM, `grace_s`, SIGKILL. None is left afterwards but the reported survivors."""
        killed = await kill_all(self.find, grace_s=grace_s)
        for _ in range(_SETTLE_TRIES):
            self._reap()
            if killed.survivors or not _have_children():
                break
            await asyncio.sleep(_SETTLE_S)  # a child that /proc no longer shows is about to end
            again = await kill_all(self.find, grace_s=0)
            killed = Killed(killed.gone + again.gone, again.survivors)
        return killed

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                pid, status = ended
                if end := self._exits.pop(pid, None):
                    end.set_result(os.waitstatus_to_exitcode(status))


def _die_with(parent: int) -> Callable[[], None]:
    """Setup of a child between fork and exec."""

    def arm() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before it could be watched
            os.kill(os.getpid(), signal.SIGKILL)
        set_oom_score(OOM_SCORE)

    return arm


def set_oom_score(score: int) -> None:
    """Sets this process's OOM score adjustment, if that is allowed."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(score))


def _adopt_orphans() -> None:
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


def _have_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
