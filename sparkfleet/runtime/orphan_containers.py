"""The containers of a fleet that nobody looks after: found by their labels, whoever started them and with whichever tool.

They are removed, also where they still serve: a container outlives its supervisor, but the log that it prints to, its lease
and its place in a group do not. A model is loaded again in that case; a rank that lost its owner alone is adopted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparkfleet.engines.container import RankLabels, Tool, find_argv, found, stop_argv
from sparkfleet.runtime.base import RankId
from sparkfleet.runtime.container_tools import TOOLS, ask, is_used
from sparkfleet.runtime.processes import Killed

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
        listed = await asyncio.gather(*(self._find(tool) for tool in self._tools))
        met = [one for of_tool in listed for one in of_tool if which(one.rank)]
        ends = await asyncio.gather(*(_remove(one, grace_s) for one in met))
        told = [(str(one), gone) for one, gone in zip(met, ends, strict=True)]
        return Killed(
            tuple(words for words, gone in told if gone), tuple(words for words, gone in told if not gone)
        )

    async def _find(self, tool: Tool) -> list[Leftover]:
        listed = await ask(find_argv(tool, self._fleet)) if is_used(tool) else None
        if listed is None or listed.exit_code != 0:
            return []
        return [Leftover(tool, one.name, _rank(one.identity)) for one in found(listed.stdout)]


async def _remove(one: Leftover, grace_s: float) -> bool:
    await ask(stop_argv(one.tool, one.name, math.ceil(grace_s)), grace_s)
    for _ in range(_REMOVALS):
        removed = await ask((one.tool, "rm", "--force", "--volumes", one.name))
        if removed is None:
            return False
        said = removed.stderr.lower()
        if _IN_PROGRESS not in said:
            return removed.exit_code == 0 or _GONE in said
        await asyncio.sleep(_REMOVAL_S)
    return False


def _rank(identity: RankLabels) -> RankId:
    return RankId(
        fleet=identity.fleet,
        deployment=identity.deployment,
        generation=identity.generation,
        replica=identity.group,
        rank=identity.rank,
    )
