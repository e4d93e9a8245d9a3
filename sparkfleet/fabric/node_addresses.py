"""Address at which each node of a fleet is reached by the others: Ray, engines, rendezvous. Pure.

A fleet of one node stays on loopback. If one rail subnet holds every node (a cable between two, a switch), that is
the network: no process of sparkfleet then listens on the management LAN. A ring has no such subnet, so its nodes use the
management network, and only collectives use the rails.
"""

from __future__ import annotations

from sparkfleet.errors import ControlError
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.rail_networks import Network, common_networks, rail_ends
from sparkfleet.values import Value

# Ray's `start` replaces 127.0.0.1 by the address of the default route, and its agents then listen there. It keeps any
# other loopback address.
LOOPBACK = "127.0.0.2"


class NodeAddress(Value):
    """Address of a node, and the reason for it."""

    address: str
    """IP address, or the name of a node that is known by its name only."""
    netdev: str | None = None
    """The rail's netdev; None on loopback and on the management network."""


def node_addresses(inventory: Inventory) -> dict[str, NodeAddress]:
    """The address of every node, by its name.

    Raises:
        ControlError: a node of several is `address: local` and no rail subnet joins it to the others.
    """
    if len(inventory.nodes) == 1:
        return {name: NodeAddress(address=LOOPBACK) for name in inventory.nodes}
    return _on_one_subnet(inventory) or {name: _managed(inventory, name) for name in inventory.nodes}


def _on_one_subnet(inventory: Inventory) -> dict[str, NodeAddress] | None:
    """The first rail subnet, in the order of the inventory, in which every node has an address."""
    networks = common_networks(inventory.links, tuple(inventory.nodes))
    return {node: _on_network(inventory, node, networks[0]) for node in inventory.nodes} if networks else None


def _on_network(inventory: Inventory, node: str, network: Network) -> NodeAddress:
    end = next(end for end in rail_ends(inventory.links, node) if end.interface.network == network)
    return NodeAddress(address=str(end.interface.ip), netdev=end.netdev)


def _managed(inventory: Inventory, name: str) -> NodeAddress:
    node = inventory.nodes[name]
    if node.is_local:
        raise ControlError(
            f"Node {name} is `address: local`, and no rail subnet joins it to all the other nodes.",
            means="The other nodes have no address to reach it.",
            do=f"Give {name} its address on your network (and user, host_key), or add the links with `sparkfleet init`.",
        )
    return NodeAddress(address=node.address)
