"""Which cables there are, from what both of their ends see. Pure.

Nothing is taken from hopes or from names alone: a rail is a pair of netdevs of which one has heard the other. Names
decide one thing only: which two netdevs share a QSFP port (`enp1s0f1np1` with `enP2p1s0f1np1`), because on a Spark
that is how the ConnectX-7 is wired. The two halves of a port may hear each other through its switch, or not; both
kinds have been reported, and both give the same cable here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from sparkfleet.facts.netdev import LldpNeighbour, Netdev
from sparkfleet.facts.rdma import RdmaLink
from sparkfleet.values import Value

Method = Literal["lldp", "ipv6", "arp"]
"""How an end was heard: LLDP, an answer to an IPv6 all-nodes ping, or an ARP answer."""
Kind = Literal["none", "direct", "ring", "switch", "mixed"]

_SPARK_PORT = re.compile(r"en(P[0-9]+)?p[0-9]+s[0-9]+f([0-9]+)(np[0-9]+)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}")
"""What an inventory takes for a device. Other names are not dealt with: they come from the node."""
_NEVER = ("wl", "enP7s7")
"""Wi-Fi, and a Spark's 10 Gb/s Ethernet: a LAN, also where the node is reached in another way."""
_HARDWARE = ("", "veth")
"""Kinds of netdev that a cable can be in; veth is the cable of simulated nodes."""


class Heard(Value):
    """One answer that came in on a netdev of a node: who sent it, by MAC or by link-local address."""

    netdev: str
    method: Method
    mac: str = ""
    address: str = ""


class NodeView(Value):
    """What one node has, and what it hears."""

    node: str
    netdevs: tuple[Netdev, ...]
    management: str = ""
    """The netdev that the node is reached on; it is no rail."""
    rdma: tuple[RdmaLink, ...] = ()
    lldp: tuple[LldpNeighbour, ...] = ()
    heard: tuple[Heard, ...] = ()
    networks: tuple[str, ...] = ()
    """IPv4 networks that it has a route to: no rail may get an address in one of another netdev."""


class Finding(Value):
    """Why something is not taken for a rail."""

    node: str
    netdev: str
    what: str
    do: str = ""

    def __str__(self) -> str:
        said = f"{self.netdev} of {self.node} {self.what}" if self.netdev else f"{self.node} {self.what}"
        return f"{said} {self.do}".strip()


class FoundEnd(Value):
    """One end of a rail."""

    node: str
    netdev: Netdev
    rdma: str | None


class FoundRail(Value):
    """One rail: both ends, or the one at a switch, and how they heard of each other."""

    ends: tuple[FoundEnd, ...]
    methods: tuple[Method, ...]


class FoundLink(Value):
    """One cable with the rails on which somebody was heard."""

    nodes: tuple[str, ...]
    switch: str | None = None
    rails: tuple[FoundRail, ...]


class Found(Value):
    """Every cable between the nodes, and what could not be told."""

    links: tuple[FoundLink, ...]
    findings: tuple[Finding, ...]

    @property
    def kind(self) -> Kind:
        """The picture as a whole."""
        if not self.links:
            return "none"
        if all(link.switch for link in self.links):
            return "switch"
        pairs = {frozenset(link.nodes) for link in self.links}
        if any(link.switch for link in self.links):
            return "mixed"
        return "direct" if len(pairs) == 1 else "ring" if _is_ring(pairs) else "mixed"


class _Port(NamedTuple):
    node: str
    netdev: str


class _Jack(NamedTuple):
    """A place for one cable: on a Spark a QSFP port, with two netdevs."""

    node: str
    port: str


Sights = dict[_Port, dict[_Port, set[Method]]]


def find_links(views: Sequence[NodeView]) -> Found:
    """The cables between nodes, from what each of them hears.

    A rail is found when one of its ends has heard the other. Three jacks or more that hear each other, or one that
    hears an LLDP bridge, are a switch. What cannot be told is a finding, never a guess.
    """
    rails = {view.node: rail_netdevs(view) for view in views}
    ports = {_Port(node, one.name): one for node, found in rails.items() for one in found}
    findings = [*_twins(ports), *_bonded(views)]
    sights, strangers = _sights(views, ports)
    bridges = dict(_bridges(views, ports))
    links: list[FoundLink] = []
    used: set[_Port] = set()
    for jacks in _segments(ports, sights, bridges):
        for link in _links(jacks, _Sense(views, ports, sights, bridges)):
            links.append(link)
            used.update(_Port(end.node, end.netdev.name) for rail in link.rails for end in rail.ends)
    findings += _unused(ports, used, sights, strangers)
    return Found(links=_named(links), findings=tuple(findings))


def rail_netdevs(view: NodeView) -> tuple[Netdev, ...]:
    """Netdevs that may be rails: those with RDMA; without any, those with a Spark's names; else all with a cable's place."""
    able = [one for one in view.netdevs if _may_be_rail(one, view)]
    with_rdma = {link.netdev for link in view.rdma}
    for wanted in (lambda one: one.name in with_rdma, lambda one: _SPARK_PORT.fullmatch(one.name)):
        if chosen := [one for one in able if wanted(one)]:
            return tuple(chosen)
    return tuple(able)


