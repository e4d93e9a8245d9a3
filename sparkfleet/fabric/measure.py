"""Measures the speed of the links and proves that the bytes used the rails.

A link that is up and a test that succeeds do not prove the path: traffic falls back to another network without a
message, and a degraded ConnectX-7 reports 200 Gb/s and carries 13. So all rails of a link are loaded at the same
time, and the counters of every device of both nodes are read before and after.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TypeVar

from sparkfleet.errors import SparkfleetError
from sparkfleet.fabric.ask import ask, value_or
from sparkfleet.fabric.link_load import Loader, RailPair, Rdma, Tcp, has_perftest
from sparkfleet.fabric.link_measurements import (
    LinkMeasurement,
    RailMeasurement,
    TransportProof,
    UnmeasuredLink,
)
from sparkfleet.hostfacts.network.netdev import Netdev, ReadNetdevs
from sparkfleet.hostfacts.network.netdev_counters import ReadTraffic
from sparkfleet.hostfacts.network.rdma import ReadGids, ReadGidsOfKernel, ReadRdmaCounters
from sparkfleet.remote.batch import run_batch
from sparkfleet.remote.channel import Channel
from sparkfleet.specs.inventory import Inventory, Link, RailEnd
from sparkfleet.values import Value

T = TypeVar("T")

MOVED_BYTES = 1_000_000
"""Bytes that each loaded rail has to carry at least."""
STRAY_SHARE = 0.05
"""Share of the least loaded rail's bytes that another device may carry meanwhile: SSH, other users."""
STRAY_BYTES = 500_000
"""Bytes on another device that are always accepted."""
SETTLE_TRIES = 8
SETTLE_PAUSE_S = 0.25
"""Seconds: some drivers refresh their counters once a second."""


class Pair(Value):
    """Two nodes to measure, and the rails between them."""

    nodes: tuple[str, str]
    switch: str | None
    rails: tuple[tuple[RailEnd, RailEnd], ...]


# --- which pairs ------------------------------------------------------------------------------------------------------


def pairs_of(inventory: Inventory) -> tuple[Pair, ...]:
    """Pairs for every cable between two nodes; at a switch every node with the next one, so that each cable is used."""
    direct = [
        Pair(
            nodes=(link.nodes[0], link.nodes[1]),
            switch=None,
            rails=tuple((rail[0], rail[1]) for rail in link.rails),
        )
        for link in inventory.links
        if link.switch is None
    ]
    switches: dict[str, list[Link]] = {}
    for link in inventory.links:
        if link.switch is not None:
            switches.setdefault(link.switch, []).append(link)
    return (*direct, *(pair for links in switches.values() for pair in _around(links)))


def _around(links: Sequence[Link]) -> list[Pair]:
    round_trip = [*links, links[0]] if len(links) > 2 else links
    found = [(one, other, _same_subnet(one, other)) for one, other in pairwise(round_trip)]
    return [
        Pair(nodes=(one.nodes[0], other.nodes[0]), switch=one.switch, rails=rails)
        for one, other, rails in found
        if rails and one.nodes != other.nodes
    ]


def _same_subnet(one: Link, other: Link) -> tuple[tuple[RailEnd, RailEnd], ...]:
    return tuple(
        (mine, theirs)
        for (mine,) in one.rails
        for (theirs,) in other.rails
        if mine.interface.network == theirs.interface.network
    )


# --- measuring --------------------------------------------------------------------------------------------------------


