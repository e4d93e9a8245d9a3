"""Finds cables from the neighbours that answered on both ends. Pure.

Names alone prove nothing: a rail is a pair of netdevs of which one has an answer of the other. The two halves of a port
may receive each other's packets through the NIC's switch, or not; both are reported in the field, and give the same cable
here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparkfleet.fabric.adjacency import Adjacency, adjacency_of, bridges_of
from sparkfleet.fabric.discovery import DiscoveredLinks, FoundEnd, FoundLink, FoundRail
from sparkfleet.fabric.port_scan import Method, PortScan
from sparkfleet.fabric.ports import DEVICE_NAME, Jack, Port, half_of, jack_at, rail_netdevs
from sparkfleet.fabric.rejected_ports import bonded, twins, unused
from sparkfleet.hostfacts.network.netdev import Netdev


def find_links(views: Sequence[PortScan]) -> DiscoveredLinks:
    """The cables between nodes, from the answers that each of them received.

    A rail is found if one of its ends has an answer of the other. Three or more adjacent jacks, or one that
    receives LLDP of a bridge, are at a switch. An ambiguous port is a finding, never a guess.
    """
    rails = {view.node: rail_netdevs(view) for view in views}
    ports = {Port(node, one.name): one for node, found in rails.items() for one in found}
    findings = [*twins(ports), *bonded(views)]
    adjacency, strangers = adjacency_of(views, ports)
    bridges = dict(bridges_of(views, ports))
    links: list[FoundLink] = []
    used: set[Port] = set()
    for jacks in _segments(ports, adjacency, bridges):
        for link in _links(jacks, _Answers(views, ports, adjacency, bridges)):
            links.append(link)
            used.update(Port(end.node, end.netdev.name) for rail in link.rails for end in rail.ends)
    findings += unused(ports, used, adjacency, strangers)
    return DiscoveredLinks(links=_named(links), findings=tuple(findings))


def _segments(
    ports: dict[Port, Netdev], adjacency: Adjacency, bridges: dict[Port, str]
) -> list[tuple[Jack, ...]]:
    """Jacks that are on one wire or one switch, in a stable order. A jack without a neighbour is in none."""
    jacks = {port: jack_at(port, netdev) for port, netdev in ports.items()}
    beside: dict[object, set[object]] = defaultdict(set)
    for port, jack in jacks.items():
        for other in (*adjacency.get(port, ()), *([bridges[port]] if port in bridges else [])):
            there = jacks[other] if isinstance(other, Port) else other
            beside[jack].add(there)
            beside[there].add(jack)
    found, seen = [], set[object]()
    for jack in sorted(set(jacks.values())):
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


class _Answers(NamedTuple):
    """All answers."""

    views: Sequence[PortScan]
    ports: dict[Port, Netdev]
    adjacency: Adjacency
    bridges: dict[Port, str]

    def of(self, jack: Jack) -> list[Port]:
        """The ports of a jack, the half in PCI domain 0 first."""
        found = [port for port, netdev in self.ports.items() if jack_at(port, netdev) == jack]
        return sorted(found, key=lambda port: (self.half(port), port.netdev))

    def half(self, port: Port) -> int:
        """Half of its jack that a port is."""
        return half_of(port.netdev, self.ports[port].pci)

    def end(self, port: Port) -> FoundEnd:
        """A port as the end of a rail."""
        view = next(view for view in self.views if view.node == port.node)
        devices = (link.device for link in view.rdma if link.netdev == port.netdev)
        rdma = next((device for device in devices if DEVICE_NAME.fullmatch(device)), None)
        return FoundEnd(node=port.node, netdev=self.ports[port], rdma=rdma)

    def methods(self, port: Port) -> tuple[Method, ...]:
        """Methods by which a port found others."""
        found = {method for methods in self.adjacency.get(port, {}).values() for method in methods}
        if port in self.bridges:
            found.add("lldp")
        return tuple(sorted(found))


def _links(jacks: tuple[Jack, ...], answers: _Answers) -> Iterator[FoundLink]:
    """The cables of one segment. Jacks of one node alone are a loop, not a link."""
    names = {answers.bridges[port] for jack in jacks for port in answers.of(jack) if port in answers.bridges}
    if names or len(jacks) > 2:
        for jack in jacks:
            yield _to_switch(jack, min(names, default=""), answers)
    elif len({jack.node for jack in jacks}) == 2:
        yield _direct(jacks[0], jacks[1], answers)


def _to_switch(jack: Jack, name: str, answers: _Answers) -> FoundLink:
    seen = [port for port in answers.of(jack) if answers.adjacency.get(port) or port in answers.bridges]
    rails = tuple(FoundRail(ends=(answers.end(port),), methods=answers.methods(port)) for port in seen)
    return FoundLink(nodes=(jack.node,), switch=_as_name(name), rails=rails)


def _direct(one: Jack, other: Jack, answers: _Answers) -> FoundLink:
    """Pairs equal halves if they are adjacent, and otherwise each half with the one that it is adjacent to."""
    pairs = [(a, b) for a in answers.of(one) for b in answers.of(other) if b in answers.adjacency.get(a, {})]
    pairs.sort(key=lambda pair: answers.half(pair[0]) != answers.half(pair[1]))
    rails: list[FoundRail] = []
    used: set[Port] = set()
    for a, b in pairs:
        if not used & {a, b}:
            used |= {a, b}
            methods = tuple(sorted(answers.adjacency[a][b]))
            rails.append(FoundRail(ends=(answers.end(a), answers.end(b)), methods=methods))
    rails.sort(key=lambda rail: _order(rail.ends[0].netdev))
    return FoundLink(nodes=(one.node, other.node), rails=tuple(rails))


def _order(netdev: Netdev) -> tuple[int, str]:
    return half_of(netdev.name, netdev.pci), netdev.name


def _named(links: list[FoundLink]) -> tuple[FoundLink, ...]:
    """Switches without a name are `switch`: without LLDP two of them cannot be distinguished by name."""
    return tuple(
        link.model_copy(update={"switch": link.switch or "switch"}) if link.switch is not None else link
        for link in links
    )


def _as_name(text: str) -> str:
    """A system's own name in the form of a node's name; "" if it has no usable character."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:32].strip("-")
