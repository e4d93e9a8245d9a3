"""Network devices of a node and their addresses, as the kernel lists them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Interface, IPv6Address, IPv6Interface, ip_interface
from typing import Annotated, Any

from pydantic import Field

from sparkfleet.hostfacts.fact import Fact, unexpected_output
from sparkfleet.hostfacts.network.iproute import U32, Entry, Word, checked, entries, mac_of
from sparkfleet.values import Value

_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class NetAddress(Value):
    """An address of a netdev, with its prefix length."""

    address: str
    """Such as `192.168.100.10/24` or `fe80::1/64`."""
    scope: str = "global"
    dynamic: bool = False
    """Assigned by DHCP or a router, for a limited time."""

    @property
    def interface(self) -> IPv4Interface | IPv6Interface:
        """The address with its subnet."""
        return ip_interface(self.address)


class Netdev(Value):
    """One network device."""

    name: str
    mac: str
    """Lower case with colons; "" if it has none."""
    mtu: int
    """Bytes."""
    up: bool
    """True if it is switched on (administratively up)."""
    carrier: bool
    """True if there is a signal: a cable with an active port at its other end."""
    state: str
    """The kernel's word for it: UP, DOWN, LOWERLAYERDOWN, UNKNOWN, …"""
    kind: str = ""
    """Kind of a virtual device: veth, bridge, bond, …; "" for hardware."""
    master: str = ""
    """The bridge or bond that it belongs to."""
    pci: str = ""
    """Its PCI address, such as 0002:01:00.1; "" if it is no PCI device, or iproute2 is older than 5.14."""
    addresses: tuple[NetAddress, ...] = ()

    @property
    def ipv4(self) -> tuple[IPv4Interface, ...]:
        """The IPv4 addresses that other nodes can use, without link-local ones."""
        found = (address.interface for address in self.addresses)
        return tuple(one for one in found if isinstance(one, IPv4Interface) and not one.ip.is_link_local)

    @property
    def link_local(self) -> tuple[str, ...]:
        """The `fe80::…` addresses, without prefix length."""
        found = (address.interface.ip for address in self.addresses)
        return tuple(str(ip) for ip in found if isinstance(ip, IPv6Address) and ip.is_link_local)


class _RawAddress(Entry):
    local: str = ""
    prefixlen: Annotated[int, Field(ge=0, le=128)] = 0
    scope: str = "global"
    dynamic: bool = False


class _RawLinkInfo(Entry):
    info_kind: Word | None = None


class _RawNetdev(Entry):
    ifname: Word
    flags: tuple[str, ...] = ()
    mtu: U32 = 0
    operstate: Word = "UNKNOWN"
    address: str = ""
    master: Word | None = None
    parentbus: str = ""
    parentdev: str = ""
    linkinfo: _RawLinkInfo | None = None
    addr_info: tuple[dict[str, Any], ...] = ()


class ReadNetdevs(Fact[tuple[Netdev, ...]]):
    """Reads every network device with its MAC, carrier, MTU and addresses, except the loopback."""

    argv = ("ip", "-j", "-d", "addr", "show")

    @staticmethod
    def parse(output: str) -> tuple[Netdev, ...]:
        """iproute2's JSON. Raises FactError for anything else."""
        raw = entries(_RawNetdev, output, "network devices")
        return tuple(_netdev(one) for one in raw if "LOOPBACK" not in one.flags)


def _netdev(raw: _RawNetdev) -> Netdev:
    return Netdev(
        name=raw.ifname,
        mac=mac_of(raw.address),
        mtu=raw.mtu,
        up="UP" in raw.flags,
        carrier="LOWER_UP" in raw.flags,
        state=raw.operstate,
        kind=(raw.linkinfo.info_kind or "") if raw.linkinfo else "",
        master=raw.master or "",
        pci=raw.parentdev if raw.parentbus == "pci" and _PCI.fullmatch(raw.parentdev) else "",
        addresses=tuple(_addresses(raw.addr_info)),
    )


def _addresses(raw: tuple[dict[str, Any], ...]) -> Iterator[NetAddress]:
    for entry in raw:
        one = checked(_RawAddress, entry, "network devices")
        if one.local:  # a point-to-point device may have none
            yield NetAddress(
                address=_interface(f"{one.local}/{one.prefixlen}"), scope=one.scope, dynamic=one.dynamic
            )


def _interface(address: str) -> str:
    try:
        return str(ip_interface(address))
    except ValueError:
        raise unexpected_output("network devices", address) from None
