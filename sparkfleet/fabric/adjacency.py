"""Adjacent ports: pairs of which one answered the other. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from sparkfleet.fabric.port_scan import Method, NeighbourAnswer, PortScan
from sparkfleet.fabric.ports import Port
from sparkfleet.hostfacts.network.netdev import Netdev

Adjacency = dict[Port, dict[Port, set[Method]]]
"""Ports that each port is adjacent to, with the methods that found them."""


def adjacency_of(views: Sequence[PortScan], ports: dict[Port, Netdev]) -> tuple[Adjacency, dict[Port, str]]:
    """Both directions of every answer, and the last unknown machine that answered each port.

    An answer of a port without a carrier is what a neighbour's table has kept: at a switch the other end of an unplugged
    cable still has a signal, and its kernel asks the old MAC for some seconds before it gives up.
    """
    by_mac, by_address = _owners(ports)
    adjacency: Adjacency = defaultdict(lambda: defaultdict(set))
    strangers: dict[Port, str] = {}
    for view in views:
        for answer in (*view.answers, *_by_lldp(view)):
            port = Port(view.node, answer.netdev)
            if port not in ports:
                continue
            owner = by_mac.get(answer.mac) or by_address.get(answer.address)
            if owner is None:
                strangers[port] = answer.mac or answer.address
            elif owner != port and ports[owner].carrier:
                adjacency[port][owner].add(answer.method)
                adjacency[owner][port].add(answer.method)
    return adjacency, strangers


def _owners(ports: dict[Port, Netdev]) -> tuple[dict[str, Port | None], dict[str, Port | None]]:
    """Ports by MAC and by link-local address; an address of several ports identifies none of them."""
    by_mac: dict[str, Port | None] = {}
    by_address: dict[str, Port | None] = {}
    for port, netdev in ports.items():
        by_mac[netdev.mac] = None if netdev.mac in by_mac else port
        for address in netdev.link_local:
            by_address[address] = None if address in by_address else port
    return by_mac, by_address


def _by_lldp(scan: PortScan) -> Iterator[NeighbourAnswer]:
    for one in scan.lldp:
        if one.macs and not one.bridge:
            yield NeighbourAnswer(netdev=one.netdev, method="lldp", mac=one.macs[0])


def bridges_of(views: Sequence[PortScan], ports: dict[Port, Netdev]) -> Iterator[tuple[Port, str]]:
    """Switches that announce themselves by LLDP at the other end of a port."""
    for view in views:
        for one in view.lldp:
            port = Port(view.node, one.netdev)
            if one.bridge and port in ports:
                yield port, one.system or next(iter(one.macs), "switch")
