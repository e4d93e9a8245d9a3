"""Measures links for the checks: whether full packets pass, how long a small one takes, and what `fabric` measures.

Links of one node are measured one after the other: they share its two PCIe links, and would slow each other down.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.gathered import FleetView, LinkView, RailView
from sparkfleet.errors import NodeError
from sparkfleet.nodes.base import Channel, Completed

PING_S = 15.0
HEADERS = 28
"""IPv4 and ICMP headers, bytes."""

_TIMES = re.compile(r"^rtt min/avg/max/mdev = [\d.]{1,12}/([\d.]{1,12})/", re.MULTILINE | re.ASCII)
_RECEIVED = re.compile(r"\b(\d{1,6}) received", re.ASCII)


async def measure_links(fleet: FleetView, channels: Mapping[str, Channel]) -> tuple[LinkView, ...]:
    """The links of a fleet with what was measured on them. Links of a silent node stay unmeasured."""
    locks = {node.name: asyncio.Lock() for node in fleet.answered}
    return tuple(await asyncio.gather(*(_link(link, locks, channels) for link in fleet.links)))


async def _link(
    link: LinkView, locks: Mapping[str, asyncio.Lock], channels: Mapping[str, Channel]
) -> LinkView:
    if link.switch is not None or not all(name in locks for name in link.nodes):
        return link
    # In one order everywhere: two links cannot wait for each other.
    first, second = sorted(link.nodes)
    async with locks[first], locks[second]:
        rails = [await _pinged(rail, channels) for rail in link.rails]
        return link.model_copy(update={"rails": tuple(rails)})


async def _pinged(rail: RailView, channels: Mapping[str, Channel]) -> RailView:
    here, there = rail.ends[0], rail.ends[-1]
    channel = channels[here.node]
    full, small = await asyncio.gather(
        _run(channel, ping(here.netdev, there.ip, thresholds.RAIL_MTU - HEADERS)),
        _run(channel, ping(here.netdev, there.ip, 56)),
    )
    return rail.model_copy(update={"jumbo": passed(full), "latency_us": average_us(small)})


def ping(netdev: str, address: str, size: int) -> tuple[str, ...]:
    """Five packets of `size` bytes that may not be cut."""
    return (
        "ping",
        "-n",
        "-c",
        "5",
        "-i",
        "0.2",
        "-W",
        "1",
        "-M",
        "do",
        "-s",
        str(size),
        "-I",
        netdev,
        address,
    )


def passed(done: Completed | NodeError) -> bool | None:
    """Whether any of the packets came back; None where `ping` could not be run."""
    if isinstance(done, NodeError):
        return None
    found = _RECEIVED.search(done.stdout)
    return None if found is None else int(found[1]) > 0


def average_us(done: Completed | NodeError) -> float | None:
    """The average time there and back, microseconds."""
    found = None if isinstance(done, NodeError) else _TIMES.search(done.stdout)
    try:
        return float(found[1]) * 1000 if found else None
    except ValueError:
        return None


async def _run(channel: Channel, argv: Sequence[str]) -> Completed | NodeError:
    try:
        return await channel.run(argv, timeout_s=PING_S)
    except NodeError as error:
        return error
