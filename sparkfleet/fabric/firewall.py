"""Firewall of the fleet's ports: rules by node, from the inventory and the addresses that nodes have. Pure.

Ray's gRPC ports, the store in which PyTorch's ranks meet (which unpickles what it is sent), and what an engine opens for its
own processes listen on every address, and have no setting for it. So the ports that the fleet and its engines take are
closed to every machine but the nodes; SSH, the gateway and everything below 10002 stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Annotated, Any

from pydantic import IPvAnyAddress, StringConstraints

from sparkfleet.fabric.rails_helper import CLOSED, firewall_rules
from sparkfleet.hostfacts.network.iproute import Entry, entries
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.rail_networks import rail_ends

_COUNTED = re.compile(r"packets \d+ bytes \d+ ")
_SET = re.compile(r"\{([^}]*)\}")

FirewallRequest = Mapping[str, Any]
"""`netdevs`, `peers` and `open`, as the helper reads them; empty: no firewall."""

ADDRESSES = ("ip", "-j", "addr", "show", "scope", "global")


_OF_CONTAINERS = re.compile(r"(docker|podman|cni|virbr|lxdbr|lxcbr)\d+|br-[0-9a-f]{12}")
"""Bridges of containers and virtual machines of one node, by the names that docker, podman, libvirt and LXD give them."""


class _Local(Entry):
    local: IPvAnyAddress | None = None
    temporary: bool = False
    """An IPv6 address that the node replaces, each day by default: rules with it would be outdated."""
    deprecated: bool = False
    """An address that new connections do not leave by."""


class _Netdev(Entry):
    ifname: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,64}$")]
    addr_info: tuple[_Local, ...] = ()


def addresses(output: str, rails: Iterable[str]) -> tuple[str, ...]:
    """A node's lasting addresses but those of its rails and bridges, from the output of `ADDRESSES`. Raises FactError."""
    skipped = set(rails)
    found = [
        one
        for netdev in entries(_Netdev, output, "the addresses")
        if netdev.ifname not in skipped and not _OF_CONTAINERS.fullmatch(netdev.ifname)
        for one in netdev.addr_info
    ]
    local = [one.local for one in found if not (one.temporary or one.deprecated)]
    return tuple(sorted({str(address) for address in local if address and not address.is_loopback}))


def rails_of(inventory: Inventory, node: str) -> tuple[str, ...]:
    """Netdevs of a node's rails, by the inventory's links."""
    return tuple(sorted({end.netdev for end in rail_ends(inventory.links, node)}))


def firewall_request(
    inventory: Inventory, node: str, known: Mapping[str, tuple[str, ...]], opened: Iterable[int] = ()
) -> FirewallRequest:
    """The request for a node's helper.

    Args:
        inventory: the fleet.
        node: the node's name.
        known: every node's addresses but those of rails.
        opened: further ports that stay open to everybody.
    """
    peers = {address for other, found in known.items() if other != node for address in found}
    ports = {*opened, inventory.nodes[node].port or 22}
    if node == inventory.head or node in inventory.entry_nodes:
        ports.add(inventory.gateway.port)
    inside = sorted(port for port in ports if CLOSED[0] <= port <= CLOSED[1])
    return {"netdevs": list(rails_of(inventory, node)), "peers": sorted(peers, key=_in_order), "open": inside}


def rules(request: FirewallRequest) -> str:
    """The table as the helper writes it."""
    return firewall_rules(dict(request))


def is_loaded(table: str, request: FirewallRequest) -> bool:
    """True if a table, as `nft list` prints it, has the rules of a request; an empty request has none."""
    return _plain(table) == _plain(rules(request) if request else "")


def _plain(table: str) -> list[str]:
    """The rules of a table without the numbers of counters, and with each set in one order and without its braces.

    `nft` prints the members of a set in an order of its own, and a set of one as its member.
    """
    rules = (_COUNTED.sub("", line.strip()) for line in table.splitlines())
    return [" ".join(_SET.sub(_sorted, rule).split()) for rule in rules if rule.endswith(("accept", "drop"))]


def _sorted(members: re.Match[str]) -> str:
    return ", ".join(sorted(member.strip() for member in members.group(1).split(",")))


def closed_to_others(sockets: Iterable[ListeningSocket], request: FirewallRequest) -> tuple[str, ...]:
    """Listeners that other machines can no longer reach, as "process port", without those of loopback."""
    kept = set(request["open"])
    found = {
        f"{one.process or 'another user’s program'} {one.port}"
        for one in sockets
        if not one.local and CLOSED[0] <= one.port <= CLOSED[1] and one.port not in kept
    }
    return tuple(sorted(found))


def _in_order(address: str) -> tuple[int, int]:
    one = ip_address(address)
    return one.version, int(one)
