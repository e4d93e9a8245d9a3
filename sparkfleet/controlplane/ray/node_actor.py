"""Actor on each joined node: the controller reads its memory, removes ranks without a holder, and sends copies of the store.

It holds no state: it may die and be created again at any time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

import ray

from sparkfleet.controlplane.nodes import CopyContent, RanksOf, SweepList
from sparkfleet.controlplane.ray.ray_process import NODE_LABEL
from sparkfleet.controlplane.ray.watchdog_watch import WatchdogWatch, environment_of
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.controlplane.state.store_copies import KeptCopy
from sparkfleet.controlplane.store_safety.kept_copy import keep_copy, read_kept
from sparkfleet.errors import ControlError
from sparkfleet.group.group_name import GroupKey
from sparkfleet.runtime.boot_id import this_boot, up_s
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.kv_pruner import remove_gone
from sparkfleet.runtime.files.log_end import log_end
from sparkfleet.runtime.files.log_retention import prune
from sparkfleet.runtime.files.state_files import spoilt_files, start_bar, stopped_words
from sparkfleet.runtime.process_runtime import ProcessRuntime
from sparkfleet.specs.inventory import Inventory
from sparkfleet.telemetry.disk_reader import DiskReader
from sparkfleet.telemetry.node_readings import (
    SLOW_EVERY_S,
    NodeReader,
    NodeReadings,
    RailDevices,
    SlowReadings,
)
from sparkfleet.telemetry.rank_memory import memory_of_ranks

log = logging.getLogger(__name__)

T = TypeVar("T")

ANSWER_S = 10.0
"""Time limit of a node's answer; after it the node is left out of this round."""
LOOK_S = 5.0
"""The same for a reading of its memory, which takes milliseconds: a lost node is named within 15 s."""
HANG_S = 10.0
"""Seconds of silence after which an actor that has answered before is replaced."""
SLOWEST_BYTES_S = 2e6
"""Bytes per second at which a copy of the store reaches other nodes at least (assumed: a tenth of a poor Wi-Fi)."""
CALLS = 100
"""Most calls that an actor works on at once. A sweep takes as long as the engines that it ends, and a look behind ten of
them came when its node had been called silent."""
START_S = 120.0
"""Seconds that an actor has for its first answer. On a busy node a process of Ray takes tens of seconds to start; another
in its place would be no sooner, and slow the node down further: every look would start one."""


class _KeptAgent:
    """An actor of a node, and the end of the patience with it.

    Args:
        node_id: Ray's id of the node.
        actor: handle of its `NodeAgent`. Ray ends the actor once the handle is gone.
        now: seconds of a clock that only goes forward.
    """

    def __init__(self, node_id: str, actor: Any, now: float) -> None:
        self.node_id = node_id
        self.actor = actor
        self._patience_until = now + START_S

    def has_answered(self, now: float) -> None:
        """Extends the patience: it has started, and lives."""
        self._patience_until = now + HANG_S

    def is_hung(self, now: float) -> bool:
        """True if another has to take its place."""
        return now >= self._patience_until


