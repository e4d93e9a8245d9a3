"""The node's real netdevs, and the simulated RoCE devices on them."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from sparkfleet.lab.inside.node_settings import HCAS, NETDEVS, REAL, NodeSettings

IP = next((path for path in (f"{REAL}/ip", "/usr/sbin/ip") if os.path.exists(path)), "/sbin/ip")
"""The system's own. On Ubuntu /sbin/ip is a link to /usr/bin/ip, which the device command replaces."""
KERNELS = "/sys/class/net"


@dataclass(frozen=True)
class SimulatedNetdev:
    """One netdev as the kernel has it now."""

    name: str
    carrier: bool
    mtu: int
    mac: str
    ipv4: tuple[str, ...]
    ipv6: tuple[str, ...]
    counters: dict[str, int]
    """rx_bytes, tx_bytes, rx_packets, tx_packets."""


@dataclass(frozen=True)
class SimulatedGid:
    """One row of a RoCE device's GID table."""

    index: int
    value: str
    version: int
    ipv4: str


@dataclass(frozen=True)
class Hca:
    """A RoCE device. Its port has the state of its netdev."""

    name: str
    netdev: SimulatedNetdev
    gids: tuple[SimulatedGid, ...]

    @property
    def active(self) -> bool:
        """True if its port is up."""
        return self.netdev.carrier

    @property
    def active_mtu(self) -> int:
        """Largest InfiniBand MTU that fits in the netdev's."""
        fits = [mtu for mtu in (4096, 2048, 1024, 512, 256) if mtu + 64 <= self.netdev.mtu]
        return fits[0] if fits and self.active else 1024

    @property
    def guid(self) -> str:
        """Node GUID, hex without separators."""
        return self.netdev.mac.replace(":", "")[:6] + "0300" + self.netdev.mac.replace(":", "")[6:]


def read_netdevs() -> dict[str, SimulatedNetdev]:
    """Every netdev of the node, by name."""
    done = subprocess.run((IP, "-j", "-s", "address", "show"), capture_output=True, check=True)
    return {row["ifname"]: _netdev(row) for row in json.loads(done.stdout)}


def _netdev(row: dict[str, Any]) -> SimulatedNetdev:
    addresses = row.get("addr_info", [])
    stats = row.get("stats64", {})
    return SimulatedNetdev(
        name=row["ifname"],
        carrier="LOWER_UP" in row["flags"],
        mtu=row["mtu"],
        mac=row.get("address", "00:00:00:00:00:00"),
        ipv4=tuple(a["local"] for a in addresses if a["family"] == "inet"),
        ipv6=tuple(a["local"] for a in addresses if a["family"] == "inet6"),
        counters={f"{way}_{what}": stats.get(way, {}).get(what, 0)
                  for way in ("rx", "tx") for what in ("bytes", "packets")},
    )  # fmt: skip


def read_hcas(settings: NodeSettings) -> list[Hca]:
    """The four RoCE devices in the order of ibv_devices."""
    netdevs = read_netdevs()
    pairs = sorted(zip(HCAS, NETDEVS, strict=True), key=lambda pair: (len(pair[0]), pair[0]))
    return [
        Hca(hca, netdevs[netdev], gid_table(netdevs[netdev], settings.text("gid", hca)))
        for hca, netdev in pairs
        if netdev in netdevs
    ]


def gid_table(netdev: SimulatedNetdev, knob: str) -> tuple[SimulatedGid, ...]:
    """The GIDs of a netdev: its default one at 0 and 1, then two per further address, as the kernel adds them."""
    default = IPv6Address(_link_local(netdev.mac))
    addresses: list[IPv6Address] = [default]
    if knob == "shifted":
        # As on machines on which NetworkManager gave the rail another address first.
        addresses.append(IPv6Address(f"fd00::{netdev.mac.replace(':', '')[-4:]}"))
    addresses += [IPv6Address(a) for a in netdev.ipv6 if IPv6Address(a) != default]
    addresses += [IPv6Address(f"::ffff:{a}") for a in netdev.ipv4 if knob != "missing"]
    return tuple(
        SimulatedGid(2 * index + version - 1, address.exploded, version, _mapped(address))
        for index, address in enumerate(addresses)
        for version in (1, 2)
    )


def _mapped(address: IPv6Address) -> str:
    found: IPv4Address | None = address.ipv4_mapped
    return str(found) if found else ""


def _link_local(mac: str) -> str:
    parts = [int(part, 16) for part in mac.split(":")]
    a, b, c, d, e, f = parts[0] ^ 2, *parts[1:]
    return f"fe80::{a:02x}{b:02x}:{c:02x}ff:fe{d:02x}:{e:02x}{f:02x}"
