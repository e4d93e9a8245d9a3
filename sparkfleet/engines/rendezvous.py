"""Rendezvous of a group's ranks: netdevs and addresses from the inventory's links. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sparkfleet.engines.base import RankRail
from sparkfleet.errors import EngineError
from sparkfleet.specs.inventory import Interface, Link, RailEnd
from sparkfleet.values import Value


class Management(Value):
    """Address of a node if no rail joins all nodes of a group."""

    netdev: str
    address: str


class Meeting(Value):
    """Network of one rank: the fields match those of `RankContext`."""

    leader: str
    rails: tuple[RankRail, ...]
    peers: tuple[str, ...]
    control_netdev: str = ""


class _End(NamedTuple):
    network: object
    rail: RankRail


def meetings(
    links: Sequence[Link], nodes: Sequence[str], management: Mapping[str, Management] | None = None
) -> tuple[Meeting, ...]:
    """Network of each rank of a group on `nodes`, rank 0 first; () for a group of one rank.

    The rails are those in whose subnets every node of the group has an address: both of a cable between two, or of each
    node's cable to one switch. Nodes in a ring share none: they meet on the management network and send over all rails.

    Raises:
        EngineError: no link joins the nodes, or they are a ring and `management` does not name them all.
    """
    if len(nodes) < 2:
        return ()
    ends = {node: tuple(_ends(links, node)) for node in nodes}
    shared = [end.network for end in ends[nodes[0]] if all(_at(ends[node], end.network) for node in nodes)]
    if shared:
        rails = [_among(ends[node], shared) for node in nodes]
        return _met(rails, tuple(mine[0].address for mine in rails), [""] * len(nodes))
    return _in_a_ring(links, nodes, management or {})


def _met(
    rails: Sequence[tuple[RankRail, ...]], peers: tuple[str, ...], netdevs: Sequence[str]
) -> tuple[Meeting, ...]:
    return tuple(
        Meeting(leader=peers[0], rails=mine, peers=peers, control_netdev=netdev)
        for mine, netdev in zip(rails, netdevs, strict=True)
    )


def _in_a_ring(
    links: Sequence[Link], nodes: Sequence[str], management: Mapping[str, Management]
) -> tuple[Meeting, ...]:
    inside = [link for link in links if set(link.nodes) <= set(nodes) and link.switch is None]
    rails = [tuple(end.rail for end in _ends(inside, node)) for node in nodes]
    what = f"{', '.join(nodes)}: no rail joins them all"
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
    return _met(rails, peers, [management[node].netdev for node in nodes])


def _ends(links: Sequence[Link], node: str) -> Iterator[_End]:
    for link in links:
        if node in link.nodes:
            at = link.nodes.index(node)
            for rail in link.rails:
                yield _End(_network(rail[at].interface), _rail(rail[at]))


def _network(interface: Interface) -> object:
    return interface.network


def _rail(end: RailEnd) -> RankRail:
    return RankRail(netdev=end.netdev, rdma=end.rdma, address=str(end.interface.ip))


def _at(ends: Sequence[_End], network: object) -> bool:
    return any(end.network == network for end in ends)


def _among(ends: Sequence[_End], networks: Sequence[object]) -> tuple[RankRail, ...]:
    """The ends in these subnets, in the subnets' order."""
    found = {end.network: end.rail for end in ends}
    return tuple(found[network] for network in networks)