async def measure_links(
    inventory: Inventory, channels: Mapping[str, Channel], *, seconds: float = 3.0
) -> tuple[tuple[LinkMeasurement, ...], tuple[UnmeasuredLink, ...]]:
    """Measures every pair of linked nodes. Pairs that share a node run one after the other: rails of two cables share a
    Spark's PCIe lanes.

    A pair that cannot be measured (a node that is off, a rail that is down) is returned with its error, and the others
    are measured nevertheless.

    Args:
        inventory: its links are measured; their addresses must be configured.
        channels: to every node of a link.
        seconds: time for which each link is loaded.
    """
    locks = NodeLocks()

    async def measure(pair: Pair) -> LinkMeasurement | UnmeasuredLink:
        async with locks.of(pair):
            try:
                return await measure_pair(pair, channels, seconds=seconds)
            except SparkfleetError as error:
                return UnmeasuredLink(nodes=pair.nodes, switch=pair.switch, what=error.what, do=error.do)

    found = await asyncio.gather(*map(measure, pairs_of(inventory)))
    return (
        tuple(one for one in found if isinstance(one, LinkMeasurement)),
        tuple(one for one in found if isinstance(one, UnmeasuredLink)),
    )


class NodeLocks:
    """Keeps pairs of nodes that share a node from being measured at once."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def of(self, pair: Pair) -> AsyncIterator[None]:
        """Waits for both nodes of a pair. Locks are taken in one order, so that two pairs cannot wait for each other."""
        first, second = sorted(pair.nodes)
        async with self._locks[first], self._locks[second]:
            yield


async def measure_pair(pair: Pair, channels: Mapping[str, Channel], *, seconds: float) -> LinkMeasurement:
    """Measures the latency of each idle rail, then all rails at once.

    Raises:
        NodeError: a node cannot be reached, or its rail's address cannot be used.
        FactError: a tool failed, or its output cannot be parsed.
    """
    ends = channels[pair.nodes[0]], channels[pair.nodes[1]]
    loader = await _loader(pair, ends)
    rails = await _with_gids(pair, ends, loader)
    latencies = [await _of_rail(rail, loader.latency(rail)) for rail in rails]
    before = await bytes_sent(ends[0], _devices(pair))
    rates = await _all_of(*(_of_rail(rail, loader.bandwidth(rail, seconds)) for rail in rails))
    proof = await _proof(ends[0], pair, before, loader)
    return LinkMeasurement(
        nodes=pair.nodes,
        switch=pair.switch,
        rails=tuple(
            RailMeasurement(
                netdev=rail.ends[0].netdev, method=loader.method, gb_per_s=rate, latency_us=latency
            )
            for rail, rate, latency in zip(rails, rates, latencies, strict=True)
        ),
        proof=proof,
        when=time.time(),
    )


async def _of_rail(rail: RailPair, measuring: Awaitable[T]) -> T:
    """A result of one rail; an error names the rail, as its node has two of each cable."""
    try:
        return await measuring
    except SparkfleetError as error:
        what = f"rail {rail.ends[0].netdev}: {error.what}"
        raise type(error)(what, means=error.means, do=error.do) from error


async def _all_of(*measuring: Awaitable[T]) -> list[T]:
    """Results of all, or the first error once all have ended: nothing loads a rail while the next pair is measured."""
    found = await asyncio.gather(*measuring, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]


async def _loader(pair: Pair, ends: tuple[Channel, Channel]) -> Loader:
    rdma = all(end.rdma for rail in pair.rails for end in rail)
    able = rdma and all(await asyncio.gather(*(has_perftest(end) for end in ends)))
    return Rdma() if able else Tcp()


async def _with_gids(pair: Pair, ends: tuple[Channel, Channel], loader: Loader) -> list[RailPair]:
    if not isinstance(loader, Rdma):
        return [RailPair(ends, rail) for rail in pair.rails]
    tables = await asyncio.gather(*(_gids(end) for end in ends))
    return [
        RailPair(ends, rail, (tables[0].get(_key(rail[0])), tables[1].get(_key(rail[1]))))
        for rail in pair.rails
    ]


async def _gids(channel: Channel) -> dict[tuple[str | None, str], int]:
    """Index by device and IPv4 address of RoCE v2 GIDs."""
    shown, read = await run_batch(channel, [ReadGids.argv, ReadGidsOfKernel.argv])
    found = value_or(shown, ReadGids.parse, ()) or value_or(read, ReadGidsOfKernel.parse, ())
    return {(gid.device, gid.ipv4): gid.index for gid in found if gid.version == 2 and gid.ipv4}


def _key(end: RailEnd) -> tuple[str | None, str]:
    return end.rdma, str(end.interface.ip)


# --- the proof --------------------------------------------------------------------------------------------------------


async def _proof(channel: Channel, pair: Pair, before: Mapping[str, int], loader: Loader) -> TransportProof:
    proof = prove(pair, before, await bytes_sent(channel, _devices(pair)), loader.method)
    for _ in range(SETTLE_TRIES):
        if proof.holds:
            break
        await asyncio.sleep(SETTLE_PAUSE_S)
        proof = prove(pair, before, await bytes_sent(channel, _devices(pair)), loader.method)
    return proof


def _devices(pair: Pair) -> list[str]:
    return [end.rdma for end, _ in pair.rails if end.rdma]


async def bytes_sent(channel: Channel, rdma: Sequence[str]) -> dict[str, int]:
    """Bytes sent so far by each device of a node: netdevs as the kernel counts, these RDMA devices as they count."""
    readers = {device: ReadRdmaCounters(device) for device in rdma}
    netdevs = await ask(channel, ReadNetdevs.argv, ReadNetdevs.parse)
    traffic, *counters = await run_batch(channel, [ReadTraffic.argv, *(one.argv for one in readers.values())])
    cables = {netdev.name for netdev in netdevs if _leads_out(netdev)}
    sent = {
        one.netdev: one.tx_bytes for one in value_or(traffic, ReadTraffic.parse, ()) if one.netdev in cables
    }
    for device, answer in zip(readers, counters, strict=True):
        if found := value_or(answer, ReadRdmaCounters.parse, None, fine=ReadRdmaCounters.fine):
            sent[device] = found.tx_bytes
    return sent


def _leads_out(netdev: Netdev) -> bool:
    """False for bridges and tunnels: their bytes are also counted on a cable's device."""
    return netdev.kind in ("", "veth") and not netdev.name.startswith("veth")


