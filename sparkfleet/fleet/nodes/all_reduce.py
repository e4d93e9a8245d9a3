"""Measures all-reduces between the nodes of a group that serves, in its engine's own environment or containers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal

from sparkfleet.engines.base import RankContext, RankRail
from sparkfleet.engines.nccl_env import fabric_env
from sparkfleet.engines.rendezvous import RankNetwork, rank_networks
from sparkfleet.errors import NodeError
from sparkfleet.fabric.measure import bytes_sent
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.remote.agent import AgentEvent, Program, SentInto, call, validated
from sparkfleet.remote.channel import Channel
from sparkfleet.runtime.containers.container_tools import TOOLS
from sparkfleet.specs.inventory import Link
from sparkfleet.values import Value

PROGRAM = Program.of("sparkfleet.fabric.all_reduce_program", does="measure all-reduces")
LIMIT_S = 120.0
"""Time limit of a call. The first one of NCCL opens its connections; PyTorch in a container needs a minute to load."""
SMALL = 4096
"""Bytes of a message whose time is latency: hardware.yaml has the latency of such ones."""
LARGE: Mapping[str, int] = {"nccl": 256 << 20, "gloo": 4 << 20}
"""Bytes of a message whose time is bandwidth."""
ROUNDS: Mapping[str, int] = {"nccl": 200, "gloo": 20}
SETTLE_S = 1.0
"""Some drivers refresh their counters once a second."""

Sent = Mapping[str, Mapping[str, int]]
"""By node: bytes that each of its rails has sent."""


class _Listening(Value):
    port: int


class RankAllReduce(Value):
    """Result of one rank."""

    latency_us: float
    gb_per_s: float
    moved: int
    """Bytes that a rank has sent in the large ones."""
    nccl: str = ""
    """Version of NCCL; "" on CPUs."""


class AllReduceMeasurement(Value):
    """All-reduces between all ranks of a group."""

    backend: Literal["nccl", "gloo"]
    nccl: str
    """See `RankAllReduce`."""
    latency_us: float
    """Of a small one, microseconds; the slowest rank's."""
    gb_per_s: float
    """Bus bandwidth of a large one, 1e9 bytes per second; the slowest rank's."""
    moved: int
    """Bytes that each rank sent at least."""
    by_rdma: bool
    """See `RailBytes`."""
    sent: dict[str, dict[str, int]]
    """See `Sent`."""


class RailBytes:
    """Bytes that the rails of a group's nodes have sent since a moment.

    Args:
        rails: of each node, those that join it to the others.
        on_gpus: the ranks send by RDMA, if all rails have it.
    """

    def __init__(
        self, channels: Mapping[str, Channel], rails: Mapping[str, Sequence[RankRail]], *, on_gpus: bool
    ) -> None:
        self._channels = channels
        self._rails = rails
        self.by_rdma = on_gpus and all(rail.rdma for mine in rails.values() for rail in mine)
        """True if bytes are counted by the RDMA devices: of a group alone, over both rails. False: by the kernel, with all
        other traffic; gloo, and NCCL over sockets, use the first rail."""
        self._before: dict[str, dict[str, int]] = {}

    async def begin(self) -> None:
        """Count from now on. Raises NodeError or FactError if a node's counters cannot be read."""
        self._before = await self._now()

    async def sent(self) -> dict[str, dict[str, int]]:
        """Bytes since `begin`, by node and device. Raises as `begin`."""
        await asyncio.sleep(SETTLE_S)
        now = await self._now()
        return {
            node: {name: count - self._before[node].get(name, 0) for name, count in rails.items()}
            for node, rails in now.items()
        }

    async def _now(self) -> dict[str, dict[str, int]]:
        return dict(zip(self._rails, await asyncio.gather(*map(self._of, self._rails)), strict=True))

    async def _of(self, node: str) -> dict[str, int]:
        names = [rail.rdma if self.by_rdma and rail.rdma else rail.netdev for rail in self._rails[node]]
        found = await bytes_sent(self._channels[node], names if self.by_rdma else ())
        return {name: found.get(name, 0) for name in names}


