"""Builds an inventory from discovered machines and cables. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from ipaddress import IPv4Interface

from pydantic import ValidationError

from sparkfleet.fabric.discovery import DiscoveredLinks, FoundEnd, FoundLink
from sparkfleet.fabric.netplan import shared_addresses
from sparkfleet.specs.fields import FrozenDict
from sparkfleet.specs.inventory import Inventory, Link, Node, RailEnd
from sparkfleet.values import Value


class EnrolledMachine(Value):
    """A machine that accepted the login."""

    node: Node
    hostname: str


def name_machines(
    machines: Sequence[EnrolledMachine],
    old: Inventory | None,
    moved: Mapping[tuple[str, int], str] = FrozenDict(),
) -> dict[str, Node]:
    """A name for each machine: the one it has in `old`, or its host name's first part, made unique.

    `moved`: names of nodes of `old` that are at another address now, by address and port.
    """
    known = {(node.address, node.port): name for name, node in old.nodes.items()} if old else {}
    known |= moved
    named: dict[str, Node] = {}
    for machine in machines:
        if name := known.get((machine.node.address, machine.node.port)):
            named[name] = machine.node
    for number, machine in enumerate(machines, start=1):
        if (machine.node.address, machine.node.port) not in known:
            wanted = node_name(machine.hostname) or f"node{number}"
            named[_unique(wanted, {*named, *known.values()})] = machine.node
    return named


def node_name(hostname: str) -> str:
    """A host name in the form of a node's name; "" if it has no usable character."""
    first = hostname.partition(".")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", first).strip("-")[:28].strip("-")


def _unique(wanted: str, taken: Iterable[str]) -> str:
    names = set(taken)
    numbers = (f"{wanted}-{number}" for number in range(2, len(names) + 3))
    return wanted if wanted not in names else next(name for name in numbers if name not in names)


def usable_links(found: DiscoveredLinks) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """The links whose rails have valid addresses, and the reason for each that was left out."""
    links: list[Link] = []
    doubts: list[str] = []
    used: dict[str, list[IPv4Interface]] = {}
    for link in found.links:
        rails = []
        for rail in link.rails:
            taken = [one.network for end in rail.ends for one in used.get(end.node, ())]
            addresses = shared_addresses(rail.ends, taken) or shared_addresses(rail.ends)
            if why := _why_not(rail.ends, addresses, used):
                doubts.append(why)
            elif addresses is not None:
                rails.append(tuple(zip(rail.ends, addresses, strict=True)))
                for end, one in rails[-1]:
                    used.setdefault(end.node, []).append(one)
        made = _link(link, rails) if rails else None
        if isinstance(made, Link):
            links.append(made)
        else:
            doubts.append(
                made or f"The cable {describe(link)} has no usable rail yet: `sparkfleet fabric plan`."
            )
    return tuple(links), tuple(doubts)


def _link(link: FoundLink, rails: Sequence[tuple[tuple[FoundEnd, IPv4Interface], ...]]) -> Link | str:
    """The link, or the reason why it is not valid in an inventory: its addresses come from the nodes."""
    try:
        made = tuple(tuple(_end(end, one) for end, one in rail) for rail in rails)
        return Link(nodes=link.nodes, switch=link.switch, rails=made)
    except ValidationError as error:
        return f"The cable {describe(link)}: {error.errors(include_url=False)[0]['msg']}"


def _why_not(
    ends: Sequence[FoundEnd],
    addresses: Sequence[IPv4Interface] | None,
    used: Mapping[str, Sequence[IPv4Interface]],
) -> str:
    names = " – ".join(f"{end.netdev.name} of {end.node}" for end in ends)
    if addresses is None:
        bare = [end.node for end in ends if not end.netdev.ipv4]
        same = (
            set[IPv4Interface].intersection(*(set(end.netdev.ipv4) for end in ends))
            if len(ends) > 1
            else set()
        )
        why = "its ends are not in one subnet"
        if bare:
            why = f"no address on {' and '.join(bare)}"
        elif same:
            why = f"its ends have the same address, {min(same)}: `sparkfleet fabric plan`"
        return f"{names}: {why}."
    for end, one in zip(ends, addresses, strict=True):
        if other := next((o for o in used.get(end.node, ()) if o.network.overlaps(one.network)), None):
            return f"{names}: {one.network} is the subnet of another rail of {end.node} ({other}); it carries nothing."
    return ""


