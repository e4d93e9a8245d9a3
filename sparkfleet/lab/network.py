"""The wires of a lab: namespaces, the management LAN, rails, and changes to them.

Every netdev of a node is a veth whose other end is in the fabric namespace. A bridge there joins the ends of one rail
(or all ports of a switch). Setting a fabric end down takes the carrier from the node's netdev, as a pulled cable does.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

from sparkfleet.lab.errors import LabError
from sparkfleet.lab.layout import (
    MANAGEMENT,
    PORTS,
    PREFIX,
    RAIL_MTU,
    Cable,
    Layout,
    NodeLayout,
    SimulatedRail,
    SimulatedRailEnd,
    fabric_end,
)
from sparkfleet.lab.run import ip_batch, run

IpCommand = tuple[str, ...]
_LLDP_FORWARDED = str(1 << 14)
"""group_fwd_mask bit of 01:80:c2:00:00:0e. A cable forwards LLDP; a bridge would not, as a switch does not."""


def build(layout: Layout) -> None:
    """Makes every namespace, bridge and netdev of a lab; nodes are not yet configured. Raises LabError."""
    namespaces = [layout.fabric, *(layout.namespace(node.name) for node in layout.nodes)]
    ip_batch(None, [("netns", "add", name) for name in namespaces])
    ip_batch(None, _operator_side(layout))
    ip_batch(layout.fabric, [*_bridges(layout), *_wires(layout, *layout.nodes)])
    run(("ip", "netns", "exec", layout.fabric, "sysctl", "-qw", "net.ipv4.ip_forward=1"))


def _operator_side(layout: Layout) -> Iterator[IpCommand]:
    mine = layout.operator_netdev
    yield ("link", "add", "name", mine, "type", "veth", "peer", "name", "operator", "netns", layout.fabric)
    yield ("address", "add", f"{layout.operator_address}/24", "dev", mine)
    yield ("link", "set", mine, "up")


def _bridges(layout: Layout) -> Iterator[IpCommand]:
    yield ("link", "set", "lo", "up")
    yield from _bridge("lan", "0")
    # The nodes' default route ends here: forwarding is on, and the only route answers "unreachable" at once.
    yield ("address", "add", f"{layout.gateway_address}/24", "dev", "lan")
    yield ("route", "add", "unreachable", "default")
    yield ("link", "set", "operator", "master", "lan", "up")
    for bridge in sorted({rail.bridge for cable in layout.cables for rail in cable.rails}):
        yield from _bridge(bridge, "0" if bridge in layout.switch_bridges else _LLDP_FORWARDED)


def _bridge(name: str, forwarded: str) -> Iterator[IpCommand]:
    options = ("stp_state", "0", "mcast_snooping", "0", "group_fwd_mask", forwarded)
    yield ("link", "add", "name", name, "type", "bridge", *options)
    yield ("link", "set", name, "addrgenmode", "none", "up")


def renew(layout: Layout, name: str) -> None:
    """Replaces a node's namespace by a new one: addresses, MTUs and firewall are gone, as after a loss of power.

    No process of the node may run. Its netdevs have no carrier until `set_carriers`. Raises LabError.
    """
    namespace, node = layout.namespace(name), layout.node(name)
    # By name and at once: the kernel removes those of a namespace that is gone when it gets to it.
    ends = (fabric_end(node.number, netdev) for netdev in _netdevs())
    ip_batch(layout.fabric, [("link", "delete", end) for end in ends])
    ip_batch(None, [("netns", "delete", namespace), ("netns", "add", namespace)])
    ip_batch(layout.fabric, _wires(layout, node))


def _wires(layout: Layout, *nodes: NodeLayout) -> Iterator[IpCommand]:
    """The netdevs of nodes, by their cables."""
    for node in nodes:
        for netdev in _netdevs():
            yield from _wire(layout, node, netdev)
    for cable in layout.cables:
        for rail in cable.rails:
            for end in rail.ends:
                if layout.node(end.node) in nodes:
                    yield (
                        "link",
                        "set",
                        _other_end(layout, end),
                        "mtu",
                        str(RAIL_MTU),
                        "master",
                        rail.bridge,
                    )


def _netdevs() -> tuple[str, ...]:
    """Each wired netdev of a node, in the order of their MACs."""
    return (MANAGEMENT, *(half for port in PORTS for half in port))


def _wire(layout: Layout, node: NodeLayout, netdev: str) -> Iterator[IpCommand]:
    end, namespace = fabric_end(node.number, netdev), layout.namespace(node.name)
    mac = mac_address(layout, node, netdev)
    yield (*("link", "add", "name", end, "type", "veth", "peer", "name", netdev, "address", mac),
           "netns", namespace)  # fmt: skip
    yield ("link", "set", end, "addrgenmode", "none")
    if netdev == MANAGEMENT:
        yield ("link", "set", end, "master", "lan")


def mac_address(layout: Layout, node: NodeLayout, netdev: str) -> str:
    """A MAC under NVIDIA's prefix 4c:bb:47, different for every netdev of every lab."""
    order = _netdevs().index(netdev)
    return f"4c:bb:47:{layout.subnet:02x}:{node.number:02x}:{0x16 + order:02x}"


def configure(layout: Layout, name: str) -> None:
    """Configures a node's netdevs as netplan does at boot. Raises LabError."""
    ip_batch(layout.namespace(name), _node_side(layout, layout.node(name)))


