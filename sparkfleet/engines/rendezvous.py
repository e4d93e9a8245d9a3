"""Rendezvous of a group's ranks: netdevs and addresses from the inventory's links. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkfleet.engines.base import RankRail
from sparkfleet.errors import EngineError
from sparkfleet.specs.inventory import Link, RailEnd
from sparkfleet.specs.rail_networks import Network, common_networks, rail_ends
from sparkfleet.values import Value


class Management(Value):
    """Address of a node if no rail joins all nodes of a group."""

    netdev: str
    address: str


class RankNetwork(Value):
    """Network of one rank: the fields match those of `RankContext`."""

    leader: str
    rails: tuple[RankRail, ...]
    peers: tuple[str, ...]
    control_netdev: str = ""


def rank_networks(
    links: Sequence[Link], nodes: Sequence[str], management: Mapping[str, Management] | None = None
) -> tuple[RankNetwork, ...]:
    """Network of each rank of a group on `nodes`, rank 0 first; () for a group of one rank.

    The rails are those in whose subnets every node of the group has an address: both of a cable between two, or of each
    node's cable to one switch. Nodes in a ring share none: they meet on the management network and send over all rails.

    Raises:
        EngineError: no link joins the nodes, or they are a ring and `management` does not name them all.
    """
    if len(nodes) < 2:
        return ()
    shared = common_networks(links, nodes)
    if shared:
        rails = [_among(links, node, shared) for node in nodes]
        return _networks(rails, tuple(mine[0].address for mine in rails), [""] * len(nodes))
    return _in_a_ring(links, nodes, management or {})


def _networks(
    rails: Sequence[tuple[RankRail, ...]], peers: tuple[str, ...], netdevs: Sequence[str]
) -> tuple[RankNetwork, ...]:
    return tuple(
        RankNetwork(leader=peers[0], rails=mine, peers=peers, control_netdev=netdev)
        for mine, netdev in zip(rails, netdevs, strict=True)
    )


def _in_a_ring(
    links: Sequence[Link], nodes: Sequence[str], management: Mapping[str, Management]
) -> tuple[RankNetwork, ...]:
    inside = [link for link in links if set(link.nodes) <= set(nodes) and link.switch is None]
    rails = [tuple(map(_rail, rail_ends(inside, node))) for node in nodes]
    what = f"{', '.join(nodes)}: no rail connects all of them"
    if not all(rails):
        raise EngineError(
            f"{what}, and {nodes[[bool(mine) for mine in rails].index(False)]} has no link to the others.",
            do="Add the cable to `links` in the inventory, or run `sparkfleet init` again.",
        )
    unknown = [node for node in nodes if node not in management]
    if unknown:
        raise EngineError(
            f"{what}, and the management network of {unknown[0]} is not known.",
            means="Nodes of a ring share no rail, so their ranks meet on the management network.",
            do="Run `sparkfleet doctor`: it reads the addresses from the nodes.",
        )
    peers = tuple(management[node].address for node in nodes)
    return _networks(rails, peers, [management[node].netdev for node in nodes])


def _rail(end: RailEnd) -> RankRail:
    return RankRail(netdev=end.netdev, rdma=end.rdma, address=str(end.interface.ip))


def _among(links: Sequence[Link], node: str, networks: Sequence[Network]) -> tuple[RankRail, ...]:
    """The node's rails in these subnets, in the subnets' order."""
    found = {end.interface.network: end for end in rail_ends(links, node)}
    return tuple(_rail(found[network]) for network in networks)
