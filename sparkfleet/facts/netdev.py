"""What is true of a node's network devices, as its kernel, its drivers and LLDP tell it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import (
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    ip_address,
    ip_interface,
    ip_network,
)
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from sparkfleet.facts.fact import Fact, not_understood, text
from sparkfleet.values import Value

Word = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,128}$")]
"""A name without spaces and control characters: what a terminal may be shown."""
Counter = Annotated[int, Field(ge=0, le=(1 << 64) - 1)]
V = TypeVar("V")

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


# --- devices and their addresses --------------------------------------------------------------------------------------


class NetAddress(Value):
    """An address of a netdev, with its prefix length."""

    address: str
    """Such as `192.168.100.10/24` or `fe80::1/64`."""
    scope: str = "global"
    dynamic: bool = False
    """Given by DHCP or a router, for a time."""

    @property
    def interface(self) -> IPv4Interface | IPv6Interface:
        """The address with its subnet."""
        return ip_interface(self.address)


class Netdev(Value):
    """One network device."""

    name: str
    mac: str
    """Lower case with colons; "" where it has none."""
    mtu: int
    """Bytes."""
    up: bool
    """Whether it is switched on."""
    carrier: bool
    """Whether there is a signal: a cable, and somebody at its other end."""
    state: str
    """The kernel's word for it: UP, DOWN, LOWERLAYERDOWN, UNKNOWN, …"""
    kind: str = ""
    """What made it where it is no hardware: veth, bridge, bond, …"""
    master: str = ""
    """The bridge or bond that it belongs to."""
    addresses: tuple[NetAddress, ...] = ()

    @property
    def ipv4(self) -> tuple[IPv4Interface, ...]:
        """Its IPv4 addresses that others can use, link-local ones left out."""
        found = (address.interface for address in self.addresses)
        return tuple(one for one in found if isinstance(one, IPv4Interface) and not one.ip.is_link_local)

    @property
    def link_local(self) -> tuple[str, ...]:
        """Its `fe80::…` addresses, without prefix length."""
        found = (address.interface.ip for address in self.addresses)
        return tuple(str(ip) for ip in found if isinstance(ip, IPv6Address) and ip.is_link_local)