def _end(end: FoundEnd, address: IPv4Interface) -> RailEnd:
    return RailEnd(netdev=end.netdev.name, rdma=end.rdma, address=str(address))


def describe(link: FoundLink) -> str:
    """`spark1 – spark2`, or `spark1 – switch crs812`."""
    return " – ".join((*link.nodes, *([_switch(link.switch)] if link.switch else [])))


def describe_alike(links: Sequence[FoundLink]) -> list[tuple[str, FoundLink]]:
    """Descriptions, each with the first link that has it: cables of one switch with equal rails are one line,
    `spark1, spark2, spark3 – switch`."""
    alike: dict[tuple[object, ...], list[FoundLink]] = {}
    for at, link in enumerate(links):
        rails = tuple((rail.ends[0].netdev.name, rail.ends[0].rdma, rail.methods) for rail in link.rails)
        alike.setdefault((link.switch, rails) if link.switch else (at,), []).append(link)
    return [
        (describe(same[0].model_copy(update={"nodes": _joined(link.nodes for link in same)})), same[0])
        for same in alike.values()
    ]


def _joined(ends: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The nodes at each end of cables that are described together."""
    return tuple(", ".join(names) for names in zip(*ends, strict=True))


def _switch(name: str) -> str:
    return name if name.startswith("switch") else f"switch {name}"


def merge(old: Inventory | None, nodes: Mapping[str, Node], links: Sequence[Link], fleet: str) -> Inventory:
    """Merges a discovered inventory with fields of `old` that cannot be discovered: head, gateway, engines, logins.

    Links of `old` between nodes that were not scanned are kept. An `old` that is this machine alone, as in the
    packaged inventory, contributes only its name and its gateway.
    """
    if old is None:
        first = next(iter(nodes))
        return Inventory(fleet=fleet, head=first, nodes=FrozenDict(nodes), links=tuple(links))
    if not set(old.nodes) & set(nodes) and all(node.is_local for node in old.nodes.values()):
        found = {"nodes": FrozenDict(nodes), "head": next(iter(nodes)), "links": tuple(links)}
        return old.model_copy(update=found)
    unseen = tuple(link for link in old.links if not set(link.nodes) <= set(nodes))
    merged = {name: nodes.get(name, node) for name, node in old.nodes.items()}
    return old.model_copy(
        update={
            "nodes": FrozenDict({**merged, **nodes}),
            "links": (*_with_switch_names(links, old.links), *unseen),
        }
    )


def _with_switch_names(links: Sequence[Link], old: Sequence[Link]) -> tuple[Link, ...]:
    """Keeps the names that a person gave to switches.

    A cable that is new at a found switch gets the name that all known cables of this switch have: by another one it would be
    at another switch, without a way to them.
    """
    names = {
        (link.nodes[0], end.netdev): link.switch
        for link in old
        if link.switch
        for rail in link.rails
        for end in rail
    }
    given: dict[str, set[str]] = {}
    for link in links:
        if link.switch and (name := names.get((link.nodes[0], link.rails[0][0].netdev))):
            given.setdefault(link.switch, set()).add(name)
    return tuple(
        link.model_copy(
            update={
                "switch": names.get(
                    (link.nodes[0], link.rails[0][0].netdev),
                    _only(given.get(link.switch, set()), link.switch),
                )
            }
        )
        if link.switch
        else link
        for link in links
    )


def _only(names: Collection[str], otherwise: str) -> str:
    """The one name; `otherwise` if there is none, or more than one."""
    return next(iter(names)) if len(names) == 1 else otherwise
