"""Ports that are not used as rails, with the reason. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from sparkfleet.fabric.adjacency import Adjacency
from sparkfleet.fabric.discovery import RejectedPort
from sparkfleet.fabric.port_scan import PortScan
from sparkfleet.fabric.ports import Jack, Port, is_spark_port, jack_at
from sparkfleet.hostfacts.network.netdev import Netdev


def twins(ports: dict[Port, Netdev]) -> Iterator[RejectedPort]:
    """Ports that have the MAC of another one."""
    first: dict[str, Port] = {}
    for port, netdev in ports.items():
        twin = first.setdefault(netdev.mac, port)
        if twin != port:
            yield RejectedPort(
                node=port.node,
                netdev=port.netdev,
                what=f"has the MAC {netdev.mac} of {twin.netdev} of {twin.node}.",
                do="They cannot be distinguished: the same machine is listed twice, or its disk was cloned.",
            )


def bonded(views: Sequence[PortScan]) -> Iterator[RejectedPort]:
    """Netdevs with RDMA, or with a Spark's names, that belong to a bond or a bridge."""
    for view in views:
        with_rdma = {link.netdev for link in view.rdma}
        for netdev in view.netdevs:
            if netdev.master and (netdev.name in with_rdma or is_spark_port(netdev.name)):
                yield RejectedPort(
                    node=view.node,
                    netdev=netdev.name,
                    what=f"belongs to {netdev.master}: RDMA does not work on a bonded or bridged rail.",
                    do=f"Remove it from {netdev.master}.",
                )


def unused(
    ports: dict[Port, Netdev], used: set[Port], adjacency: Adjacency, strangers: dict[Port, str]
) -> Iterator[RejectedPort]:
    """Ports without a rail; a jack without any signal is one entry."""
    jacks = {port: jack_at(port, netdev) for port, netdev in ports.items()}
    dark: dict[Jack, list[str]] = defaultdict(list)
    for port, netdev in ports.items():
        if netdev.up and not netdev.carrier and port not in used:
            dark[jacks[port]].append(port.netdev)
    number = Counter(jacks.values())
    cabled = set(number) - {jack for jack, names in dark.items() if len(names) == number[jack]}
    for jack, names in dark.items():
        if jack not in cabled:
            what = (
                f"{'has' if len(names) == 1 else 'have'} no signal: no cable, or no device at the other end."
            )
            yield RejectedPort(node=jack.node, netdev=" and ".join(names), what=what)
    for port, netdev in ports.items():
        if port not in used and jacks[port] in cabled:
            what, do = _why_not(port, netdev, adjacency, strangers)
            yield RejectedPort(node=port.node, netdev=port.netdev, what=what, do=do)


def _why_not(port: Port, netdev: Netdev, adjacency: Adjacency, strangers: dict[Port, str]) -> tuple[str, str]:
    if not netdev.up:
        return "is switched off.", f"On {port.node}: sudo ip link set {netdev.name} up; then run this again."
    if not netdev.carrier:
        return "has no signal, but the other half of its port has: half of the cable does not work.", ""
    if other := next(iter(adjacency.get(port, {})), None):
        if other.node == port.node:
            return f"sees {other.netdev} of the same node: the cable is a loop.", ""
        return f"sees {other.netdev} of {other.node}, which is already the end of another rail.", ""
    if stranger := strangers.get(port):
        return (
            f"sees {stranger}, which is not one of the nodes.",
            "Add that machine to the nodes, or ignore this cable.",
        )
    return _silent(port, netdev)


def _silent(port: Port, netdev: Netdev) -> tuple[str, str]:
    if not (netdev.link_local or netdev.ipv4):
        return (
            "has a signal, but no address to ask its neighbour from: NetworkManager takes the link-local one away"
            " whenever no DHCP server has answered.",
            f"Run this again in a minute, or after `sudo apt install iputils-arping` on {port.node}: arping needs none.",
        )
    return (
        "has a signal, but no node answered on it.",
        "Add the node at its other end, or allow ARP and ICMPv6 in its firewall.",
    )
