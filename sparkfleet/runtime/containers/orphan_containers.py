"""Containers of a fleet without a supervisor, found by their labels and removed, with any container tool.

They are removed even if they still serve: a container outlives its supervisor, but its log, its lease and its place in a
group do not. The model is then loaded again; a rank that lost only its owner is adopted instead.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparkfleet.engines.container import RankLabels, find_argv, parse_containers, stop_argv
from sparkfleet.hostfacts.container import Tool
from sparkfleet.runtime.base import RankId
from sparkfleet.runtime.containers.container_tools import ask, is_used
from sparkfleet.runtime.environment import run_start
from sparkfleet.runtime.processes import Killed

_REMOVALS = 50
_REMOVAL_S = 0.2
_IN_PROGRESS = "is already in progress"
"""Docker's answer for a container that is about to remove itself (`--rm`)."""
_GONE = "no such container"


class OrphanContainer(NamedTuple):
    """A container of the fleet, running or not."""

    tool: Tool
    id: str
    """Of the tool; its name if the tool lists none."""
    name: str
    rank: RankId
    began: float | None
    """Start of the rank's run, seconds of the node's monotonic clock; None: an earlier release did not note it."""

    def __str__(self) -> str:
        return f"container {self.name} ({self.tool})"


class OrphanContainers:
    """Finds and removes the containers of one fleet on this node.

    Args:
        fleet: the value of their label `sparkfleet.fleet`.
        tools: the container tools to query, if they are installed. One that does not answer counts as empty.
    """

    def __init__(self, fleet: str, tools: Sequence[Tool]) -> None:
        self._fleet = fleet
        self._tools = tools

    async def remove(self, which: Callable[[RankId, float | None], bool], *, grace_s: float) -> Killed:
        """Sends SIGTERM, after `grace_s` SIGKILL, and removes containers; ended ones too.

        Args:
            which: true for those that are to go, by their rank and the start of its run (None: not known).
        """
        listed = await asyncio.gather(*(self._find(tool) for tool in self._tools))
        met = [one for of_tool in listed for one in of_tool if which(one.rank, one.began)]
        ends = await asyncio.gather(*(_remove(one, grace_s) for one in met))
        ended = [(str(one), gone) for one, gone in zip(met, ends, strict=True)]
        return Killed(
            tuple(words for words, gone in ended if gone), tuple(words for words, gone in ended if not gone)
        )

    async def _find(self, tool: Tool) -> list[OrphanContainer]:
        listed = await ask(find_argv(tool, self._fleet)) if is_used(tool) else None
        if listed is None or listed.exit_code != 0:
            return []
        return [
            OrphanContainer(tool, one.id or one.name, one.name, _rank(one.labels), run_start(one.run))
            for one in parse_containers(listed.stdout)
        ]


async def _remove(one: OrphanContainer, grace_s: float) -> bool:
    stopped = await ask(stop_argv(one.tool, one.id, math.ceil(grace_s)), grace_s)
    if stopped is not None and stopped.exit_code != 0:  # podman stops and removes no paused one
        await ask((one.tool, "unpause", one.id))
    for _ in range(_REMOVALS):
        removed = await ask((one.tool, "rm", "--force", "--volumes", one.id))
        if removed is None:
            return False
        printed = removed.stderr.lower()
        if _IN_PROGRESS not in printed:
            return removed.exit_code == 0 or _GONE in printed
        await asyncio.sleep(_REMOVAL_S)
    return False


def _rank(labels: RankLabels) -> RankId:
    return RankId(
        fleet=labels.fleet,
        deployment=labels.deployment,
        generation=labels.generation,
        replica=labels.group,
        rank=labels.rank,
    )
