"""Layout of a lab: names, addresses, cables and rails. Pure: nothing is created here.

Device names and their pairing are a DGX Spark's: port 0 is enp1s0f0np0 with enP2p1s0f0np0, port 1 (the outer one) is
enp1s0f1np1 with enP2p1s0f1np1; one QSFP cable is both halves of a port. Subnets are those of NVIDIA's playbooks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network

from sparkfleet.lab.errors import LabError

PREFIX = "sfl-"
MANAGEMENT = "enP7s7"
MOST_NODES = 64
RAIL_MTU = 9000
RDMA_OF = {
    "enp1s0f0np0": "rocep1s0f0",
    "enP2p1s0f0np0": "roceP2p1s0f0",
    "enp1s0f1np1": "rocep1s0f1",
    "enP2p1s0f1np1": "roceP2p1s0f1",
}
"""RoCE device of each fabric netdev."""
PORTS = (("enp1s0f0np0", "enP2p1s0f0np0"), ("enp1s0f1np1", "enP2p1s0f1np1"))
"""The two halves of each QSFP port: the first is a function of PCI domain 0000, the second of 0002."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,9}")
_FIRST_HOST = 10


class Topology(StrEnum):
    """Cabling of the nodes."""

    DIRECT = "direct"
    RING = "ring"
    SWITCH = "switch"
    CAPTURED = "captured"
    """That of the fleet of which a bundle was made: see `CableOrder`."""


@dataclass(frozen=True)
class SimulatedRailEnd:
    """One end of a rail: a netdev of a node, with its first address (`192.168.100.11/24`)."""

    node: str
    netdev: str
    address: str

    @property
    def rdma(self) -> str:
        """The RoCE device of the netdev."""
        return RDMA_OF[self.netdev]


@dataclass(frozen=True)
class SimulatedRail:
    """One half of a cable; `bridge` joins its ends in the lab's fabric namespace."""

    bridge: str
    ends: tuple[SimulatedRailEnd, ...]


@dataclass(frozen=True)
class CableOrder:
    """One cable of a captured fleet: its nodes by their numbers from 1, and the ends of its rails as (netdev, address)."""

    nodes: tuple[int, ...]
    switch: str | None
    rails: tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True)
class Cable:
    """A QSFP cable: between two nodes, or between a node and the switch. Two rails."""

    name: str
    nodes: tuple[str, ...]
    switch: str | None
    rails: tuple[SimulatedRail, ...]


@dataclass(frozen=True)
class NodeLayout:
    """One node: its number from 1, its name and its address on the management LAN."""

    number: int
    name: str
    address: str


@dataclass(frozen=True)
class Layout:
    """Everything about a lab that follows from its name, size, topology and `/24`."""

    name: str
    topology: Topology
    subnet: int
    nodes: tuple[NodeLayout, ...]
    cables: tuple[Cable, ...]

    @property
    def switch_bridges(self) -> frozenset[str]:
        """Bridges that are switches; each other one is a cable between two nodes."""
        return frozenset(rail.bridge for cable in self.cables if cable.switch for rail in cable.rails)

    @property
    def network(self) -> str:
        """The management LAN."""
        return f"10.77.{self.subnet}.0/24"

    @property
    def operator_address(self) -> str:
        """The host's own address on the management LAN."""
        return f"10.77.{self.subnet}.1"

    @property
    def gateway_address(self) -> str:
        """Default route of the nodes: a dead end that answers "unreachable" at once."""
        return f"10.77.{self.subnet}.254"

    @property
    def operator_netdev(self) -> str:
        """The lab's only device on the host."""
        return PREFIX + self.name

    @property
    def fabric(self) -> str:
        """The namespace of the management bridge and the middle of every cable."""
        return f"{PREFIX}{self.name}-fabric"

    def namespace(self, node: str) -> str:
        """The network namespace of a node."""
        return f"{PREFIX}{self.name}-{self.node(node).name}"

    def node(self, name: str) -> NodeLayout:
        """The node of that name. Raises LabError."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise LabError(f"The lab {self.name} has no node {name!r}.", do=f"Its nodes are {known}.")

    def cable(self, name: str) -> Cable:
        """The cable of that name, either end first. Raises LabError."""
        for cable in self.cables:
            if name in (cable.name, "-".join(reversed(cable.name.split("-")))):
                return cable
        known = ", ".join(cable.name for cable in self.cables) or "none"
        raise LabError(f"The lab {self.name} has no link {name!r}.", do=f"Its links: {known}.")

    def ends(self, node: str) -> Iterator[SimulatedRailEnd]:
        """The rail ends of a node that a cable is plugged into."""
        for cable in self.cables:
            for rail in cable.rails:
                yield from (end for end in rail.ends if end.node == node)


def fabric_end(number: int, netdev: str) -> str:
    """The other end of a node's veth, in the fabric namespace (`n1-0p1` is node 1, half 0, port 1)."""
    if netdev == MANAGEMENT:
        return f"n{number}-lan"
    port = 0 if netdev in PORTS[0] else 1
    return f"n{number}-{PORTS[port].index(netdev)}p{port}"


