"""Container of one rank, run and ended by its supervisor. Stdlib only.

The supervisor runs `docker run` or `podman run` in the foreground. That client is its child; the container is not: with
docker it is the daemon's, and with podman it outlives the client. So the tool ends it, by the id that the client has
written: a container of the same name may belong to another program.

    the client ends                  the supervisor reads the container's exit, then removes it in any state
    the rank is to stop              `TOOL stop -t GRACE ID`: SIGTERM, grace, SIGKILL of everything in it
    the tool does not answer         its processes in /proc are killed; the rest is found by its labels before the next start
    the supervisor is killed         the client dies with it; the container is removed by label: see `orphan_containers`
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkfleet.runtime.environment import (
    CONTAINER_RUN_LABEL,
    FLEET_LABEL,
    PASSED,
    RANK_LABEL,
    RUN_LABEL,
)
from sparkfleet.runtime.exit_codes import NOT_EXECUTABLE, NOT_FOUND, TOOL_KILLED, TOOL_LOST, meaning
from sparkfleet.runtime.process_tree import OOM_SCORE, Children

_TOOL_S = 5.0
"""Time limit of a container tool's answer; it takes 0.1 to 0.3 s on two x86 cores."""
_CLIENT_S = 3.0
"""Time limit from the end of a container to the end of its client."""
_ANSWER_BYTES = 4096
_TOOL_FAILED = 125
"""Exit code of `docker run` and `podman run` if the tool itself failed before the container ran."""
_STATE = "{{.State.Status}} {{.State.OOMKilled}}"
_NO_IMAGE = re.compile(r"image not known|no such image|unable to find image", re.IGNORECASE)
_NO_PROGRAM = re.compile(r"exec: |executable", re.IGNORECASE)
"""Without a match, the codes 126 and 127 mean that the runtime failed: runc uses them for a missing cgroup, too."""
_TOOLS_WORDS = re.compile(r"error|denied|cannot connect", re.IGNORECASE)
_TOOL_LOST = re.compile(
    r"cannot connect to the docker daemon|failed to connect to the docker api|is the docker daemon running",
    re.IGNORECASE,
)
"""Answer of docker's client, until release 28 and from 29 on, if its daemon is gone. Podman has none."""
_COMMAND = {NOT_EXECUTABLE: "is not executable in", NOT_FOUND: "was not found in"}


def run_argv(argv: Sequence[str], id_file: Path, started_at: float) -> tuple[str, ...]:
    """`TOOL run …` that writes the container's id to `id_file`, and passes on the settings of every rank.

    Those are the labels in the environment of its processes, and the OOM score, neither of which docker's daemon inherits
    from the client. The container gets a label for this run, too, which began at `started_at`: its name is that of all.
    `--rm`, right after `run`, is left out: the supervisor removes the container itself, once it has read its exit.
    """
    tool, run, *rest = argv
    if rest[:1] == ["--rm"]:
        del rest[0]
    named = [word for name in (FLEET_LABEL, RANK_LABEL, RUN_LABEL, *PASSED) for word in ("--env", name)]
    label = ("--label", f"{CONTAINER_RUN_LABEL}={started_at!r}")
    return (tool, run, "--cidfile", str(id_file), *label, *named, "--oom-score-adj", str(OOM_SCORE), *rest)


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """Exit of a container."""

    state: str = ""
    """`created`: no process ever ran in it; "" if there is no container (any more)."""
    oom_killed: bool = False

    @property
    def began(self) -> bool:
        """True if a process ran in it, or that is not known."""
        return self.state not in ("", "created")

    @property
    def alive(self) -> bool:
        """True if a process still runs in it."""
        return self.state in ("running", "stopping", "paused")


