"""Ports that are not taken for rails, with the reason. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from sparkfleet.fabric.adjacency import Sights
from sparkfleet.fabric.discovery import RejectedPort
from sparkfleet.fabric.port_scan import PortScan
from sparkfleet.fabric.ports import Jack, Port, is_spark_port
from sparkfleet.hostfacts.netdev import Netdev


def twins(ports: dict[Port, Netdev]) -> Iterator[RejectedPort]:
    """Ports that have the MAC of another one."""
    first: dict[str, Port] = {}
    for port, netdev in ports.items():
        twin = first.setdefault(netdev.mac, port)
        if twin != port:
            yield RejectedPort(
                node=port.node,
                netdev=port.netdev,
                what=f"has the MAC {netdev.mac} of {twin.netdev} of {twin.node}.",
                do="Nobody can tell them apart. Were the same machine named twice, or its disk cloned?",
            )


def bonded(views: Sequence[PortScan]) -> Iterator[RejectedPort]:
    """Netdevs with RDMA, or with a Spark's names, that belong to a bond or a bridge."""
    for view in views:
        with_rdma = {link.netdev for link in view.rdma}
        for netdev in view.netdevs:
            if netdev.master and (netdev.name in with_rdma or is_spark_port(netdev.name)):
                yield RejectedPort(
                    node=view.node,
                    netdev=netdev.name,
                    what=f"belongs to {netdev.master}: RDMA does not work on a bonded or bridged rail.",
                    do=f"Take it out of {netdev.master}.",
                )


def unused(
    ports: dict[Port, Netdev], used: set[Port], sights: Sights, strangers: dict[Port, str]
) -> Iterator[RejectedPort]:
    """Ports that are on no rail; a jack without any signal is told once."""
    dark: dict[Jack, list[str]] = defaultdict(list)
    for port, netdev in ports.items():
        if netdev.up and not netdev.carrier and port not in used:
            dark[port.jack].append(port.netdev)
    cabled = {port.jack for port in ports} - {
        jack for jack, names in dark.items() if len(names) == sum(port.jack == jack for port in ports)
    }
    for jack, names in dark.items():
        if jack not in cabled:
            what = f"{'has' if len(names) == 1 else 'have'} no signal: no cable, or nobody at its other end."
            yield RejectedPort(node=jack.node, netdev=" and ".join(names), what=what)
    for port, netdev in ports.items():
        if port not in used and port.jack in cabled:
            what, do = _why_not(port, netdev, sights, strangers)
            yield RejectedPort(node=port.node, netdev=port.netdev, what=what, do=do)


def _why_not(port: Port, netdev: Netdev, sights: Sights, strangers: dict[Port, str]) -> tuple[str, str]:
    if not netdev.up:
        return "is switched off.", f"`sudo ip link set {netdev.name} up` on {port.node}, then look again."
    if not netdev.carrier:
        return "has no signal, while the other half of its port has: half of the cable is lost.", ""
    if other := next(iter(sights.get(port, {})), None):
        if other.node == port.node:
            return f"hears {other.netdev} of the same node: the cable leads back.", ""
        return f"hears {other.netdev} of {other.node}, which is the end of another rail already.", ""
    if stranger := strangers.get(port):
        return (
            f"hears {stranger}, which is none of the nodes.",
            "Name that machine too, or leave this cable out.",
        )
    return (
        "sees nobody: it has a signal, but nobody answered on it.",
        "Is the node at its other end named? A firewall that drops ARP or ICMPv6 looks the same.",
    )
