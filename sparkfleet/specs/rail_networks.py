"""Rail subnets that join nodes: the one place that decides it, for Ray's addresses and for a group's rendezvous. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network

from sparkfleet.specs.inventory import Link, RailEnd

Network = IPv4Network | IPv6Network


def rail_ends(links: Sequence[Link], node: str) -> Iterator[RailEnd]:
    """The node's ends of all rails, in the order of the inventory."""
    for link in links:
        if node in link.nodes:
            at = link.nodes.index(node)
            yield from (rail[at] for rail in link.rails)


def common_networks(links: Sequence[Link], nodes: Sequence[str]) -> tuple[Network, ...]:
    """Subnets in which every one of `nodes` has a rail, in the order of the first node's rails.

    Both of a cable between two nodes, or those of each node's cables to one switch; () for a ring of three or more.
    """
    ends = [{end.interface.network for end in rail_ends(links, node)} for node in nodes[1:]]
    first = dict.fromkeys(end.interface.network for end in rail_ends(links, nodes[0]))
    return tuple(network for network in first if all(network in there for there in ends))
