"""Runs many commands on a node, some at a time. Sent to nodes by `agent.py`; standard library only, Python 3.8 or later.

The request: `argvs`; `timeout_s` for each; `most` at a time; `cap`, bytes that are kept of each output. The result has an
answer in the place of each command: `{"exit_code", "outputs": [[base64, bytes dropped], …]}`, or `{"missing": true}`,
`{"late": true}`, `{"refused": reason}`.
"""

from __future__ import annotations

import base64
import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any

DRAIN_S, TICK_S, SOON_S = 1.0, 0.1, 0.002


def main(request: Any, emit: Any) -> list[Any]:
    """Run the commands."""
    answers: list[Any] = [None] * len(request["argvs"])
    waiting = list(enumerate(request["argvs"]))[::-1]
    running: list[BatchJob] = []
    pipes, guardian = selectors.DefaultSelector(), guard()
    while waiting or running:
        while waiting and len(running) < request["most"]:
            index, argv = waiting.pop()
            try:
                running.append(BatchJob(index, argv, request, pipes, guardian))
            except FileNotFoundError:
                answers[index] = {"missing": True}
            except (OSError, ValueError, IndexError) as error:
                answers[index] = {"refused": str(error)}
        # A child that has shut its outputs is about to exit.
        is_open = all(job.open for job in running)
        for key, _ in pipes.select(TICK_S if running and is_open else SOON_S):
            key.data.read(key.fileobj)
        for job in [job for job in running if job.is_done()]:
            running.remove(job)
            answers[job.index] = job.answer()
    return answers


def guard() -> int:
    """Start a process that kills all registered process groups when this program ends; returns its pipe's descriptor.

    Commands lead process groups of their own. If this program is killed, its end of the pipe closes, and they are killed.
    """
    watched, mine = os.pipe()
    if os.fork():
        os.close(watched)
        return mine
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(mine)
    groups: set[int] = set()
    pending = b""
    while True:
        more = os.read(watched, 4096)
        pending += more
        *lines, pending = pending.split(b"\n")
        for line in lines:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
        if not more:
            for group in groups:
                kill(group)
            os._exit(0)


def kill(group: int) -> None:
    """Kill a process group, if it exists."""
    with suppress(OSError):
        os.killpg(group, signal.SIGKILL)


class BatchJob:
    """A running command."""

    def __init__(self, index: int, argv: list[str], request: Any, pipes: Any, guardian: int) -> None:
        self.index = index
        self.pipes, self.guardian, self.cap = pipes, guardian, request["cap"]
        self.child = subprocess.Popen(
            [word.encode("utf-8", "surrogateescape") for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
            env={**os.environ, "LC_ALL": "C"},  # a login's language changes messages, and commas in numbers
        )
        os.write(guardian, b"+%d\n" % self.child.pid)
        self.end = time.monotonic() + request["timeout_s"]
        self.exited: float | None = None
        self.kept: dict[Any, bytearray] = {}
        self.dropped: dict[Any, int] = {}
        self.open: set[Any] = set()
        for pipe in (self.child.stdout, self.child.stderr):
            self.watch(pipe)

    def watch(self, pipe: Any) -> None:
        """Read one of its outputs from now on."""
        self.kept[pipe], self.dropped[pipe] = bytearray(), 0
        self.open.add(pipe)
        os.set_blocking(pipe.fileno(), False)
        self.pipes.register(pipe, selectors.EVENT_READ, self)

    def read(self, pipe: Any) -> None:
        """Read the available data of an output."""
        data = pipe.read(65536)
        if data:
            room = self.cap - len(self.kept[pipe])
            self.kept[pipe] += data[:room]
            self.dropped[pipe] += max(len(data) - room, 0)
        elif data is not None:
            self.shut(pipe)

    def shut(self, pipe: Any) -> None:
        """Stop reading an output."""
        self.pipes.unregister(pipe)
        pipe.close()
        self.open.discard(pipe)

    def is_done(self) -> bool:
        """True if the command and its outputs have ended; kills a command that exceeds its time limit."""
        now = time.monotonic()
        if self.exited is None and self.child.poll() is not None:
            self.exited = now
        if self.exited is not None:
            return not self.open or now > self.exited + DRAIN_S
        if now > self.end:
            kill(self.child.pid)
            return True
        return False

    def answer(self) -> dict[str, Any]:
        """The command's result."""
        os.write(self.guardian, b"-%d\n" % self.child.pid)
        for pipe in list(self.open):
            self.shut(pipe)
        if self.exited is None:
            return {"late": True}
        outputs = [(base64.b64encode(kept).decode(), self.dropped[pipe]) for pipe, kept in self.kept.items()]
        return {"exit_code": self.child.returncode, "outputs": outputs}
