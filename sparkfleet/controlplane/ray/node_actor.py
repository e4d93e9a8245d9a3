"""Actor on each joined node, through which the controller reads its memory and removes ranks without a holder.

It holds no state: it may die and be created again at any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray

from sparkfleet.controlplane.desired import GroupKey
from sparkfleet.controlplane.ray.ray_process import NODE_LABEL
from sparkfleet.controlplane.state.nodes import RanksOf
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.hostfacts.node import ReadMemory
from sparkfleet.runtime.boot_id import this_boot
from sparkfleet.runtime.fleet_paths import FleetPaths
from sparkfleet.runtime.log_retention import prune
from sparkfleet.runtime.process import ProcessRuntime
from sparkfleet.runtime.state_files import spoilt_files

log = logging.getLogger(__name__)

T = TypeVar("T")

ANSWER_S = 10.0
"""Time limit of a node's answer; after it the node is left out of this round."""
LOOK_S = 5.0
"""The same for a reading of its memory, which takes milliseconds: a lost node is named within 15 s."""


class NodeActors:
    """Finds the nodes that have joined Ray, and keeps an actor on each.

    Args:
        names: the nodes of the inventory.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = tuple(names)
        self._agents: dict[str, tuple[str, Any]] = {}
        """Ray's id and the actor of each node, by name."""

    async def look(self) -> tuple[NodeReport, ...]:
        """See `Nodes.look`. Memory and boot are unknown if the node has joined but its actor does not answer."""
        agents = await asyncio.to_thread(self._joined)
        return tuple(await asyncio.gather(*(self._look(name, agents.get(name)) for name in self._names)))

    async def sweep(self, keep: frozenset[GroupKey]) -> tuple[str, ...]:
        """See `Nodes.sweep`."""
        agents = await asyncio.to_thread(self._joined)
        asked = (self._ask(name, partial(agent.sweep.remote, sorted(keep))) for name, agent in agents.items())
        killed = await asyncio.gather(*asked)
        return tuple(
            f"{line} on {name}" for name, lines in zip(agents, killed, strict=True) for line in lines or ()
        )

    async def _look(self, name: str, agent: Any) -> NodeReport:
        if agent is None:
            return NodeReport(name=name, joined=False)
        seen = await self._ask(name, agent.look.remote, LOOK_S)
        total, available, boot, spoilt = seen or (None, None, "", ())
        return NodeReport(
            name=name,
            joined=True,
            memory_total=total,
            memory_available=available,
            boot=boot,
            spoilt=spoilt,
        )

    async def _ask(self, name: str, call: Callable[[], Awaitable[T]], limit_s: float = ANSWER_S) -> T | None:
        try:
            async with asyncio.timeout(limit_s):
                return await call()
        except (ray.exceptions.RayError, TimeoutError) as error:
            log.warning("node %s does not answer: %r", name, error)
            self._agents.pop(name, None)
            return None

    def _joined(self) -> dict[str, Any]:
        """The actor of every node of the fleet that is alive in Ray. Blocks for a moment."""
        alive = {node["Labels"].get(NODE_LABEL): node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for name in self._names:
            known = self._agents.get(name)
            if name in alive and (known is None or known[0] != alive[name]):
                options = {"label_selector": {NODE_LABEL: name}, "num_cpus": 0}
                self._agents[name] = (alive[name], NodeAgent.options(**options).remote())  # type: ignore[attr-defined]
        return {name: self._agents[name][1] for name in self._names if name in alive}


@ray.remote(max_concurrency=10)
class NodeAgent:
    """Actor of one node: reads its /proc, and ends its ranks."""

    def __init__(self) -> None:
        self._paths = FleetPaths.of_this_process()
        self._runtime = ProcessRuntime(self._paths.run, self._paths.label)

    async def look(self) -> tuple[int, int, str, tuple[str, ...]]:
        """Memory, total and available, bytes; the node's boot id; files of its state that cannot be used."""
        memory = ReadMemory.parse(await asyncio.to_thread(Path(ReadMemory.argv[1]).read_text))
        spoilt = await asyncio.to_thread(spoilt_files, self._paths)
        return memory.total, memory.available, this_boot(), spoilt

    async def sweep(self, keep: list[GroupKey]) -> tuple[str, ...]:
        """Kills every rank on this node whose group is not in `keep`, and removes old logs."""
        swept = await self._runtime.sweep(RanksOf(keep))
        await asyncio.to_thread(prune, self._paths)
        return swept
