"""Ports and neighbours of one node, from which cables are found."""

from __future__ import annotations

from typing import Literal

from sparkfleet.hostfacts.network.lldp import LldpNeighbour
from sparkfleet.hostfacts.network.netdev import Netdev
from sparkfleet.hostfacts.network.rdma import RdmaLink
from sparkfleet.values import Value

Method = Literal["lldp", "ipv6", "arp"]
"""Method that found a neighbour: LLDP, an answer to an IPv6 all-nodes ping, or an ARP answer."""


class NeighbourAnswer(Value):
    """One answer on a netdev of a node, with its sender's MAC or link-local address."""

    netdev: str
    method: Method
    mac: str = ""
    address: str = ""


class PortScan(Value):
    """Ports of one node and the answers that arrived on them."""

    node: str
    netdevs: tuple[Netdev, ...]
    management: str = ""
    """The netdev that the node is reached on; it is not a rail."""
    rdma: tuple[RdmaLink, ...] = ()
    lldp: tuple[LldpNeighbour, ...] = ()
    answers: tuple[NeighbourAnswer, ...] = ()
    networks: tuple[str, ...] = ()
    """IPv4 networks that it has a route to: no rail may get an address in a network of another netdev."""
