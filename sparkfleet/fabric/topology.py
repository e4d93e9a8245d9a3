"""Cables, found from the neighbours that both ends heard. Pure.

Nothing is taken from hopes or from names alone: a rail is a pair of netdevs of which one has heard the other. The two
halves of a port may hear each other through its switch, or not; both kinds have been reported, and both give the same
cable here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sparkfleet.fabric.adjacency import Sights, bridges_of, sights_of
from sparkfleet.fabric.discovery import DiscoveredLinks, FoundEnd, FoundLink, FoundRail
from sparkfleet.fabric.port_scan import Method, PortScan
from sparkfleet.fabric.ports import DEVICE_NAME, Jack, Port, half_of, rail_netdevs
from sparkfleet.fabric.rejected_ports import bonded, twins, unused
from sparkfleet.hostfacts.netdev import Netdev


def find_links(views: Sequence[PortScan]) -> DiscoveredLinks:
    """The cables between nodes, from what each of them hears.

    A rail is found when one of its ends has heard the other. Three jacks or more that hear each other, or one that
    hears an LLDP bridge, are a switch. What cannot be told is a finding, never a guess.
    """
    rails = {view.node: rail_netdevs(view) for view in views}
    ports = {Port(node, one.name): one for node, found in rails.items() for one in found}
    findings = [*twins(ports), *bonded(views)]
    sights, strangers = sights_of(views, ports)
    bridges = dict(bridges_of(views, ports))
    links: list[FoundLink] = []
    used: set[Port] = set()
    for jacks in _segments(ports, sights, bridges):
        for link in _links(jacks, _Sense(views, ports, sights, bridges)):
            links.append(link)
            used.update(Port(end.node, end.netdev.name) for rail in link.rails for end in rail.ends)
    findings += unused(ports, used, sights, strangers)
    return DiscoveredLinks(links=_named(links), findings=tuple(findings))


def _segments(ports: Iterable[Port], sights: Sights, bridges: dict[Port, str]) -> list[tuple[Jack, ...]]:
    """Jacks that are on one wire or one switch, in a stable order. A jack that hears nobody is in none."""
    beside: dict[object, set[object]] = defaultdict(set)
    for port in ports:
        for other in (*sights.get(port, ()), *([bridges[port]] if port in bridges else [])):
            there = other.jack if isinstance(other, Port) else other
            beside[port.jack].add(there)
            beside[there].add(port.jack)
    found, seen = [], set[object]()
    for jack in sorted({port.jack for port in ports}):
        if jack in beside and jack not in seen:
            reached = _reach(jack, beside)
            seen |= reached
            found.append(tuple(sorted(one for one in reached if isinstance(one, Jack))))
    return found


def _reach(start: object, beside: dict[object, set[object]]) -> set[object]:
    reached, edge = {start}, [start]
    while edge:
        new = beside[edge.pop()] - reached
        reached |= new
        edge += new
    return reached


class _Sense(NamedTuple):
    """Everything that was heard."""

    views: Sequence[PortScan]
    ports: dict[Port, Netdev]
    sights: Sights
    bridges: dict[Port, str]

    def of(self, jack: Jack) -> list[Port]:
        """The ports of a jack, the half in PCI domain 0 first."""
        found = [port for port in self.ports if port.jack == jack]
        return sorted(found, key=lambda port: (half_of(port.netdev), port.netdev))

    def end(self, port: Port) -> FoundEnd:
        """A port as the end of a rail."""
        view = next(view for view in self.views if view.node == port.node)
        devices = (link.device for link in view.rdma if link.netdev == port.netdev)
        rdma = next((device for device in devices if DEVICE_NAME.fullmatch(device)), None)
        return FoundEnd(node=port.node, netdev=self.ports[port], rdma=rdma)

    def methods(self, port: Port) -> tuple[Method, ...]:
        """Means by which a port heard others."""
        found = {method for methods in self.sights.get(port, {}).values() for method in methods}
        if port in self.bridges:
            found.add("lldp")
        return tuple(sorted(found))


def _links(jacks: tuple[Jack, ...], sense: _Sense) -> Iterator[FoundLink]:
    """The cables of one segment. One node's jacks alone are a loop, and no link."""
    names = {sense.bridges[port] for jack in jacks for port in sense.of(jack) if port in sense.bridges}
    if names or len(jacks) > 2:
        for jack in jacks:
            yield _to_switch(jack, min(names, default=""), sense)
    elif len({jack.node for jack in jacks}) == 2:
        yield _direct(jacks[0], jacks[1], sense)


def _to_switch(jack: Jack, name: str, sense: _Sense) -> FoundLink:
    heard = [port for port in sense.of(jack) if sense.sights.get(port) or port in sense.bridges]
    rails = tuple(FoundRail(ends=(sense.end(port),), methods=sense.methods(port)) for port in heard)
    return FoundLink(nodes=(jack.node,), switch=_as_name(name), rails=rails)


def _direct(one: Jack, other: Jack, sense: _Sense) -> FoundLink:
    """Halves are paired with their like where they heard each other, and otherwise with whom they heard."""
    pairs = [(a, b) for a in sense.of(one) for b in sense.of(other) if b in sense.sights.get(a, {})]
    pairs.sort(key=lambda pair: half_of(pair[0].netdev) != half_of(pair[1].netdev))
    rails: list[FoundRail] = []
    used: set[Port] = set()
    for a, b in pairs:
        if not used & {a, b}:
            used |= {a, b}
            methods = tuple(sorted(sense.sights[a][b]))
            rails.append(FoundRail(ends=(sense.end(a), sense.end(b)), methods=methods))
    rails.sort(key=lambda rail: (half_of(rail.ends[0].netdev.name), rail.ends[0].netdev.name))
    return FoundLink(nodes=(one.node, other.node), rails=tuple(rails))


def _named(links: list[FoundLink]) -> tuple[FoundLink, ...]:
    """Switches that gave no name are `switch`: without LLDP, nothing tells two of them apart by name."""
    return tuple(
        link.model_copy(update={"switch": link.switch or "switch"}) if link.switch is not None else link
        for link in links
    )


def _as_name(text: str) -> str:
    """A system's own name in the form of a node's name; "" if nothing of it can be used."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:32].strip("-")