def _may_be_rail(netdev: Netdev, view: NodeView) -> bool:
    return (
        netdev.name != view.management
        and netdev.kind in _HARDWARE
        and bool(netdev.mac)
        and bool(_NAME.fullmatch(netdev.name))
        and not netdev.master
        and not netdev.name.startswith(_NEVER)
    )


def jack_of(netdev: str) -> str:
    """The QSFP port of a netdev: the same for both of its halves."""
    spark = _SPARK_PORT.fullmatch(netdev)
    return f"port {spark[2]}" if spark else netdev


def half_of(netdev: str) -> int:
    """Which half of its port a netdev is: 0 in PCI domain 0, otherwise its domain."""
    spark = _SPARK_PORT.fullmatch(netdev)
    return int(spark[1][1:]) if spark and spark[1] else 0


# --- who hears whom ---------------------------------------------------------------------------------------------------


def _sights(views: Sequence[NodeView], ports: dict[_Port, Netdev]) -> tuple[Sights, dict[_Port, str]]:
    """Both directions of every answer, and the last stranger that a port heard."""
    by_mac, by_address = _owners(ports)
    sights: Sights = defaultdict(lambda: defaultdict(set))
    strangers: dict[_Port, str] = {}
    for view in views:
        for heard in (*view.heard, *_by_lldp(view)):
            port = _Port(view.node, heard.netdev)
            if port not in ports:
                continue
            owner = by_mac.get(heard.mac) or by_address.get(heard.address)
            if owner is None:
                strangers[port] = heard.mac or heard.address
            elif owner != port:
                sights[port][owner].add(heard.method)
                sights[owner][port].add(heard.method)
    return sights, strangers


def _owners(ports: dict[_Port, Netdev]) -> tuple[dict[str, _Port | None], dict[str, _Port | None]]:
    """Ports by MAC and by link-local address; one that several have names none of them."""
    by_mac: dict[str, _Port | None] = {}
    by_address: dict[str, _Port | None] = {}
    for port, netdev in ports.items():
        by_mac[netdev.mac] = None if netdev.mac in by_mac else port
        for address in netdev.link_local:
            by_address[address] = None if address in by_address else port
    return by_mac, by_address


def _by_lldp(view: NodeView) -> Iterator[Heard]:
    for one in view.lldp:
        if one.macs and not one.bridge:
            yield Heard(netdev=one.netdev, method="lldp", mac=one.macs[0])


def _bridges(views: Sequence[NodeView], ports: dict[_Port, Netdev]) -> Iterator[tuple[_Port, str]]:
    """The switch that says by LLDP that it is at the other end of a port."""
    for view in views:
        for one in view.lldp:
            port = _Port(view.node, one.netdev)
            if one.bridge and port in ports:
                yield port, one.system or next(iter(one.macs), "switch")


# --- segments ---------------------------------------------------------------------------------------------------------


def _segments(ports: Iterable[_Port], sights: Sights, bridges: dict[_Port, str]) -> list[tuple[_Jack, ...]]:
    """Jacks that are on one wire or one switch, in a stable order. A jack that hears nobody is in none."""
    beside: dict[object, set[object]] = defaultdict(set)
    for port in ports:
        for other in (*sights.get(port, ()), *([bridges[port]] if port in bridges else [])):
            there = _jack(other) if isinstance(other, _Port) else other
            beside[_jack(port)].add(there)
            beside[there].add(_jack(port))
    found, seen = [], set[object]()
    for jack in sorted({_jack(port) for port in ports}):
        if jack in beside and jack not in seen:
            reached = _reach(jack, beside)
            seen |= reached
            found.append(tuple(sorted(one for one in reached if isinstance(one, _Jack))))
    return found


def _reach(start: object, beside: dict[object, set[object]]) -> set[object]:
    reached, edge = {start}, [start]
    while edge:
        new = beside[edge.pop()] - reached
        reached |= new
        edge += new
    return reached


def _jack(port: _Port) -> _Jack:
    return _Jack(port.node, jack_of(port.netdev))


class _Sense(NamedTuple):
    """Everything that was heard."""

    views: Sequence[NodeView]
    ports: dict[_Port, Netdev]
    sights: Sights
    bridges: dict[_Port, str]

    def of(self, jack: _Jack) -> list[_Port]:
        """The ports of a jack, the half in PCI domain 0 first."""
        found = [port for port in self.ports if _jack(port) == jack]
        return sorted(found, key=lambda port: (half_of(port.netdev), port.netdev))

    def end(self, port: _Port) -> FoundEnd:
        """A port as the end of a rail."""
        view = next(view for view in self.views if view.node == port.node)
        devices = (link.device for link in view.rdma if link.netdev == port.netdev)
        rdma = next((device for device in devices if _NAME.fullmatch(device)), None)
        return FoundEnd(node=port.node, netdev=self.ports[port], rdma=rdma)

    def methods(self, port: _Port) -> tuple[Method, ...]:
        """How a port heard others."""
        found = {method for methods in self.sights.get(port, {}).values() for method in methods}
        return tuple(sorted({*found, *(["lldp"] if port in self.bridges else [])}))  # type: ignore[arg-type]  # sorted() widens the literals