def check_name(name: str) -> str:
    """The lab's name, which becomes part of device names. Raises LabError."""
    if not _NAME.fullmatch(name):
        raise LabError(
            f"{name!r} cannot be the name of a lab.",
            do="Use a-z, 0-9 and inner dashes, at most 10 characters (a device name has at most 15).",
        )
    return name


def make_layout(
    name: str, nodes: int, topology: Topology | None, subnet: int, cabling: Sequence[CableOrder] = ()
) -> Layout:
    """The layout of a lab.

    Args:
        name: the lab's name.
        nodes: number of Sparks.
        topology: by default one cable for two nodes, a switch for more.
        subnet: third byte of its management LAN.
        cabling: its cables, if the topology is that of a captured fleet.

    Raises:
        LabError: the name cannot be one, or so many nodes cannot be joined so.
    """
    check_name(name)
    chosen = topology or (Topology.DIRECT if nodes <= 2 else Topology.SWITCH)
    _check_size(nodes, chosen)
    made = tuple(NodeLayout(n, f"spark{n}", f"10.77.{subnet}.{_FIRST_HOST + n}") for n in range(1, nodes + 1))
    cables = _captured(made, cabling) if chosen is Topology.CAPTURED else _cables(made, chosen)
    return Layout(name, chosen, subnet, made, tuple(cables))


def _check_size(nodes: int, topology: Topology) -> None:
    least, most = {
        Topology.DIRECT: (1, 2),
        Topology.RING: (3, MOST_NODES),
        Topology.SWITCH: (1, MOST_NODES),
        Topology.CAPTURED: (1, MOST_NODES),
    }[topology]
    if not least <= nodes <= most:
        raise LabError(
            f"{nodes} nodes cannot be joined as {topology}.",
            means="A direct cable joins two nodes, a ring needs three, and a lab has at most 64.",
            do=f"Give {least} to {most} nodes, or another --topology.",
        )


def _cables(nodes: tuple[NodeLayout, ...], topology: Topology) -> Iterator[Cable]:
    if topology is Topology.SWITCH:
        yield from (_to_switch(node) for node in nodes)
    elif topology is Topology.RING:
        # A ring is cabled from port 0 of each node to port 1 of the next one (NVIDIA's three-Spark playbook).
        for index, node in enumerate(nodes):
            yield _between(index, (node, 0), (nodes[(index + 1) % len(nodes)], 1))
    elif len(nodes) == 2:
        yield _between(0, (nodes[0], 1), (nodes[1], 1))


def _captured(nodes: tuple[NodeLayout, ...], cabling: Sequence[CableOrder]) -> Iterator[Cable]:
    """Cables of a captured fleet. A second one between the same nodes has a number at the end of its name."""
    switches = list(dict.fromkeys(order.switch for order in cabling if order.switch))
    names: Counter[str] = Counter()
    for index, order in enumerate(cabling):
        ends = tuple(nodes[number - 1].name for number in order.nodes)
        joined = "-".join((*ends, order.switch) if order.switch else ends)
        names[joined] += 1
        bridge = f"s{switches.index(order.switch)}" if order.switch else ""
        rails = tuple(
            SimulatedRail(
                bridge or f"c{index}r{number}",
                tuple(
                    SimulatedRailEnd(node, netdev, address)
                    for node, (netdev, address) in zip(ends, rail, strict=True)
                ),
            )
            for number, rail in enumerate(order.rails)
        )
        name = joined if names[joined] == 1 else f"{joined}-{names[joined]}"
        yield Cable(name, ends, order.switch, rails)


def _between(index: int, *sides: tuple[NodeLayout, int]) -> Cable:
    ordered = sorted(sides, key=lambda side: side[0].number)
    names = tuple(node.name for node, _ in ordered)
    rails = tuple(
        SimulatedRail(
            bridge=f"c{index}r{half}",
            ends=tuple(
                SimulatedRailEnd(
                    node.name, PORTS[port][half], rail_address(_subnet_of(index, half), node.number)
                )
                for node, port in ordered
            ),
        )
        for half in (0, 1)
    )
    return Cable("-".join(names), names, None, rails)


def _to_switch(node: NodeLayout) -> Cable:
    rails = tuple(
        SimulatedRail(
            "switch",
            (SimulatedRailEnd(node.name, PORTS[1][half], rail_address(_subnet_of(0, half), node.number)),),
        )
        for half in (0, 1)
    )
    return Cable(f"{node.name}-switch", (node.name,), "switch", rails)


def _subnet_of(index: int, half: int) -> str:
    """A rail's subnet: 192.168.100.0/24 and .101 for the first cable, as in NVIDIA's playbook, then the next ones."""
    number = 100 + 2 * index + half
    return f"192.168.{number}.0/24" if number < 256 else f"172.30.{number - 256}.0/24"


def rail_address(network: str, number: int, half: int = 0) -> str:
    """The address of node `number` in `network`: .10 for the first. `half` 1 keeps two rails in one subnet apart."""
    subnet = IPv4Network(network)
    return f"{subnet[_FIRST_HOST - 1 + number + 100 * half]}/{subnet.prefixlen}"
