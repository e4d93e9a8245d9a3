"""Probes all cables between nodes, and reads the neighbours that each node then knows. Needs no root.

A fresh Spark has no addresses on its rails. An IPv6 all-nodes ping still finds its neighbour, because link-local
addresses are automatic. If they are disabled, `arping` queries the other nodes' addresses: Linux
answers on any of its devices, with the MAC of the device that received the query. Rails with addresses are pinged, and
the neighbour table has the MAC that answered. LLDP is read if it runs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Interface, ip_address

from sparkfleet.errors import NodeError
from sparkfleet.fabric.ask import ask, value_or
from sparkfleet.fabric.port_scan import NeighbourAnswer, PortScan
from sparkfleet.fabric.ports import rail_netdevs
from sparkfleet.hostfacts.network.arp_ndp import ReadNeighbours
from sparkfleet.hostfacts.network.lldp import ReadLldp
from sparkfleet.hostfacts.network.netdev import Netdev, ReadNetdevs
from sparkfleet.hostfacts.network.rdma import RdmaLink, ReadIbdev2netdev, ReadRdmaLinks
from sparkfleet.hostfacts.network.routes import ReadRoutes, RouteEntry, management_netdev
from sparkfleet.remote.batch import run_batch
from sparkfleet.remote.channel import Channel, Completed

ALL_NODES = "ff02::1"
ARP_TARGETS = 16
"""Nodes that `arping` queries on one rail, so that a large fleet does not take minutes."""

_REPLY = re.compile(r"bytes from (fe80:[0-9a-f:]{1,40})%", re.MULTILINE)
_ARP_REPLY = re.compile(r"reply from [0-9.]{7,15} \[([0-9A-Fa-f:]{17})\]")
_SERVER = re.compile(r"\S+ [0-9]+ (\S+) [0-9]+")


async def look(channels: Mapping[str, Channel]) -> tuple[PortScan, ...]:
    """Ports and neighbours of every node, after a probe on every cabled rail.

    Raises:
        NodeError: a node cannot be reached, or has no `ip` command.
        FactError: the output of `ip` cannot be parsed.
    """
    views = await asyncio.gather(*(view(name, channel) for name, channel in channels.items()))
    targets = {one.node: _addresses(one) for one in views}
    return tuple(
        await asyncio.gather(*(_listen(channels[one.node], one, _others(targets, one.node)) for one in views))
    )


async def view(name: str, channel: Channel) -> PortScan:
    """Reads netdevs, RDMA devices and LLDP neighbours of one node. Sends no probe."""
    netdevs, (routes, server, rdma, ibdev, lldp) = await asyncio.gather(
        ask(channel, ReadNetdevs.argv, ReadNetdevs.parse),
        run_batch(
            channel,
            [
                ReadRoutes.argv,
                ("printenv", "SSH_CONNECTION"),
                ReadRdmaLinks.argv,
                ReadIbdev2netdev.argv,
                ReadLldp.argv,
            ],
        ),
    )
    none: tuple[RdmaLink, ...] = ()
    routing = value_or(routes, ReadRoutes.parse, ())
    return PortScan(
        node=name,
        netdevs=netdevs,
        management=management_of(netdevs, routing, server),
        rdma=value_or(rdma, ReadRdmaLinks.parse, none) or value_or(ibdev, ReadIbdev2netdev.parse, none),
        lldp=value_or(lldp, ReadLldp.parse, ()),
        networks=tuple(dict.fromkeys(route.to for route in routing if not route.is_default)),
    )


def management_of(
    netdevs: Sequence[Netdev], routes: Sequence[RouteEntry], server: Completed | NodeError
) -> str:
    """The netdev of this SSH connection; without SSH, that of the default route. "" if neither is known."""
    printed = "" if isinstance(server, NodeError) else server.stdout.strip()
    if match := _SERVER.fullmatch(printed):
        try:
            reached = ip_address(match[1].partition("%")[0])
        except ValueError:
            reached = None
        for netdev in netdevs:
            if any(address.interface.ip == reached for address in netdev.addresses):
                return netdev.name
    return management_netdev(tuple(routes)) or ""


# --- probes ----------------------------------------------------------------------------------------------


async def _listen(channel: Channel, one: PortScan, others: Sequence[IPv4Interface]) -> PortScan:
    rails = [netdev for netdev in rail_netdevs(one) if netdev.up and netdev.carrier]
    by_ipv6 = await _all_nodes(channel, rails)
    by_arp = await _ping_neighbours(channel, rails, others)
    answers = [*by_ipv6, *by_arp]
    silent = [netdev for netdev in rails if netdev.name not in {one.netdev for one in answers}]
    answers += await _arping(channel, silent, others)
    return one.model_copy(update={"answers": tuple(answers)})


async def _all_nodes(channel: Channel, rails: Sequence[Netdev]) -> list[NeighbourAnswer]:
    """Answers to an all-nodes ping. The first round collects all answers; the second ends at its first answer."""
    asked = [netdev for netdev in rails if netdev.link_local]
    answers = await run_batch(channel, [all_nodes_ping(netdev.name) for netdev in asked])
    return [
        NeighbourAnswer(netdev=netdev.name, method="ipv6", address=address)
        for netdev, answer in zip(asked, answers, strict=True)
        if isinstance(answer, Completed)
        for address in replies(answer.stdout)
        if address not in netdev.link_local
    ]


def all_nodes_ping(netdev: str) -> tuple[str, ...]:
    """The command that makes every machine on a wire answer."""
    # Without root, multicast may be sent only once a second.
    return ("ping", "-6", "-n", "-c", "2", "-i", "1", "-w", "2", "-I", netdev, ALL_NODES)


def replies(output: str) -> tuple[str, ...]:
    """The link-local addresses that answered a ping, each once."""
    found = []
    for text in _REPLY.findall(output):
        try:
            found.append(str(ip_address(text)))
        except ValueError:
            continue
    return tuple(dict.fromkeys(found))


async def _ping_neighbours(
    channel: Channel, rails: Sequence[Netdev], others: Sequence[IPv4Interface]
) -> list[NeighbourAnswer]:
    """Pings the other nodes' addresses in each rail's subnet, then reads the MACs that answered."""
    pings = [
        ("ping", "-4", "-n", "-c", "1", "-W", "1", "-I", netdev.name, str(other.ip))
        for netdev in rails
        for mine in netdev.ipv4
        for other in others
        if other.ip in mine.network and other.ip != mine.ip
    ]
    if not pings:
        return []
    await run_batch(channel, pings)
    (table,) = await run_batch(channel, [ReadNeighbours.argv])
    names = {netdev.name for netdev in rails}
    return [
        NeighbourAnswer(netdev=one.netdev, method="arp" if "." in one.address else "ipv6", mac=one.mac)
        for one in value_or(table, ReadNeighbours.parse, ())
        if one.netdev in names and one.confirmed
    ]


async def _arping(
    channel: Channel, rails: Sequence[Netdev], others: Sequence[IPv4Interface]
) -> list[NeighbourAnswer]:
    """Queries the other nodes' addresses on rails without an answer. `arping` may be missing or forbidden."""
    questions = [(netdev, other) for netdev in rails for other in others[:ARP_TARGETS]]
    answers = await run_batch(channel, [_arp(netdev.name, str(other.ip)) for netdev, other in questions])
    return [
        NeighbourAnswer(netdev=netdev.name, method="arp", mac=mac.lower())
        for (netdev, _), answer in zip(questions, answers, strict=True)
        if isinstance(answer, Completed)
        for mac in _ARP_REPLY.findall(answer.stdout)
    ]


def _arp(netdev: str, address: str) -> tuple[str, ...]:
    # -D needs no own address; its exit code is 1 if a machine answers.
    return ("arping", "-D", "-c", "2", "-w", "1", "-I", netdev, address)


def _addresses(one: PortScan) -> tuple[IPv4Interface, ...]:
    """A node's addresses, that of the management network first, because every node has one."""
    ordered = sorted(one.netdevs, key=lambda netdev: netdev.name != one.management)
    return tuple(address for netdev in ordered if netdev.kind in ("", "veth") for address in netdev.ipv4)


def _others(targets: Mapping[str, tuple[IPv4Interface, ...]], node: str) -> tuple[IPv4Interface, ...]:
    """The other nodes' addresses, the first of each node before the second of any."""
    lists = [addresses for name, addresses in targets.items() if name != node]
    longest = max(map(len, lists), default=0)
    return tuple(one[index] for index in range(longest) for one in lists if index < len(one))
