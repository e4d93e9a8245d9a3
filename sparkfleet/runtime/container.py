"""The container of one rank, as its supervisor deals with it. Stdlib only.

The supervisor runs `docker run` or `podman run` in the foreground. That client is its child; the container is not: with
docker it is the daemon's, and with podman it outlives the client. So it is ended by the tool, and by the id that the client
was given for it: what carries the same name may be somebody else's.

    the client ends                  how the container ended is asked for, then it is removed, whatever its state
    the rank is to stop              `TOOL stop -t GRACE ID`: TERM, grace, KILL of everything in it
    the tool does not answer         what /proc shows of it is killed; the rest is found by its labels, before the next start
    the supervisor is killed         the client dies with it; the container is removed by label: see `leftovers`
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

from sparkfleet.runtime.environment import FLEET_LABEL, PASSED, RANK_LABEL
from sparkfleet.runtime.exit_codes import NOT_EXECUTABLE, NOT_FOUND, meaning
from sparkfleet.runtime.process_tree import OOM_SCORE, Children

_TOOL_S = 5.0
"""What a container tool may take for one answer; 0.1 to 0.3 s on two x86 cores."""
_CLIENT_S = 3.0
"""From the end of a container to that of the client that shows its output."""
_ANSWER_BYTES = 4096
_TOOL_FAILED = 125
"""Of `docker run` and `podman run`: it was they that failed, before anything ran."""
_STATE = "{{.State.Status}} {{.State.OOMKilled}}"
_NO_IMAGE = re.compile(r"image not known|no such image|unable to find image", re.IGNORECASE)
_NO_PROGRAM = re.compile(r"exec: |executable", re.IGNORECASE)
"""Without it, the codes 126 and 127 are of a runtime that failed: runc gives them for a missing cgroup, too."""
_COMMAND = {NOT_EXECUTABLE: "is not executable in", NOT_FOUND: "was not found in"}


def run_argv(argv: Sequence[str], id_file: Path) -> tuple[str, ...]:
    """`TOOL run …` that writes the container's id to `id_file`, and passes on what every rank is given.

    That is the labels in the environment of its processes, and the place in the kernel's order of killing, neither of which
    the daemon of docker has from the client. `--rm`, right after `run`, is left out: the supervisor removes the container
    itself, once it has asked how it ended.
    """
    tool, run, *rest = argv
    if rest[:1] == ["--rm"]:
        del rest[0]
    named = [word for name in (FLEET_LABEL, RANK_LABEL, *PASSED) for word in ("--env", name)]
    return (tool, run, "--cidfile", str(id_file), *named, "--oom-score-adj", str(OOM_SCORE), *rest)


@dataclass(frozen=True, slots=True)
class Autopsy:
    """Exit of a container."""

    state: str = ""
    """`created`: nothing ever ran in it; "" if there is none (any more)."""
    oom_killed: bool = False

    @property
    def began(self) -> bool:
        """True if something ran in it, as far as is known."""
        return self.state not in ("", "created")

    @property
    def alive(self) -> bool:
        """True if something still runs in it."""
        return self.state in ("running", "stopping", "paused")


class Container:
    """A container that a client among `children` runs.

    Args:
        children: of the supervisor. Its environment is what the tool gets.
        id_file: where the client writes the container's id.
        tool: `docker` or `podman`.
        image: for words only.
    """

    def __init__(self, children: Children, id_file: Path, tool: str, image: str) -> None:
        self._children = children
        self._id_file = id_file
        self._tool = tool
        self._image = image
        self._autopsy = Autopsy()

    async def stop(self, client: asyncio.Future[int], grace_s: float) -> None:
        """TERM, `grace_s`, KILL of everything in it; returns when the client has ended, or will not.

        If there is no container yet, the client is asked to end instead.
        """
        grace = str(math.ceil(grace_s))
        made = self._id()
        if not made or (await self._ask("stop", "-t", grace, made, extra_s=grace_s + 1))[0] != 0:
            await self._children.terminate()
        await asyncio.wait([client], timeout=_CLIENT_S)

    async def bury(self) -> None:
        """Ask how it ended, and remove it, running or not."""
        made = self._id()
        if not made:
            return
        code, told = await self._ask("container", "inspect", "--format", _STATE, made)
        if code == 0:
            state, _, oom_killed = (
                told.strip().rpartition("\n")[2].partition(" ")
            )  # podman warns first, now and then
            self._autopsy = Autopsy(state, oom_killed == "true")
        if self._autopsy.alive:
            await self._ask("kill", made)  # podman's `rm --force` begins with 10 s of grace
        await self._ask("rm", "--force", "--volumes", made)
        self._id_file.unlink(missing_ok=True)

    def ending(self, code: int, tail: str) -> tuple[int, str]:
        """The rank's exit code (negative: the signal that ended it), and what became of it, in words.

        Args:
            code: the client's.
            tail: the last lines that were printed, the tool's own among them.
        """
        code = _signalled(code)
        if self._autopsy.alive:
            return code, f"the {self._tool} client that ran it {meaning(code)}"
        if code in (_TOOL_FAILED, *_COMMAND) and not self._autopsy.began:
            return code, self._tools_fault(code, tail)
        hint = " (out of memory, says the container's record)" if self._autopsy.oom_killed else ""
        return code, f"the engine {meaning(code)}{hint}"

    def _id(self) -> str:
        """Of the container; "" if there is none, or none yet."""
        try:
            return self._id_file.read_text().strip()
        except OSError:
            return ""

    def _tools_fault(self, code: int, tail: str) -> str:
        if _NO_IMAGE.search(tail):
            return f"the image {self._image} is not on this node: {self._tool} pull {self._image}"
        if code in _COMMAND and _NO_PROGRAM.search(tail):
            return f"its command {_COMMAND[code]} the image {self._image}"
        said = [line.strip() for line in tail.splitlines() if "error" in line.lower()]
        return f"{self._tool} could not run its container: {said[-1] if said else 'no reason given'}"

    async def _ask(self, *words: str, extra_s: float = 0) -> tuple[int | None, str]:
        """Exit code (None: it could not be started, or did not end in time) and what was printed, stdout and stderr."""
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
    """Docker and podman tell a signal as 128 + its number."""
    return 128 - code if code - 128 in signal.valid_signals() else code