def prove(pair: Pair, before: Mapping[str, int], after: Mapping[str, int], method: str) -> TransportProof:
    """Proves that every rail carried its share and no other device carried any. Pure.

    RDMA is counted by the RDMA device: the kernel's counters of its netdev may not change.
    """
    by_rdma = method == Rdma.method
    rails = [end.rdma if by_rdma and end.rdma else end.netdev for end, _ in pair.rails]
    own = {name for end, _ in pair.rails for name in (end.netdev, end.rdma) if name}
    moved = {name: max(0, after[name] - before.get(name, 0)) for name in after}
    carried = {name: moved.get(name, 0) for name in rails}
    others = {name: count for name, count in moved.items() if name not in own}
    idle = [name for name, count in carried.items() if count < MOVED_BYTES]
    limit = max(STRAY_BYTES, STRAY_SHARE * min(carried.values()))
    stray = [name for name, count in others.items() if count > limit]
    return TransportProof(
        moved={**carried, **others},
        holds=not idle and not stray,
        said=_proof_words(carried, others, idle, stray),
    )


def _proof_words(
    carried: Mapping[str, int], others: Mapping[str, int], idle: Sequence[str], stray: Sequence[str]
) -> str:
    rails = ", ".join(f"{name} {_mb(count)}" for name, count in carried.items())
    rest = ", ".join(
        f"{name} {_mb(count)}" for name, count in others.items() if count >= MOVED_BYTES or name in stray
    )
    if idle:
        return f"no bytes on {', '.join(idle)} ({rails}; elsewhere {rest or 'nothing'})"
    if stray:
        return f"bytes went over {', '.join(stray)}, which is not a rail ({rails}; {rest})"
    return f"moved on the rails: {rails}; elsewhere {rest or 'nothing'}"


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