def _links(jacks: tuple[_Jack, ...], sense: _Sense) -> Iterator[FoundLink]:
    """The cables of one segment. One node's jacks alone are a loop, and no link."""
    names = {sense.bridges[port] for jack in jacks for port in sense.of(jack) if port in sense.bridges}
    if names or len(jacks) > 2:
        for jack in jacks:
            yield _to_switch(jack, min(names, default=""), sense)
    elif len({jack.node for jack in jacks}) == 2:
        yield _direct(jacks[0], jacks[1], sense)


def _to_switch(jack: _Jack, name: str, sense: _Sense) -> FoundLink:
    heard = [port for port in sense.of(jack) if sense.sights.get(port) or port in sense.bridges]
    rails = tuple(FoundRail(ends=(sense.end(port),), methods=sense.methods(port)) for port in heard)
    return FoundLink(nodes=(jack.node,), switch=_as_name(name), rails=rails)


def _direct(one: _Jack, other: _Jack, sense: _Sense) -> FoundLink:
    """Halves are paired with their like where they heard each other, and otherwise with whom they heard."""
    pairs = [(a, b) for a in sense.of(one) for b in sense.of(other) if b in sense.sights.get(a, {})]
    pairs.sort(key=lambda pair: half_of(pair[0].netdev) != half_of(pair[1].netdev))
    rails: list[FoundRail] = []
    used: set[_Port] = set()
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
    """A system's own name in the form of a node's name; "" where nothing of it can be used."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:32].strip("-")


def _is_ring(pairs: set[frozenset[str]]) -> bool:
    degree: dict[str, int] = defaultdict(int)
    for pair in pairs:
        for node in pair:
            degree[node] += 1
    return len(pairs) == len(degree) and set(degree.values()) == {2}


# --- what is no rail, and why -----------------------------------------------------------------------------------------


def _twins(ports: dict[_Port, Netdev]) -> Iterator[Finding]:
    first: dict[str, _Port] = {}
    for port, netdev in ports.items():
        twin = first.setdefault(netdev.mac, port)
        if twin != port:
            yield Finding(
                node=port.node,
                netdev=port.netdev,
                what=f"has the MAC {netdev.mac} of {twin.netdev} of {twin.node}.",
                do="Nobody can tell them apart. Were the same machine named twice, or its disk cloned?",
            )


def _bonded(views: Sequence[NodeView]) -> Iterator[Finding]:
    for view in views:
        with_rdma = {link.netdev for link in view.rdma}
        for netdev in view.netdevs:
            if netdev.master and (netdev.name in with_rdma or _SPARK_PORT.fullmatch(netdev.name)):
                yield Finding(
                    node=view.node,
                    netdev=netdev.name,
                    what=f"belongs to {netdev.master}: RDMA does not work on a bonded or bridged rail.",
                    do=f"Take it out of {netdev.master}.",
                )


def _unused(
    ports: dict[_Port, Netdev], used: set[_Port], sights: Sights, strangers: dict[_Port, str]
) -> Iterator[Finding]:
    dark: dict[_Jack, list[str]] = defaultdict(list)
    for port, netdev in ports.items():
        if netdev.up and not netdev.carrier and port not in used:
            dark[_jack(port)].append(port.netdev)
    cabled = {_jack(port) for port in ports} - {
        jack for jack, names in dark.items() if len(names) == sum(_jack(port) == jack for port in ports)
    }
    for jack, names in dark.items():
        if jack not in cabled:
            what = f"{'has' if len(names) == 1 else 'have'} no signal: no cable, or nobody at its other end."
            yield Finding(node=jack.node, netdev=" and ".join(names), what=what)
    for port, netdev in ports.items():
        if port not in used and _jack(port) in cabled:
            what, do = _why_not(port, netdev, sights, strangers)
            yield Finding(node=port.node, netdev=port.netdev, what=what, do=do)


def _why_not(port: _Port, netdev: Netdev, sights: Sights, strangers: dict[_Port, str]) -> tuple[str, str]:
    if not netdev.up:
        return "is switched off.", f"`sudo ip link set {netdev.name} up` on {port.node}, then look again."
    if not netdev.carrier:
        return "has no signal, while the other half of its port has: half of the cable is lost.", ""
    if other := next(iter(sights.get(port, {})), None):
        if other.node == port.node:
            return f"hears {other.netdev} of the same node: the cable leads back.", ""
        return f"hears {other.netdev} of {other.node}, which is the end of another rail already.", ""
    if stranger := strangers.get(port):
        return (
            f"hears {stranger}, which is none of the nodes.",
            "Name that machine too, or leave this cable out.",
        )
    return (
        "sees nobody: it has a signal, but nobody answered on it.",
        "Is the node at its other end named? A firewall that drops ARP or ICMPv6 looks the same.",
    )