class NodeActors:
    """Finds the nodes that have joined Ray, and keeps an actor on each.

    Args:
        rails: devices of the rails of each node that has any.
    """

    def __init__(
        self,
        names: Collection[str],
        rails: Mapping[str, tuple[RailDevices, ...]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = tuple(names)
        self._rails = rails
        self._clock = clock
        self._agents: dict[str, _KeptAgent] = {}
        """By name of the node."""

    async def look(self, names: Collection[str] | None = None) -> tuple[NodeReport, ...]:
        """See `Nodes.look`. Memory and boot are unknown if the node has joined but its actor does not answer."""
        agents = await asyncio.to_thread(self._joined)
        looked = [name for name in self._names if names is None or name in names]
        return tuple(await asyncio.gather(*(self._look(name, agents.get(name)) for name in looked)))

    async def sweep(self, names: Collection[str], listed: Callable[[], SweepList]) -> tuple[str, ...]:
        """See `Nodes.sweep`."""
        agents = await asyncio.to_thread(self._joined)
        reached = [name for name in agents if name in names]
        killed = await asyncio.gather(*(self._sweep(name, agents[name], listed) for name in reached))
        return tuple(
            f"{line} on {name}" for name, lines in zip(reached, killed, strict=True) for line in lines
        )

    async def keep_copy(self, names: Collection[str], copy: CopyContent) -> Mapping[str, str]:
        """See `Nodes.keep_copy`. The content is put into Ray's object store once, for all nodes."""
        agents = await asyncio.to_thread(self._joined)
        reached = [name for name in names if name in agents]
        limit_s = ANSWER_S + len(copy.content) * len(reached) / SLOWEST_BYTES_S
        try:
            async with asyncio.timeout(limit_s):
                content = await asyncio.to_thread(ray.put, copy.content)
        except (ray.exceptions.RayError, TimeoutError) as error:
            log.warning("the copy %s could not be put into Ray's object store: %r", copy.name, error)
            return dict.fromkeys(names, "Ray's object store on the head does not take it")
        asked = (
            self._ask(name, partial(agents[name].keep_copy.remote, copy.name, content, copy.sha256), limit_s)
            for name in reached
        )
        answers = dict(zip(reached, await asyncio.gather(*asked), strict=True))
        silent = dict.fromkeys(names, "it does not answer")
        return {**silent, **{name: words for name, words in answers.items() if words is not None}}

    async def read_log(self, node: str, path: str, limit: int) -> bytes | None:
        """The last bytes of a rank's log on a node, at most `limit`; None if the node or the file does not answer."""
        agents = await asyncio.to_thread(self._joined)
        if node not in agents:
            return None
        return await self._ask(node, partial(agents[node].read_log.remote, path, limit), LOOK_S)

    async def _look(self, name: str, agent: Any) -> NodeReport:
        if agent is None:
            return NodeReport(name=name, joined=False)
        seen = await self._ask(name, partial(agent.look.remote, self._rails.get(name, ())), LOOK_S)
        if seen is None:
            return NodeReport(name=name, joined=True)
        readings, boot = NodeReadings.model_validate_json(seen[0]), seen[1]
        memory = readings.memory
        return NodeReport(
            name=name,
            joined=True,
            memory_total=memory.total,
            memory_available=memory.available,
            boot=boot,
            up_s=seen[2],
            readings=readings,
            spoilt=seen[3],
            cannot_start=seen[4],
            kept_copy=seen[5],
        )

    async def _sweep(self, name: str, agent: Any, listed: Callable[[], SweepList]) -> tuple[str, ...]:
        """Sweeps one node, with a list that is made after the moment which bounds the runs that it ends."""
        until = self._clock() + ANSWER_S
        moment = await self._ask(name, agent.moment.remote, ANSWER_S)
        if moment is None:
            return ()
        keep, newest, keep_kv = listed()
        left_s = max(0.0, until - self._clock())
        call = partial(
            agent.sweep.remote, sorted(keep), dict(newest), sorted(keep_kv), moment=moment, valid_s=left_s
        )
        return await self._ask(name, call, left_s) or ()

    async def _ask(self, name: str, call: Callable[[], Awaitable[T]], limit_s: float = ANSWER_S) -> T | None:
        agent = self._agents.get(name)
        try:
            async with asyncio.timeout(limit_s):
                answer = await call()
        except (ray.exceptions.RayError, TimeoutError) as error:
            log.warning("node %s does not answer: %r", name, error)
            # A call that raised has not ended its actor, and a node whose state directory cannot be read starts no other.
            raised = isinstance(error, ray.exceptions.RayTaskError)
            ended = isinstance(error, ray.exceptions.RayError) and not raised
            if (
                agent is not None
                and (ended or agent.is_hung(self._clock()))
                and self._agents.get(name) is agent
            ):
                del self._agents[name]
            return None
        if agent is not None:
            agent.has_answered(self._clock())
        return answer

    def _joined(self) -> dict[str, Any]:
        """The actor of every node of the fleet that is alive in Ray. Blocks for a moment."""
        alive = {node["Labels"].get(NODE_LABEL): node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for name in self._names:
            known = self._agents.get(name)
            if name in alive and (known is None or known.node_id != alive[name]):
                options = {"label_selector": {NODE_LABEL: name}, "num_cpus": 0}
                actor = NodeAgent.options(**options).remote()  # type: ignore[attr-defined]  # added by the decorator
                self._agents[name] = _KeptAgent(alive[name], actor, self._clock())
        return {name: self._agents[name].actor for name in self._names if name in alive}


def rails_of(inventory: Inventory) -> dict[str, tuple[RailDevices, ...]]:
    """Devices of the rails of each node that has any, in the inventory's order."""
    found: dict[str, list[RailDevices]] = {}
    for link in inventory.links:
        for rail in link.rails:
            for name, end in zip(link.nodes, rail, strict=True):
                peer = next((other for other in link.nodes if other != name), "")
                devices = RailDevices(netdev=end.netdev, rdma=end.rdma or "", peer=peer)
                found.setdefault(name, []).append(devices)
    return {name: tuple(rails) for name, rails in found.items()}


@ray.remote(max_concurrency=CALLS)
class NodeAgent:
    """Actor of one node: reads its /proc, and ends its ranks."""

    def __init__(self) -> None:
        self._paths = FleetPaths.of_this_process()
        self._runtime = ProcessRuntime(self._paths.run, self._paths.label)
        self._reader = NodeReader()
        self._disks = DiskReader()
        self._slow = SlowReadings()
        self._slow_at = -SLOW_EVERY_S
        # A worker's parent is its raylet: it has the environment of Ray's start, a worker more than that.
        self._watchdog = WatchdogWatch(self._paths, partial(environment_of, os.getppid()))
        self._reading: asyncio.Task[None] | None = None
        self._keeping = asyncio.Lock()
        """One copy after another, in the order in which they come: the last one is the newest."""

    async def look(
        self, rails: tuple[RailDevices, ...]
    ) -> tuple[str, str, float, tuple[str, ...], str, KeptCopy | None]:
        """The node's readings, JSON; its boot id, and the seconds since; what its next start needs and cannot be used; the
        reason for which no engine can start; and the copy of the head's store that it keeps.

        What may take seconds is read meanwhile, for a later answer.
        """
        if self._reading is None and time.monotonic() - self._slow_at >= SLOW_EVERY_S:
            self._reading = asyncio.create_task(self._read_slow())
        readings = await asyncio.to_thread(self._reader.read, tuple(rails), self._slow)
        spoilt = await asyncio.to_thread(spoilt_files, self._paths)
        # A worker's parent is its raylet, which Ray calls dead only after a minute without an answer.
        stopped = stopped_words(os.getppid(), "Ray's raylet", "nothing new starts here")
        unusable = (*spoilt, *stopped, *await self._watchdog.look())
        bar = await asyncio.to_thread(start_bar, self._paths)
        kept = await asyncio.to_thread(read_kept, self._paths)
        return readings.model_dump_json(), this_boot(), up_s(), unusable, bar, kept

    async def _read_slow(self) -> None:
        try:
            slow = await asyncio.to_thread(self._reader.read_slow)
            ranks = await asyncio.to_thread(memory_of_ranks, await self._runtime.list())
            self._slow = slow.model_copy(update={"ranks": ranks, "disks": await self._disks.read()})
        except Exception:  # the next attempt may work; old readings would look like new ones
            log.exception("GPU, disks, kernel log and the ranks' memory could not be read")
            self._slow = SlowReadings()
        finally:
            self._slow_at, self._reading = time.monotonic(), None

    async def read_log(self, path: str, limit: int) -> bytes | None:
        """The last bytes of a file in this fleet's directory of logs; None if it is none, or cannot be read."""
        return await asyncio.to_thread(log_end, self._paths.logs, path, limit)

    async def keep_copy(self, name: str, content: bytes, sha256: str) -> str:
        """Keeps a copy of the head's store in place of the one before; the reason if it does not, else ""."""
        async with self._keeping:
            try:
                await asyncio.to_thread(keep_copy, self._paths, name, content, sha256)
            except ControlError as error:
                return error.what
            except OSError as error:
                return f"{error.filename} cannot be written: {error.strerror or error}"
        return ""

    async def moment(self) -> float:
        """The present moment on this node's monotonic clock, seconds: those of two nodes cannot be compared."""
        return time.monotonic()

    async def sweep(
        self,
        keep: list[GroupKey],
        newest: dict[str, int],
        keep_kv: list[str],
        *,
        moment: float,
        valid_s: float,
    ) -> tuple[str, ...]:
        """Kills every rank on this node whose group is not in `keep`, and removes old logs, and KV on the disk of
        deployments that are not in `keep_kv`. Does nothing if its caller has given up.

        Args:
            newest: see `RanksOf`.
            moment: answer of `moment` before the lists were made; ranks that were started later are left alone.
            valid_s: seconds since then after which the caller no longer waits.
        """
        if time.monotonic() - moment > valid_s:
            log.warning("a sweep that came after %.0f s, when its caller had given up, is not made", valid_s)
            return ()
        # First: while engines end, a generation may start whose files are old by these lists.
        await asyncio.to_thread(prune, self._paths, keep)
        swept = await self._runtime.sweep(RanksOf(keep, newest), before=moment)
        await asyncio.to_thread(remove_gone, self._paths.kv, frozenset(keep_kv))
        return swept
