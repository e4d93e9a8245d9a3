"""Many commands on a node in one round trip: a small program runs them there, and answers once."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Sequence
from typing import Any

from sparkfleet.errors import NodeError
from sparkfleet.nodes.base import Channel, Completed
from sparkfleet.nodes.output import OUTPUT_BYTES

_AT_A_TIME = 16
_STARTING_S = 15.0
"""For the node's Python to start, on a node that is busy."""
_ROUND_S = 1.0
"""What is lost to each round of commands beyond their time-out."""

PROGRAM = r"""
import base64, json, os, selectors, signal, subprocess, sys, time
ask = json.load(sys.stdin)
CAP, DRAIN_S, TICK_S, SOON_S = ask["cap"], 1.0, 0.1, 0.002
answers = [None] * len(ask["argvs"])
waiting = list(enumerate(ask["argvs"]))[::-1]
running = []
pipes = selectors.DefaultSelector()

def guard():
    # Commands lead process groups of their own. When this program is killed, its end of the pipe closes, and they go.
    watched, mine = os.pipe()
    if os.fork():
        os.close(watched)
        return mine
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(mine)
    groups, said = set(), b""
    while True:
        more = os.read(watched, 4096)
        said += more
        *lines, said = said.split(b"\n")
        for line in lines:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
        if not more:
            for group in groups:
                try:
                    os.killpg(group, signal.SIGKILL)
                except OSError:
                    pass
            os._exit(0)

def tell(sign, pid):
    os.write(guardian, b"%c%d\n" % (sign, pid))

class Job:
    def __init__(self, index, argv):
        self.index = index
        self.child = subprocess.Popen(
            [word.encode("utf-8", "surrogateescape") for word in argv],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, bufsize=0,
        )
        tell(43, self.child.pid)
        self.end = time.monotonic() + ask["timeout_s"]
        self.exited = None
        self.kept, self.dropped, self.open = {}, {}, set()
        for pipe in (self.child.stdout, self.child.stderr):
            self.kept[pipe], self.dropped[pipe] = bytearray(), 0
            self.open.add(pipe)
            os.set_blocking(pipe.fileno(), False)
            pipes.register(pipe, selectors.EVENT_READ, self)

    def read(self, pipe):
        data = pipe.read(65536)
        if data:
            room = CAP - len(self.kept[pipe])
            self.kept[pipe] += data[:room]
            self.dropped[pipe] += max(len(data) - room, 0)
        elif data is not None:
            self.shut(pipe)

    def shut(self, pipe):
        pipes.unregister(pipe)
        pipe.close()
        self.open.discard(pipe)

    def is_done(self):
        now = time.monotonic()
        if self.exited is None and self.child.poll() is not None:
            self.exited = now
        if self.exited is not None:
            return not self.open or now > self.exited + DRAIN_S
        if now > self.end:
            os.killpg(self.child.pid, signal.SIGKILL)
            return True
        return False

    def answer(self):
        tell(45, self.child.pid)
        for pipe in list(self.open):
            self.shut(pipe)
        if self.exited is None:
            return {"late": True}
        outputs = [
            (base64.b64encode(kept).decode(), self.dropped[pipe]) for pipe, kept in self.kept.items()
        ]
        return {"exit_code": self.child.returncode, "outputs": outputs}

guardian = guard()
while waiting or running:
    while waiting and len(running) < ask["most"]:
        index, argv = waiting.pop()
        try:
            running.append(Job(index, argv))
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
json.dump(answers, sys.stdout)
"""
"""Runs on the node's own Python, 3.8 or later, with nothing but the standard library."""


async def run_batch(
    channel: Channel, argvs: Sequence[Sequence[str]], *, timeout_s: float = 30.0
) -> list[Completed | NodeError]:
    """Run commands on a node, sixteen at a time, in one round trip. What came of each is in its place.

    A program that does not exist, or that does not end within `timeout_s` (it is killed, with its process group), is a
    `NodeError` in its place. Of each output an equal share of 6 MiB is kept.

    Raises:
        NodeError: the node cannot be reached, or has no Python 3.
    """
    if not argvs:
        return []
    ask = {
        "argvs": [list(argv) for argv in argvs],
        "timeout_s": timeout_s,
        "most": _AT_A_TIME,
        "cap": _cap(argvs),
    }
    rounds = math.ceil(len(argvs) / _AT_A_TIME)
    done = await channel.run(
        ("python3", "-I", "-S", "-c", PROGRAM),
        stdin=json.dumps(ask).encode(),
        timeout_s=_STARTING_S + rounds * (timeout_s + _ROUND_S),
    )
    answers = _parsed(channel.node, done, len(argvs))
    return [_result(argv, answer, timeout_s) for argv, answer in zip(argvs, answers, strict=True)]


def _cap(argvs: Sequence[Sequence[str]]) -> int:
    """Bytes of each output, so that all of them in base64 fit into what a channel keeps of one."""
    return (OUTPUT_BYTES * 3 // 4 - 4096) // (2 * len(argvs)) - 256


def _parsed(node: str, done: Completed, count: int) -> list[Any]:
    try:
        answers = json.loads(done.stdout)
    except ValueError:
        answers = None
    if isinstance(answers, list) and len(answers) == count:
        return answers
    said = (done.stderr.strip() or done.stdout.strip())[-400:]
    raise NodeError(
        f"{node}: its Python did not run the commands (exit code {done.exit_code}): {said or 'it said nothing'}",
        do="sparkfleet needs a `python3`, 3.8 or later, on the node.",
    )


def _result(argv: Sequence[str], answer: Any, timeout_s: float) -> Completed | NodeError:
    program = argv[0] if argv else ""
    match answer:
        case {"exit_code": int(exit_code), "outputs": [out, err]}:
            return Completed(argv=tuple(argv), exit_code=exit_code, stdout=_text(out), stderr=_text(err))
        case {"missing": True}:
            return NodeError(
                f"{program} was not found", do="install it on the node, or put its directory into PATH"
            )
        case {"late": True}:
            return NodeError(
                f"{program} did not end within {timeout_s:g} s",
                means="It was killed, with everything in its process group.",
            )
        case {"refused": str(reason)} if argv:
            return NodeError(f"{program} cannot be run: {reason}")
        case _:
            return NodeError("there is nothing to run: the command is empty")


def _text(output: Any) -> str:
    match output:
        case [str(encoded), int(dropped)]:
            try:
                text = b64decode(encoded).decode(errors="replace")
            except Base64Error:
                text, dropped = "", 0
        case _:
            text, dropped = "", 0
    return f"{text}\n[cut: {dropped} more bytes]" if dropped else text