class Container:
    """A container that a client among `children` runs.

    Args:
        children: processes of the supervisor; the tool gets their environment.
        id_file: receives the container's id from the client.
        tool: `docker` or `podman`.
        image: its image, for messages only.
    """

    def __init__(self, children: Children, id_file: Path, tool: str, image: str) -> None:
        self._children = children
        self._id_file = id_file
        self._tool = tool
        self._image = image
        self._exit = ContainerExit()
        self._is_tool_lost = False

    async def stop(self, client: asyncio.Future[int], grace_s: float) -> None:
        """Sends SIGTERM, after `grace_s` SIGKILL, to everything in it; returns when the client has ended, or will not.

        If there is no container yet, the client gets the SIGTERM instead.
        """
        made = self._id()
        if not made or not await self._stop(made, grace_s):
            await self._children.terminate()
        await asyncio.wait([client], timeout=_CLIENT_S)

    async def _stop(self, made: str, grace_s: float) -> bool:
        """Stops it; False if the tool failed. Podman stops no paused container, and only such a one can be unpaused."""
        words = ("stop", "-t", str(math.ceil(grace_s)), made)
        code, _ = await self._ask(*words, extra_s=grace_s + 1)
        if not code:
            return code == 0  # None: it does not answer
        if (await self._ask("unpause", made))[0] != 0:
            return False
        return (await self._ask(*words, extra_s=grace_s + 1))[0] == 0

    async def bury(self) -> None:
        """Reads its exit, and removes it, running or not."""
        made = self._id()
        if not made:
            return
        code, printed = await self._ask("container", "inspect", "--format", _STATE, made)
        if code == 0:
            last = printed.strip().rpartition("\n")[2]  # podman sometimes prints a warning first
            state, _, oom_killed = last.partition(" ")
            self._exit = ContainerExit(state, oom_killed == "true")
        if self._exit.state == "paused":
            await self._ask("unpause", made)  # podman kills and removes no paused one
        if self._exit.alive:
            await self._ask("kill", made)  # podman's `rm --force` begins with 10 s of grace
        if (answer := await self._ask("rm", "--force", "--volumes", made))[0] != 0:
            # A daemon that is stopped ends its containers first: its answer to `inspect` may have been its last one.
            self._is_tool_lost = _TOOL_LOST.search(answer[1]) is not None
        self._id_file.unlink(missing_ok=True)

    def ending(self, code: int, tail: str) -> tuple[int, str]:
        """The rank's exit code (negative: the signal that ended it), and the reason in words.

        Args:
            code: the client's exit code.
            tail: the last lines of output, including the tool's own.
        """
        code = _signalled(code)
        if self._is_tool_lost:
            return code, f"{self._tool} {TOOL_LOST}"
        if self._exit.alive:
            return code, f"the {self._tool} client that ran it {meaning(code)}"
        if code in (_TOOL_FAILED, *_COMMAND) and not self._exit.began:
            return code, self._tools_fault(code, tail)
        hint = f" ({TOOL_KILLED}{self._tool}'s record)" if self._exit.oom_killed else ""
        return code, f"the engine {meaning(code)}{hint}"

    def _id(self) -> str:
        """The container's id; "" if there is none, or none yet."""
        try:
            return self._id_file.read_text().strip()
        except OSError:
            return ""

    def _tools_fault(self, code: int, tail: str) -> str:
        if _NO_IMAGE.search(tail):
            return f"the image {self._image} is not on this node: {self._tool} pull {self._image}"
        if code in _COMMAND and _NO_PROGRAM.search(tail):
            return f"its command {_COMMAND[code]} the image {self._image}"
        found = [line.strip() for line in tail.splitlines() if _TOOLS_WORDS.search(line)]
        return f"{self._tool} could not run its container: {found[-1] if found else 'no reason given'}"

    async def _ask(self, *words: str, extra_s: float = 0) -> tuple[int | None, str]:
        """Exit code (None: it could not be started, or did not end in time) and output, stdout and stderr."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        try:
            pid, end = self._children.spawn((self._tool, *words), output=writer)
            await asyncio.wait([end], timeout=_TOOL_S + extra_s)
            if not end.done():
                os.kill(pid, signal.SIGKILL)  # not reaped yet, or `end` would be done: it is still this child
                return None, ""
            return end.result(), _available(reader)
        except OSError:
            return None, ""
        finally:
            os.close(reader)
            os.close(writer)


def _available(reader: int) -> str:
    try:
        return os.read(reader, _ANSWER_BYTES).decode(errors="replace")
    except BlockingIOError:
        return ""


def _signalled(code: int) -> int:
    """The exit code with a signal as a negative number: docker and podman return 128 + the signal."""
    return 128 - code if code - 128 in signal.valid_signals() else code