class _Raw(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _RawAddress(_Raw):
    local: str = ""
    prefixlen: Annotated[int, Field(ge=0, le=128)] = 0
    scope: str = "global"
    dynamic: bool = False


class _RawLinkInfo(_Raw):
    info_kind: Word | None = None


class _RawNetdev(_Raw):
    ifname: Word
    flags: tuple[str, ...] = ()
    mtu: Annotated[int, Field(ge=0, le=1 << 32)] = 0
    operstate: Word = "UNKNOWN"
    address: str = ""
    master: Word | None = None
    linkinfo: _RawLinkInfo | None = None
    addr_info: tuple[dict[str, Any], ...] = ()


class ReadNetdevs(Fact[tuple[Netdev, ...]]):
    """Every network device with its MAC, carrier, MTU and addresses; the loopback is left out."""

    argv = ("ip", "-j", "-d", "addr", "show")

    @staticmethod
    def parse(output: str) -> tuple[Netdev, ...]:
        """iproute2's JSON. Raises FactError for anything else."""
        raw = _entries(_RawNetdev, output, "network devices")
        return tuple(_netdev(one) for one in raw if "LOOPBACK" not in one.flags)


def _netdev(raw: _RawNetdev) -> Netdev:
    mac = raw.address.lower()
    return Netdev(
        name=raw.ifname,
        mac=mac if _MAC.fullmatch(mac) else "",
        mtu=raw.mtu,
        up="UP" in raw.flags,
        carrier="LOWER_UP" in raw.flags,
        state=raw.operstate,
        kind=(raw.linkinfo.info_kind or "") if raw.linkinfo else "",
        master=raw.master or "",
        addresses=tuple(_addresses(raw.addr_info)),
    )


def _addresses(raw: tuple[dict[str, Any], ...]) -> Iterator[NetAddress]:
    for entry in raw:
        one = _checked(_RawAddress, entry, "network devices")
        if one.local:  # a point-to-point device may have none
            yield NetAddress(
                address=_interface(f"{one.local}/{one.prefixlen}"), scope=one.scope, dynamic=one.dynamic
            )


def _interface(address: str) -> str:
    try:
        return str(ip_interface(address))
    except ValueError:
        raise not_understood("network devices", address) from None


# --- bytes that went through the kernel -------------------------------------------------------------------------------


class Traffic(Value):
    """What a netdev has carried since it came up. RDMA passes the kernel by and is not in it."""

    netdev: str
    rx_bytes: int
    tx_bytes: int
    rx_errors: int = 0
    tx_errors: int = 0
    rx_dropped: int = 0


class _RawCount(_Raw):
    bytes: Counter = 0
    errors: Counter = 0
    dropped: Counter = 0


class _RawStats(_Raw):
    rx: _RawCount
    tx: _RawCount


class _RawTraffic(_Raw):
    ifname: Word
    stats64: _RawStats | None = None


class ReadTraffic(Fact[tuple[Traffic, ...]]):
    """Byte and error counters of every netdev."""

    argv = ("ip", "-j", "-s", "link", "show")

    @staticmethod
    def parse(output: str) -> tuple[Traffic, ...]:
        """iproute2's JSON. Raises FactError for anything else."""
        raw = _entries(_RawTraffic, output, "traffic counters")
        return tuple(_traffic(one.ifname, one.stats64) for one in raw if one.stats64)


def _traffic(netdev: str, stats: _RawStats) -> Traffic:
    return Traffic(
        netdev=netdev,
        rx_bytes=stats.rx.bytes,
        tx_bytes=stats.tx.bytes,
        rx_errors=stats.rx.errors,
        tx_errors=stats.tx.errors,
        rx_dropped=stats.rx.dropped,
    )


# --- routes and neighbours --------------------------------------------------------------------------------------------


class Route(Value):
    """One entry of the main IPv4 routing table."""

    to: str
    """A network such as `192.168.100.0/24`; `0.0.0.0/0` is the default route."""
    netdev: str
    gateway: str = ""
    metric: int = 0
    """The lowest wins."""

    @property
    def is_default(self) -> bool:
        """Whether it leads everywhere."""
        return self.to == "0.0.0.0/0"


class _RawRoute(_Raw):
    dst: str
    dev: Word | None = None
    gateway: str = ""
    metric: Annotated[int, Field(ge=0, le=1 << 32)] = 0


class ReadRoutes(Fact[tuple[Route, ...]]):
    """The main IPv4 routing table. Routes without a device (blackholes) are left out."""

    argv = ("ip", "-j", "-4", "route", "show")

    @staticmethod
    def parse(output: str) -> tuple[Route, ...]:
        """iproute2's JSON; empty output is an empty table. Raises FactError for anything else."""
        found = _entries(_RawRoute, output, "routes")
        return tuple(_route(one, one.dev) for one in found if one.dev)


def _route(raw: _RawRoute, netdev: str) -> Route:
    try:
        to = ip_network("0.0.0.0/0" if raw.dst == "default" else raw.dst, strict=False)
        gateway = str(ip_address(raw.gateway)) if raw.gateway else ""
    except ValueError:
        raise not_understood("routes", raw.dst) from None
    return Route(to=str(to), netdev=netdev, gateway=gateway, metric=raw.metric)


def management_netdev(routes: tuple[Route, ...]) -> str | None:
    """The netdev of the default route that wins: often the Wi-Fi. None where there is no default route."""
    defaults = [route for route in routes if route.is_default]
    return min(defaults, key=lambda route: route.metric).netdev if defaults else None


class Neighbour(Value):
    """Somebody that the kernel has heard of through ARP or IPv6 neighbour discovery."""

    address: str
    netdev: str
    mac: str
    """"" where nobody answered."""
    states: tuple[str, ...]
    """REACHABLE, STALE, DELAY, PROBE, FAILED, …"""

    @property
    def confirmed(self) -> bool:
        """Whether it answered in the last seconds. STALE may be a cable that was unplugged last week."""
        return bool(self.mac) and bool({"REACHABLE", "DELAY", "PROBE"}.intersection(self.states))


class _RawNeighbour(_Raw):
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
        found = _entries(_RawNeighbour, output, "neighbours")
        return tuple(_neighbour(one, one.dev) for one in found if one.dev)


def _neighbour(raw: _RawNeighbour, netdev: str) -> Neighbour:
    mac = raw.lladdr.lower()
    try:
        address = str(ip_address(raw.dst))
    except ValueError:
        raise not_understood("neighbours", raw.dst) from None
    return Neighbour(address=address, netdev=netdev, mac=mac if _MAC.fullmatch(mac) else "", states=raw.state)


# --- LLDP -------------------------------------------------------------------------------------------------------------


class LldpNeighbour(Value):
    """Who says by LLDP that it is at the other end."""

    netdev: str
    """The netdev of the node that heard it."""
    system: str = ""
    """The name the other end gives itself."""
    macs: tuple[str, ...] = ()
    """MACs it named: of its port first, of its chassis second."""
    port: str = ""
    """Its port, by the name it gives."""
    bridge: bool = False
    """Whether it says that it is a switch that switches."""


class ReadLldp(Fact[tuple[LldpNeighbour, ...]]):
    """LLDP neighbours. `lldpctl` may be missing; its rows come as an object or as a list, whatever their number."""

    argv = ("lldpctl", "-f", "json")

    @staticmethod
    def parse(output: str) -> tuple[LldpNeighbour, ...]:
        """lldpd's JSON. Raises FactError for anything else."""
        document = _json(output, "LLDP neighbours")
        top = document.get("lldp") if isinstance(document, dict) else None
        if not isinstance(top, dict):
            raise not_understood("LLDP neighbours", output)
        return tuple(_lldp(name, one) for name, one in _named(top.get("interface")))


def _named(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """`{"a": {…}}`, `[{"a": {…}}]` and `{"a": [{…}]}` alike."""
    for entry in value if isinstance(value, list) else [value]:
        for name, found in entry.items() if isinstance(entry, dict) else ():
            for one in found if isinstance(found, list) else [found]:
                if isinstance(one, dict):
                    yield _word(name), one


def _lldp(netdev: str, entry: dict[str, Any]) -> LldpNeighbour:
    port = entry.get("port")
    port = port if isinstance(port, dict) else {}
    system, chassis = _chassis(entry.get("chassis"))
    macs = (*_ids(port, "mac"), *_ids(chassis, "mac"))
    return LldpNeighbour(
        netdev=netdev,
        system=system,
        macs=tuple(dict.fromkeys(mac.lower().replace("-", ":") for mac in macs)),
        port=next(iter((*_ids(port, "ifname"), *_ids(port, "local"))), ""),
        bridge=any(_switches(one) for one in _listed(chassis.get("capability"))),
    )


def _chassis(value: Any) -> tuple[str, dict[str, Any]]:
    """Keyed by the system's name; without a key where it gives none."""
    if isinstance(value, dict) and "id" in value:
        return "", value
    return next(_named(value), ("", {}))


def _ids(holder: dict[str, Any], kind: str) -> list[str]:
    found = [one for one in _listed(holder.get("id")) if isinstance(one, dict) and one.get("type") == kind]
    return [_word(str(one.get("value", ""))) for one in found]


def _switches(capability: Any) -> bool:
    return (
        isinstance(capability, dict)
        and capability.get("type") == "Bridge"
        and capability.get("enabled") in (True, "on", "true")
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


# --- what a driver says of one device ---------------------------------------------------------------------------------


class LinkSettings(Value):
    """Speed and state of one netdev, as its driver says."""

    speed_mb_per_s: int | None
    """Megabits per second; None where there is no link."""
    duplex: Literal["Full", "Half"] | None
    link: bool | None
    """Whether a link is detected; None where the driver does not say."""
    reason: str = ""
    """Why not, such as "No cable"."""


class ReadLinkSettings:
    """`ethtool NETDEV`. Without root it prints everything, and an error on stderr that means nothing."""

    def __init__(self, netdev: str) -> None:
        self.argv = ("ethtool", netdev)

    @staticmethod
    def parse(output: str) -> LinkSettings:
        """Its `Name: value` lines. Raises FactError where there is none of them."""
        lines = _fields(output)
        if "speed" not in lines and "link detected" not in lines:
            raise not_understood("link settings", output)
        speed = re.match(r"([0-9]{1,9})Mb/s", lines.get("speed", ""))
        duplex = lines.get("duplex")
        detected = re.match(r"(yes|no)(?: \((.{1,80})\))?", lines.get("link detected", ""))
        return LinkSettings(
            speed_mb_per_s=int(speed[1]) if speed else None,
            duplex="Full" if duplex == "Full" else "Half" if duplex == "Half" else None,
            link=None if detected is None else detected[1] == "yes",
            reason=_word((detected[2] or "") if detected else ""),
        )


class Fec(Value):
    """Forward error correction of one netdev: asked for, and in use (`RS` on a healthy 200 Gb/s cable)."""

    configured: tuple[str, ...]
    active: tuple[str, ...]
    """Empty where there is none, as on a port without a cable."""


class ReadFec:
    """`ethtool --show-fec NETDEV`."""

    def __init__(self, netdev: str) -> None:
        self.argv = ("ethtool", "--show-fec", netdev)

    @staticmethod
    def parse(output: str) -> Fec:
        """Its `Active FEC encoding(s)` and `Configured` lines. Raises FactError without an active one."""
        lines = _fields(output)
        active = next((value for key, value in lines.items() if key.startswith("active fec")), None)
        if active is None:
            raise not_understood("FEC", output)
        asked = next((value for key, value in lines.items() if "configured fec" in key), "")
        return Fec(configured=_words(asked), active=tuple(w for w in _words(active) if w.lower() != "none"))


class ReadDriverCounters:
    """`ethtool -S NETDEV`: the driver's own counters, `rx_corrected_bits_phy` among them."""

    def __init__(self, netdev: str) -> None:
        self.argv = ("ethtool", "-S", netdev)

    @staticmethod
    def parse(output: str) -> dict[str, int]:
        """Counter name to value. Raises FactError where there is none."""
        found = re.findall(r"^\s*([A-Za-z0-9_.\[\]-]{1,64}): ([0-9]{1,20})\s*$", output, re.MULTILINE)
        if not found:
            raise not_understood("driver counters", output)
        return {name: int(value) for name, value in found}


class PciLink(Value):
    """How a function is joined to the processor. A healthy half of a Spark's ConnectX-7 has 32 GT/s and 4 lanes."""

    gt_per_s: float
    """Transfers per second and lane, 1e9; PCIe Gen5 is 32."""
    width: int
    """Lanes."""


class ReadPciLink:
    """PCIe speed and width of one netdev's function, from sysfs: `lspci` says it only to root."""

    fine = (0, 2)
    """`grep` says 2 where one of the files is missing."""

    def __init__(self, netdev: str) -> None:
        device = f"/sys/class/net/{netdev}/device"
        self.argv = ("grep", "-sH", ".", f"{device}/current_link_speed", f"{device}/current_link_width")

    @staticmethod
    def parse(output: str) -> PciLink:
        """`path:value` lines. Raises FactError where one of the two is missing: the device is no PCI function."""
        speed = re.search(r"current_link_speed:([0-9]{1,3}(?:\.[0-9])?) GT/s", output)
        width = re.search(r"current_link_width:([0-9]{1,3})$", output, re.MULTILINE)
        if speed is None or width is None:
            raise not_understood("the PCIe link", output)
        return PciLink(gt_per_s=float(speed[1]), width=int(width[1]))


class ReadPciLinks(Fact[dict[str, PciLink]]):
    """PCIe links of every Mellanox function, by address. Needs root: without it `lspci` withholds them."""

    argv = ("lspci", "-D", "-vv", "-d", "15b3:")

    @staticmethod
    def parse(output: str) -> dict[str, PciLink]:
        """Address to link; functions without an `LnkSta` line (no root) are left out."""
        found: dict[str, PciLink] = {}
        for block in re.split(r"\n\s*\n", output):
            address = re.match(r"\s*([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ", block)
            status = re.search(
                r"LnkSta:\s+Speed ([0-9]{1,3}(?:\.[0-9])?)GT/s[^,\n]*, Width x([0-9]{1,3})", block
            )
            if address and status:
                found[address[1]] = PciLink(gt_per_s=float(status[1]), width=int(status[2]))
        return found


# --- what the parsers share -------------------------------------------------------------------------------------------


def _fields(output: str) -> dict[str, str]:
    """`Name: value` lines by lower-case name."""
    pairs = (line.partition(":") for line in output.splitlines())
    return {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}


def _words(value: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[A-Za-z0-9_-]{1,32}", value))


R = TypeVar("R", bound=BaseModel)


def _entries(model: type[R], output: str, what: str) -> list[R]:
    """A JSON list of objects. Some versions of iproute2 put `{}` where a filter left something out."""
    if not output.strip():
        return []
    found = _json(output, what)
    if not isinstance(found, list):
        raise not_understood(what, output)
    return [_checked(model, entry, what) for entry in found if entry != {}]


def _checked(model: type[R], entry: Any, what: str) -> R:
    try:
        return model.model_validate(entry)
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
        raise not_understood(what, f"{where}: {entry!r}") from None


_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


def _json(output: str, what: str) -> Any:
    try:
        # Not the json module: it recurses without limit and takes NaN.
        return _ANYTHING.validate_json(output)
    except ValidationError:
        raise not_understood(what, output) from None


def _word(value: str) -> str:
    return text(value, 128)
