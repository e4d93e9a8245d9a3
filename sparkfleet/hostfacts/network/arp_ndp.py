"""Neighbours that a node's kernel knows by ARP and IPv6 neighbour discovery, and the netdevs that answer ARP for others."""

from __future__ import annotations

import re
from ipaddress import ip_address

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.fact import Fact, by_file, unexpected_output
from sparkfleet.hostfacts.network.iproute import Entry, Word, entries, mac_of
from sparkfleet.values import Value


class Neighbour(Value):
    """A neighbour that the kernel found through ARP or IPv6 neighbour discovery."""

    address: str
    netdev: str
    mac: str
    """"" if nobody answered."""
    states: tuple[str, ...]
    """REACHABLE, STALE, DELAY, PROBE, FAILED, …"""

    @property
    def confirmed(self) -> bool:
        """True if it answered in the last seconds. A STALE entry may be of a cable that was unplugged last week."""
        return bool(self.mac) and bool({"REACHABLE", "DELAY", "PROBE"}.intersection(self.states))


class _RawNeighbour(Entry):
    dst: str
    dev: Word | None = None
    lladdr: str = ""
    state: tuple[Word, ...] = ()


class ReadNeighbours(Fact[tuple[Neighbour, ...]]):
    """The neighbour tables of IPv4 and IPv6."""

    argv = ("ip", "-j", "neigh", "show")

    @staticmethod
    def parse(output: str) -> tuple[Neighbour, ...]:
        """iproute2's JSON; empty output is an empty table. Raises FactError for anything else."""
        found = entries(_RawNeighbour, output, "neighbours")
        return tuple(_neighbour(one, one.dev) for one in found if one.dev)


_CONF = "/proc/sys/net/ipv4/conf"
_SETTING = re.compile(rf"{_CONF}/([^/]{{1,15}})/arp_ignore")
_ALL, _DEFAULT = "all", "default"


class ReadLooseArp(Fact[frozenset[str]]):
    """The netdevs that answer ARP for addresses of other netdevs, as Linux does by default (`arp_ignore` 0)."""

    argv = ("grep", "-rsH", "--include=arp_ignore", "", _CONF)
    fine = (0, 2)

    @staticmethod
    def parse(output: str) -> frozenset[str]:
        """The larger value of `all` and of the netdev counts (Documentation/networking/ip-sysctl.rst of the kernel)."""
        values = {
            found[1]: "".join(lines).strip()
            for path, lines in by_file(output).items()
            if (found := _SETTING.fullmatch(path))
        }
        if _ALL not in values:
            raise FactError(f"the settings of ARP are not known: {_CONF}/{_ALL}/arp_ignore.")
        if values.pop(_ALL) != "0":
            return frozenset()
        return frozenset(name for name, value in values.items() if value == "0" and name != _DEFAULT)


def _neighbour(raw: _RawNeighbour, netdev: str) -> Neighbour:
    try:
        address = str(ip_address(raw.dst))
    except ValueError:
        raise unexpected_output("neighbours", raw.dst) from None
    return Neighbour(address=address, netdev=netdev, mac=mac_of(raw.lladdr), states=raw.state)