def rail_bytes(candidate: Candidate, links: Sequence[Link], channels: Mapping[str, Channel]) -> RailBytes:
    """The counters of the rails over which a candidate's ranks send. Raises EngineError if no link joins its nodes."""
    nodes = candidate.shape.nodes
    rails = {node: network.rails for node, network in zip(nodes, rank_networks(links, nodes), strict=True)}
    return RailBytes(channels, rails, on_gpus=candidate.device == "cuda")


async def measure_all_reduce(
    candidate: Candidate, deployment: str, links: Sequence[Link], channels: Mapping[str, Channel]
) -> AllReduceMeasurement:
    """Measures between the nodes of a candidate whose ranks run: in their containers if it has some.

    Raises:
        EngineError: no link joins the nodes.
        NodeError: a node cannot be reached, its program failed, or it has no such container.
        FactError: the counters of a rail cannot be read.
    """
    nodes = candidate.shape.nodes
    networks = rank_networks(links, nodes)
    backend: Literal["nccl", "gloo"] = "nccl" if candidate.device == "cuda" else "gloo"
    interpreters = await asyncio.gather(
        *(_interpreter(channels[node], candidate, deployment, rank) for rank, node in enumerate(nodes))
    )
    requests: list[dict[str, object]] = [
        {
            "rank": rank,
            "ranks": len(nodes),
            "address": network.leader,
            "port": 0,
            "backend": backend,
            "env": _env(candidate, rank, network),
            "small": SMALL,
            "large": LARGE[backend],
            "rounds": ROUNDS[backend],
            "seconds": LIMIT_S,
        }
        for rank, network in enumerate(networks)
    ]
    counters = rail_bytes(candidate, links, channels)
    await counters.begin()
    found = await _run_ranks([channels[node] for node in nodes], interpreters, requests)
    return AllReduceMeasurement(
        backend=backend,
        nccl=found[0].nccl,
        latency_us=max(one.latency_us for one in found),
        gb_per_s=min(one.gb_per_s for one in found),
        moved=min(one.moved for one in found),
        by_rdma=counters.by_rdma,
        sent=await counters.sent(),
    )


async def _run_ranks(
    channels: Sequence[Channel],
    interpreters: Sequence[tuple[str, ...]],
    requests: Sequence[dict[str, object]],
) -> list[RankAllReduce]:
    """Results of all ranks. The others start once rank 0 listens."""
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_event(event: AgentEvent) -> None:
        if event["event"] == "listening" and not port.done():
            found = validated(channels[0].node, {"port": event.get("port")}, _Listening)
            port.set_result(found.port)

    async def rank(number: int) -> RankAllReduce:
        request = requests[number] | ({"port": await port} if number else {})
        sent = SentInto(PROGRAM, interpreters[number])
        result = await call(channels[number], sent, request, on_event=on_event, timeout_s=2 * LIMIT_S)
        return validated(channels[number].node, result, RankAllReduce)

    tasks = [asyncio.create_task(rank(number)) for number in range(len(requests))]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _env(candidate: Candidate, rank: int, network: RankNetwork) -> dict[str, str]:
    """Variables that pin the traffic of a rank to its rails, as its engine has them."""
    context = RankContext(
        rank=rank,
        python=candidate.python,
        model_path="",
        served_name="",
        host=network.peers[rank],
        port=0,
        **network.model_dump(),
    )
    return dict(fabric_env(context, candidate.device))


async def _interpreter(channel: Channel, candidate: Candidate, deployment: str, rank: int) -> tuple[str, ...]:
    """Command of Python in the rank's environment: its container's, or that of its engine on the node."""
    if candidate.runtime == "process":
        return (candidate.python,)
    for tool in TOOLS:
        argv = (
            *(tool, "ps", "--format", "{{.Names}}"),
            *("--filter", f"label=sparkfleet.deployment={deployment}"),
            *("--filter", f"label=sparkfleet.rank={rank}"),
        )
        try:
            names = (await channel.run(argv)).stdout.split()
        except NodeError:  # this tool is not on the node
            continue
        if names:
            return (tool, "exec", "--interactive", names[0], candidate.python)
    raise NodeError(
        f"{channel.node}: no container of rank {rank} of {deployment} runs",
        do=f"sparkfleet logs {deployment} --rank {rank}",
    )
