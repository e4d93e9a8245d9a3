"""Addresses of the rails, and the netplan file that sets them. Pure.

Every rail gets a subnet of its own: the kernel sends for a subnet through one device, so two rails in one subnet are
one rail. MTU 9000 lets RoCE use 4096-byte packets; link-local addresses are off, because they move the index of the
GID that NCCL is configured to use. Addresses that already fit are kept, also if a new node joins them at a switch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, ip_network
from typing import Any

from sparkfleet.errors import SparkfleetError
from sparkfleet.fabric.discovery import DiscoveredLinks, FoundEnd
from sparkfleet.fabric.port_scan import PortScan
from sparkfleet.fabric.ports import half_of, jack_of
from sparkfleet.fabric.rails_helper import rendered
from sparkfleet.values import Value

MTU = 9000
FIRST_HOST = 10
"""Node number 0 gets .10, as in NVIDIA's playbooks."""
MOST_NODES = 240
POOL = tuple(
    ip_network(text)
    for text in (
        *(f"192.168.{third}.0/24" for third in range(100, 200)),
        *(f"10.20.{third}.0/24" for third in range(256)),
    )
)
"""Pool of subnets, in this order: the playbooks' own first, then other usual ones."""


class PortPlan(Value):
    """Planned configuration of one netdev."""

    netdev: str
    address: str
    """With its prefix length: 192.168.100.10/24."""
    mtu: int = MTU


class NodePlan(Value):
    """Planned rails of one node."""

    node: str
    ports: tuple[PortPlan, ...]

    def request(self) -> dict[str, list[dict[str, Any]]]:
        """Request to `rails_helper.py` on the node."""
        ports = sorted(self.ports, key=lambda port: (jack_of(port.netdev), half_of(port.netdev)))
        return {"ports": [port.model_dump() for port in ports]}


class FabricPlan(Value):
    """The rails of every node that has any."""

    nodes: tuple[NodePlan, ...]

    def of(self, node: str) -> NodePlan:
        """The plan of a node; without ports if it has no rail."""
        return next((one for one in self.nodes if one.node == node), NodePlan(node=node, ports=()))

    def peers(self, node: str) -> tuple[tuple[str, str], ...]:
        """(netdev, address of another node) for every other end in the subnets of a node's rails."""
        mine = [(port.netdev, IPv4Interface(port.address)) for port in self.of(node).ports]
        theirs = [IPv4Interface(port.address) for one in self.nodes if one.node != node for port in one.ports]
        return tuple(
            (netdev, str(other.ip))
            for netdev, address in mine
            for other in theirs
            if other.network == address.network
        )


def plan_fabric(found: DiscoveredLinks, views: Sequence[PortScan]) -> FabricPlan:
    """Plans an address for every end of every rail, in subnets without another use on any node.

    Raises:
        SparkfleetError: there are more nodes than a subnet has addresses, or more rails than free subnets.
    """
    numbers = {view.node: number for number, view in enumerate(views)}
    if len(numbers) > MOST_NODES:
        raise SparkfleetError(
            f"{len(numbers)} nodes do not fit in one /24 (at most {MOST_NODES}).",
            do="Set the addresses of the rails in netplan by hand, then run `sparkfleet init`.",
        )
    wires = list(_wires(found))
    taken = list(_taken(views, {(end.node, end.netdev.name) for wire in wires for end in wire}))
    kept = _kept(wires, taken, numbers)
    taken += [interface.network for addresses in kept.values() for interface in addresses]
    free = (net for net in POOL if isinstance(net, IPv4Network) and not any(map(net.overlaps, taken)))
    ports: dict[str, list[PortPlan]] = defaultdict(list)
    for index, wire in enumerate(wires):
        addresses = kept.get(index) or _fresh(wire, next(free, None), numbers)
        for end, address in zip(wire, addresses, strict=True):
            ports[end.node].append(PortPlan(netdev=end.netdev.name, address=str(address)))
    return FabricPlan(nodes=tuple(NodePlan(node=node, ports=tuple(ports[node])) for node in sorted(ports)))


def _wires(found: DiscoveredLinks) -> Iterator[tuple[FoundEnd, ...]]:
    """Ends that belong in one subnet: those of a rail, or a switch's ends of the same half."""
    switched: dict[tuple[str, int, int], list[FoundEnd]] = defaultdict(list)
    cables: dict[tuple[str, str], int] = defaultdict(int)
    for link in found.links:
        if link.switch is None:
            yield from (rail.ends for rail in link.rails)
            continue
        cable = cables[link.switch, link.nodes[0]]
        cables[link.switch, link.nodes[0]] += 1
        for rail in link.rails:
            end = rail.ends[0]
            switched[link.switch, cable, half_of(end.netdev.name, end.netdev.pci)].append(end)
    yield from (tuple(ends) for _, ends in sorted(switched.items()))


def _taken(views: Iterable[PortScan], rails: set[tuple[str, str]]) -> Iterator[IPv4Network]:
    """Every network that a node has on another device than a rail."""
    for view in views:
        own = {
            str(address.network)
            for netdev in view.netdevs
            if (view.node, netdev.name) in rails
            for address in netdev.ipv4
        }
        for netdev in view.netdevs:
            if (view.node, netdev.name) not in rails:
                yield from (address.network for address in netdev.ipv4)
        yield from (IPv4Network(text) for text in view.networks if text not in own)


