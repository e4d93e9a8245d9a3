"""IPv4 routes of a node, and the netdev of the default one."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from sparkfleet.hostfacts.fact import Fact, unexpected_output
from sparkfleet.hostfacts.network.iproute import U32, Entry, Word, entries
from sparkfleet.values import Value


class RouteEntry(Value):
    """One entry of the main IPv4 routing table."""

    to: str
    """A network such as `192.168.100.0/24`; `0.0.0.0/0` is the default route."""
    netdev: str
    gateway: str = ""
    metric: int = 0
    """Metric; the lowest wins."""

    @property
    def is_default(self) -> bool:
        """True for a default route."""
        return self.to == "0.0.0.0/0"


class _RawRoute(Entry):
    dst: str
    dev: Word | None = None
    gateway: str = ""
    metric: U32 = 0


class ReadRoutes(Fact[tuple[RouteEntry, ...]]):
    """The main IPv4 routing table. Routes without a device (blackholes) are left out."""

    argv = ("ip", "-j", "-4", "route", "show")

    @staticmethod
    def parse(output: str) -> tuple[RouteEntry, ...]:
        """iproute2's JSON; empty output is an empty table. Raises FactError for anything else."""
        found = entries(_RawRoute, output, "routes")
        return tuple(_route(one, one.dev) for one in found if one.dev)


def _route(raw: _RawRoute, netdev: str) -> RouteEntry:
    try:
        to = ip_network("0.0.0.0/0" if raw.dst == "default" else raw.dst, strict=False)
        gateway = str(ip_address(raw.gateway)) if raw.gateway else ""
    except ValueError:
        raise unexpected_output("routes", raw.dst) from None
    return RouteEntry(to=str(to), netdev=netdev, gateway=gateway, metric=raw.metric)


def management_netdev(routes: tuple[RouteEntry, ...]) -> str | None:
    """The netdev of the default route that wins: often the Wi-Fi. None if there is no default route."""
    defaults = [route for route in routes if route.is_default]
    return min(defaults, key=lambda route: route.metric).netdev if defaults else None
