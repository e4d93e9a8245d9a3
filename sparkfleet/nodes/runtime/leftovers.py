"""The containers of a fleet that nobody looks after: found by their labels, whoever started them and with whichever tool.

They are removed, also where they still serve: a container outlives its supervisor, but the log that it prints to, its lease
and its place in a group do not. A model is loaded again in that case; a rank that lost its owner alone is adopted.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from sparkfleet.engines.container import Identity, Tool, find_argv, found, stop_argv
from sparkfleet.errors import NodeError
from sparkfleet.nodes.base import Completed
from sparkfleet.nodes.local import execute
from sparkfleet.nodes.runtime.base import RankId
from sparkfleet.nodes.runtime.environment import clean_environment
from sparkfleet.nodes.runtime.processes import Killed

TOOLS: tuple[Tool, ...] = get_args(Tool)
_TOOL_S = 15.0
"""What a container tool may take, beyond a grace: it shares the node with engines that load."""

_REMOVALS = 50
_REMOVAL_S = 0.2
_IN_PROGRESS = "is already in progress"
"""Docker, of one that removes itself when it ends (`--rm`), and is about to."""
_GONE = "no such container"


class Leftover(NamedTuple):
    """A container of ours, running or not."""

    tool: Tool
    name: str
    rank: RankId

    def __str__(self) -> str:
        return f"container {self.name} ({self.tool})"


class Leftovers:
    """Finds and removes the containers of one fleet on this node.

    Args:
        fleet: the value of their label `sparkfleet.fleet`.
        tools: which are asked, where they are installed. One that does not answer has no containers.
    """

    def __init__(self, fleet: str, tools: Sequence[Tool] = TOOLS) -> None:
        self._fleet = fleet
        self._tools = tools

    async def remove(self, which: Callable[[RankId], bool], *, grace_s: float) -> Killed:
        """TERM, `grace_s`, KILL, and removal of the containers of those ranks; ended ones too."""
        met = [one for tool in self._tools for one in await self._find(tool) if which(one.rank)]
        ends = await asyncio.gather(*(_remove(one, grace_s) for one in met))
        told = [(str(one), gone) for one, gone in zip(met, ends, strict=True)]
        return Killed(
            tuple(words for words, gone in told if gone), tuple(words for words, gone in told if not gone)
        )

    async def _find(self, tool: Tool) -> list[Leftover]:
        if shutil.which(tool) is None or (tool == "podman" and _never_used()):
            return []
        listed = await _run(find_argv(tool, self._fleet))
        if listed is None or listed.exit_code != 0:
            return []
        return [Leftover(tool, one.name, _rank(one.identity)) for one in found(listed.stdout)]


def _never_used() -> bool:
    """Whether this user has no image in podman, so no container. Asking would leave its store and a process behind."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return os.geteuid() != 0 and not (Path(data) / "containers").exists()


async def _remove(one: Leftover, grace_s: float) -> bool:
    await _run(stop_argv(one.tool, one.name, math.ceil(grace_s)), grace_s)
    for _ in range(_REMOVALS):
        removed = await _run((one.tool, "rm", "--force", "--volumes", one.name))
        if removed is None:
            return False
        said = removed.stderr.lower()
        if _IN_PROGRESS not in said:
            return removed.exit_code == 0 or _GONE in said
        await asyncio.sleep(_REMOVAL_S)
    return False


async def _run(argv: Sequence[str], grace_s: float = 0) -> Completed | None:
    """None where the tool cannot be started, or does not answer."""
    try:
        return await execute(argv, env=clean_environment(os.environ), timeout_s=_TOOL_S + grace_s)
    except NodeError:
        return None


def _rank(identity: Identity) -> RankId:
    return RankId(
        fleet=identity.fleet,
        deployment=identity.deployment,
        generation=identity.generation,
        replica=identity.group,
        rank=identity.rank,
    )