def _kept(
    wires: Sequence[tuple[FoundEnd, ...]], taken: Sequence[IPv4Network], numbers: Mapping[str, int]
) -> dict[int, tuple[IPv4Interface, ...]]:
    """Wires of which all ends, or two at a switch, already share a subnet of their own, by index."""
    kept: dict[int, tuple[IPv4Interface, ...]] = {}
    used = list(taken)
    for index, wire in enumerate(wires):
        addresses = shared_addresses(wire, used) or _completed(wire, used, numbers)
        if addresses is None:
            continue
        network = addresses[0].network
        if all(one.is_private and one.ip not in _ends(network) for one in addresses):
            kept[index] = addresses
            used.append(network)
    return kept


def _completed(
    wire: Sequence[FoundEnd], taken: Sequence[IPv4Network], numbers: Mapping[str, int]
) -> tuple[IPv4Interface, ...] | None:
    """Addresses in the subnet that most ends at a switch share, new ones for the others; None if no two share one."""
    networks = [network for end in wire for network in {one.network for one in end.netdev.ipv4}]
    free = [one for one in networks if not any(map(one.overlaps, taken))]
    network = max(free, key=free.count, default=None)
    if network is None or free.count(network) < 2:
        return None
    own: dict[str, IPv4Interface] = {}
    for end in wire:
        mine = (one for one in end.netdev.ipv4 if one.network == network and one not in own.values())
        if (address := next(mine, None)) is not None:
            own[end.node] = address
    for end in wire:
        if end.node not in own:
            address = _free_address(network, {one.ip for one in own.values()}, numbers[end.node])
            if address is None:
                return None
            own[end.node] = address
    return tuple(own[end.node] for end in wire)


def _free_address(network: IPv4Network, used: Collection[IPv4Address], number: int) -> IPv4Interface | None:
    """The address of node `number` as in a fresh subnet, or the next free one from there; None if all are used."""
    size = network.num_addresses
    offsets = ((FIRST_HOST + number + step) % size for step in range(min(size, MOST_NODES + len(used))))
    for offset in offsets:
        address = network[offset]
        if address not in used and address not in _ends(network):
            return IPv4Interface(f"{address}/{network.prefixlen}")
    return None


def _ends(network: IPv4Network) -> tuple[object, ...]:
    """Addresses that no netdev may have."""
    return (network.network_address, network.broadcast_address) if network.num_addresses > 2 else ()


def shared_addresses(
    ends: Sequence[FoundEnd], taken: Collection[IPv4Network] = ()
) -> tuple[IPv4Interface, ...] | None:
    """One address per end, all in one subnet and all different; None if the ends have none outside of `taken` subnets."""
    for first in ends[0].netdev.ipv4:
        if any(map(first.network.overlaps, taken)):
            continue
        chosen = [
            next((one for one in end.netdev.ipv4 if one.network == first.network), None) for end in ends
        ]
        complete = [one for one in chosen if one is not None]
        if len(complete) == len(ends) == len({one.ip for one in complete}):
            return tuple(complete)
    return None


def _fresh(
    wire: Sequence[FoundEnd], network: IPv4Network | None, numbers: Mapping[str, int]
) -> tuple[IPv4Interface, ...]:
    if network is None:
        raise SparkfleetError(
            "No free /24 is left for another rail.",
            means=f"All {len(POOL)} of 192.168.100-199.x and 10.20.x.x are in use on some node.",
            do="Set the addresses of the rails in netplan by hand, then run `sparkfleet init`.",
        )
    hosts = [network.network_address + FIRST_HOST + numbers[end.node] for end in wire]
    return tuple(IPv4Interface(f"{host}/{network.prefixlen}") for host in hosts)


# --- as files, and compared with the nodes ------------------------------------------------------------------------------


def render(plan: NodePlan) -> str:
    """The netplan file of a node, as its helper writes it."""
    return rendered(plan.request()["ports"])


def changes(plan: NodePlan, scan: PortScan) -> tuple[str, ...]:
    """Changes to make on a node, a line each; empty if everything is as planned."""
    there = {netdev.name: netdev for netdev in scan.netdevs}
    found: list[str] = []
    for port in plan.ports:
        netdev = there[port.netdev]
        now = sorted(str(address) for address in netdev.ipv4)
        if now != [port.address]:
            found.append(f"{port.netdev}: address {', '.join(now) or 'none'} → {port.address}")
        if netdev.mtu != port.mtu:
            found.append(f"{port.netdev}: MTU {netdev.mtu} → {port.mtu}")
    return tuple(found)


def unsaved(plan: NodePlan, own: str, others: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Sentences about netdevs that are not in any netplan file as planned: a reboot takes away what they have now.

    Args:
        plan: the node's.
        own: the netplan file that the helper has written.
        others: other netplan files: path to netdevs.
    """
    if own == render(plan):
        return ()
    elsewhere = {netdev for netdevs in others.values() for netdev in netdevs}
    return tuple(
        f"{port.netdev}: {port.address} is not in a netplan file, and is lost when the node reboots"
        for port in plan.ports
        if port.netdev not in elsewhere
    )


def loose_arp(plan: NodePlan, loose: Collection[str]) -> tuple[str, ...]:
    """Sentences about rails that answer ARP for addresses of other netdevs, of which `loose` has the names."""
    return tuple(
        f"{port.netdev}: answers ARP for other netdevs' addresses, so neighbours may use the wrong rail → for its own only"
        for port in plan.ports
        if port.netdev in loose
    )


def claims(others: Mapping[str, Sequence[str]], netdevs: Iterable[str]) -> tuple[str, ...]:
    """Sentences about other netplan files that configure or match one of `netdevs`: both definitions would count."""
    names = tuple(netdevs)
    return tuple(
        f"{path} also configures {', '.join(found)}: netplan merges both files, and of two that match a device"
        " only one counts. Remove them from one file."
        for path, configured in sorted(others.items())
        if (found := [name for name in names if name in configured])
    )