def _node_side(layout: Layout, node: NodeLayout) -> Iterator[IpCommand]:
    yield ("link", "set", "lo", "up")
    for netdev in (half for port in PORTS for half in port):
        # Link-local addresses would take GID 0 and 1 and move the IPv4 one; netplan sets `link-local: []`.
        yield ("address", "flush", "dev", netdev)
        yield ("link", "set", netdev, "addrgenmode", "none", "mtu", str(RAIL_MTU), "up")
    for end in layout.ends(node.name):
        yield ("address", "replace", end.address, "dev", end.netdev)
    yield ("link", "set", MANAGEMENT, "up")
    yield ("address", "replace", f"{node.address}/24", "dev", MANAGEMENT)
    yield ("route", "replace", "default", "via", layout.gateway_address, "dev", MANAGEMENT)


def set_carriers(layout: Layout, powered: Collection[str], pulled: Collection[str]) -> None:
    """Sets the carrier of every netdev.

    A direct cable has one if both its nodes are `powered`, a port of the switch or of the LAN if its node is.
    `pulled` rails, by bridge and first node (`rail_key`), have none.
    """
    wires = [(fabric_end(node.number, MANAGEMENT), node.name in powered) for node in layout.nodes]
    for cable in layout.cables:
        lit = all(node in powered for node in cable.nodes)
        for rail in cable.rails:
            wires += [(_other_end(layout, end), lit and rail_key(rail) not in pulled) for end in rail.ends]
    ip_batch(layout.fabric, [("link", "set", end, "up" if lit else "down") for end, lit in wires])


def rail_key(rail: SimulatedRail) -> str:
    """Key of one rail in a lab: its first end. The rails of a switch share bridges, but not first ends."""
    return f"{rail.ends[0].node}/{rail.ends[0].netdev}"


def _other_end(layout: Layout, end: SimulatedRailEnd) -> str:
    return fabric_end(layout.node(end.node).number, end.netdev)


def pace(layout: Layout, rail: SimulatedRail, gbit: float | None, delay_ms: float | None) -> None:
    """Limits a rail to `gbit` Gb/s and adds `delay_ms` in each direction; None removes the limit."""
    for end in rail.ends:
        where = ("tc", "-n", layout.fabric, "qdisc")
        at = ("dev", _other_end(layout, end), "root")
        if "noqueue" not in run((*where, "show", *at[:2])):
            run((*where, "delete", *at))
        if delay_ms is not None:
            run((*where, "add", *at, "handle", "1:", *_netem(gbit, delay_ms)))
        elif gbit is not None:
            burst = max(256_000, int(gbit * 1e9 / 8 / 250))
            run((*where, "add", *at, "handle", "1:", "tbf", "rate", f"{int(gbit * 1e6)}kbit",
                 "burst", str(burst), "latency", "20ms"))  # fmt: skip


def _netem(gbit: float | None, delay_ms: float) -> IpCommand:
    rate = ("rate", f"{int(gbit * 1e6)}kbit") if gbit is not None else ()
    return ("netem", "delay", f"{int(delay_ms * 1000)}us", "limit", "100000", *rate)


def set_mtu(layout: Layout, ends: Sequence[SimulatedRailEnd], mtu: int) -> None:
    """Sets the MTU of netdevs on their nodes; the cable itself still passes 9000."""
    for end in ends:
        ip_batch(layout.namespace(end.node), [("link", "set", end.netdev, "mtu", str(mtu))])


def set_address(layout: Layout, end: SimulatedRailEnd, address: str) -> None:
    """Replaces the IPv4 address of a rail end, as another netplan file would."""
    commands = [
        ("-4", "address", "flush", "dev", end.netdev),
        ("address", "add", address, "dev", end.netdev),
    ]
    for command in commands:
        run(("ip", "-n", layout.namespace(end.node), *command))


def namespaces() -> list[str]:
    """All namespaces of all labs on this machine."""
    lines = run(("ip", "netns", "list")).splitlines()
    return [line.split()[0] for line in lines if line.startswith(PREFIX)]


def host_netdevs() -> list[str]:
    """The devices of all labs on the host."""
    links = json.loads(run(("ip", "-j", "link", "show")) or "[]")
    return [link["ifname"] for link in links if link["ifname"].startswith(PREFIX)]


def taken_subnets() -> set[int]:
    """Third bytes of 10.77.x.0/24 that the host has a route to."""
    routes = json.loads(run(("ip", "-j", "-4", "route", "show", "table", "all")) or "[]")
    found = (str(route.get("dst", "")).split("/")[0].split(".") for route in routes)
    return {int(parts[2]) for parts in found if len(parts) == 4 and parts[:2] == ["10", "77"]}


def destroy(name: str) -> list[str]:
    """Removes the namespaces and the host's device of a lab, as far as they exist. Returns the removed ones."""
    removed = [found for found in namespaces() if found.startswith(f"{PREFIX}{name}-")]
    removed = [
        found
        for found in removed
        if found.removeprefix(f"{PREFIX}{name}-") == "fabric" or _is_node(found, name)
    ]
    for namespace in removed:
        run(("ip", "netns", "delete", namespace))
    mine = PREFIX + name
    # It was removed with its peer in the fabric namespace; only an incomplete lab still has it.
    if mine in host_netdevs():
        try:
            run(("ip", "link", "delete", mine))
        except LabError:
            if mine in host_netdevs():
                raise
        removed.append(mine)
    return removed


def _is_node(namespace: str, lab: str) -> bool:
    """True if a namespace is a node's of this lab: `sfl-a-b-spark1` belongs to the lab `a-b`, not to `a`."""
    rest = namespace.removeprefix(f"{PREFIX}{lab}-")
    return rest.startswith("spark") and rest[5:].isdigit()


def cable_rails(cable: Cable, rail: int | None) -> tuple[SimulatedRail, ...]:
    """One rail of a cable by its number, or all of them. Raises LabError."""
    if rail is None:
        return cable.rails
    if rail not in range(len(cable.rails)):
        raise LabError(f"The link {cable.name} has no rail {rail}.", do="Its rails are 0 and 1.")
    return (cable.rails[rail],)
