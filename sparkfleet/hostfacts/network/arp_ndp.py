"""Neighbours that a node's kernel knows by ARP and IPv6 neighbour discovery."""

from __future__ import annotations

from ipaddress import ip_address

from sparkfleet.hostfacts.fact import Fact, unexpected_output
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


def _neighbour(raw: _RawNeighbour, netdev: str) -> Neighbour:
    try:
        address = str(ip_address(raw.dst))
    except ValueError:
        raise unexpected_output("neighbours", raw.dst) from None
    return Neighbour(address=address, netdev=netdev, mac=mac_of(raw.lladdr), states=raw.state)
