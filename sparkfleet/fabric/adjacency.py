"""Pairs of ports that hear each other, one for every answer. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from sparkfleet.fabric.port_scan import HeardNeighbour, Method, PortScan
from sparkfleet.fabric.ports import Port
from sparkfleet.hostfacts.netdev import Netdev

Sights = dict[Port, dict[Port, set[Method]]]
"""Whom each port hears or is heard by, and how."""


def sights_of(views: Sequence[PortScan], ports: dict[Port, Netdev]) -> tuple[Sights, dict[Port, str]]:
    """Both directions of every answer, and the last stranger that a port heard."""
    by_mac, by_address = _owners(ports)
    sights: Sights = defaultdict(lambda: defaultdict(set))
    strangers: dict[Port, str] = {}
    for view in views:
        for heard in (*view.heard, *_by_lldp(view)):
            port = Port(view.node, heard.netdev)
            if port not in ports:
                continue
            owner = by_mac.get(heard.mac) or by_address.get(heard.address)
            if owner is None:
                strangers[port] = heard.mac or heard.address
            elif owner != port:
                sights[port][owner].add(heard.method)
                sights[owner][port].add(heard.method)
    return sights, strangers


def _owners(ports: dict[Port, Netdev]) -> tuple[dict[str, Port | None], dict[str, Port | None]]:
    """Ports by MAC and by link-local address; one that several have names none of them."""
    by_mac: dict[str, Port | None] = {}
    by_address: dict[str, Port | None] = {}
    for port, netdev in ports.items():
        by_mac[netdev.mac] = None if netdev.mac in by_mac else port
        for address in netdev.link_local:
            by_address[address] = None if address in by_address else port
    return by_mac, by_address


def _by_lldp(view: PortScan) -> Iterator[HeardNeighbour]:
    for one in view.lldp:
        if one.macs and not one.bridge:
            yield HeardNeighbour(netdev=one.netdev, method="lldp", mac=one.macs[0])


def bridges_of(views: Sequence[PortScan], ports: dict[Port, Netdev]) -> Iterator[tuple[Port, str]]:
    """The switch that says by LLDP that it is at the other end of a port."""
    for view in views:
        for one in view.lldp:
            port = Port(view.node, one.netdev)
            if one.bridge and port in ports:
                yield port, one.system or next(iter(one.macs), "switch")
