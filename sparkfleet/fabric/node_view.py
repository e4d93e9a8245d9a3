"""What one node has and hears: what cables are found from."""

from __future__ import annotations

from typing import Literal

from sparkfleet.facts.lldp import LldpNeighbour
from sparkfleet.facts.netdev import Netdev
from sparkfleet.facts.rdma import RdmaLink
from sparkfleet.values import Value

Method = Literal["lldp", "ipv6", "arp"]
"""How an end was heard: LLDP, an answer to an IPv6 all-nodes ping, or an ARP answer."""


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
