"""Netdevs of a node that may be rails, and the QSFP port that each belongs to.

Two netdevs share a port if their PCI addresses differ in the domain only (`enp1s0f1np1` with `enP2p1s0f1np1`), because a
Spark's ConnectX-7 is wired that way. The name has the address, and the kernel has that of a netdev with another name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sparkfleet.fabric.port_scan import PortScan
from sparkfleet.hostfacts.network.netdev import Netdev

_SPARK_PORT = re.compile(r"en(?:P([0-9]+))?p([0-9]+)s([0-9]+)f([0-9]+)(?:np[0-9]+)?")
DEVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}")
"""Names that an inventory accepts for a device. Others are ignored: names come from the node."""
_NEVER = ("wl", "enP7s7")
"""Wi-Fi, and a Spark's 10 Gb/s Ethernet: a LAN, even if the node is reached in another way."""
_HARDWARE = ("", "veth")
"""Kinds of netdev that can have a cable; veth is the cable of simulated nodes."""


class Jack(NamedTuple):
    """A socket for one cable: on a Spark a QSFP port, with two netdevs."""

    node: str
    port: str


class Port(NamedTuple):
    """One netdev of one node."""

    node: str
    netdev: str


def rail_netdevs(scan: PortScan) -> tuple[Netdev, ...]:
    """Netdevs that may be rails: those with RDMA, else those with a Spark's names, else all that can have a cable."""
    able = [one for one in scan.netdevs if _may_be_rail(one, scan)]
    names = {link.netdev for link in scan.rdma}
    with_rdma = [one for one in able if one.name in names]
    of_spark = [one for one in able if is_spark_port(one.name)]
    return tuple(with_rdma or of_spark or able)


def _may_be_rail(netdev: Netdev, scan: PortScan) -> bool:
    return (
        netdev.name != scan.management
        and netdev.kind in _HARDWARE
        and bool(netdev.mac)
        and bool(DEVICE_NAME.fullmatch(netdev.name))
        and not netdev.master
        and not netdev.name.startswith(_NEVER)
    )


def is_spark_port(netdev: str) -> bool:
    """True if a netdev has the name of one of a Spark's QSFP ports."""
    return bool(_SPARK_PORT.fullmatch(netdev))


class _PciAddress(NamedTuple):
    domain: int
    bus: int
    slot: int
    function: int


def jack_at(port: Port, netdev: Netdev) -> Jack:
    """The jack that a netdev belongs to."""
    return Jack(port.node, jack_of(netdev.name, netdev.pci))


def jack_of(netdev: str, pci: str = "") -> str:
    """The QSFP port of a netdev: the same for both of its halves. `pci`: its address, if that is not in its name."""
    found = _address(netdev, pci)
    return f"port {found.function} of {found.bus:02x}:{found.slot:02x}" if found else netdev


def half_of(netdev: str, pci: str = "") -> int:
    """Half of the port that a netdev is: its PCI domain."""
    found = _address(netdev, pci)
    return found.domain if found else 0


def _address(netdev: str, pci: str) -> _PciAddress | None:
    if named := _SPARK_PORT.fullmatch(netdev):
        return _PciAddress(*(int(number or 0) for number in named.groups()))
    return _PciAddress(*(int(number, 16) for number in re.split("[:.]", pci))) if pci else None
