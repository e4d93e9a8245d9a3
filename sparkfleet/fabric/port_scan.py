"""Ports and neighbours of one node, from which cables are found."""

from __future__ import annotations

from typing import Literal

from sparkfleet.hostfacts.lldp import LldpNeighbour
from sparkfleet.hostfacts.netdev import Netdev
from sparkfleet.hostfacts.rdma import RdmaLink
from sparkfleet.values import Value

Method = Literal["lldp", "ipv6", "arp"]
"""How an end was heard: LLDP, an answer to an IPv6 all-nodes ping, or an ARP answer."""


class HeardNeighbour(Value):
    """One answer that came in on a netdev of a node: who sent it, by MAC or by link-local address."""

    netdev: str
    method: Method
    mac: str = ""
    address: str = ""


class PortScan(Value):
    """Ports of one node and the neighbours that each heard."""

    node: str
    netdevs: tuple[Netdev, ...]
    management: str = ""
    """The netdev that the node is reached on; it is no rail."""
    rdma: tuple[RdmaLink, ...] = ()
    lldp: tuple[LldpNeighbour, ...] = ()
    heard: tuple[HeardNeighbour, ...] = ()
    networks: tuple[str, ...] = ()
    """IPv4 networks that it has a route to: no rail may get an address in one of another netdev."""
