#!/usr/bin/python3 -I
"""Sets the addresses of a node's rails, as root, and takes them back unless somebody confirms in time.

This program is copied to nodes and is all that sparkfleet may do there as root. It needs nothing but Python, never
starts a shell, checks all of its input, and touches five things: /etc/netplan/60-sparkfleet.yaml (or, if there is no
netplan, the running addresses), `netplan`, the two settings of ARP of each rail with their file in /etc/sysctl.d, its own
table of nftables with the file and the unit that load it after a reboot, and its own directory in /run.

    apply SECONDS    reads {"ports": [{"netdev", "address", "mtu"}]} from stdin; prints {"token": …}
    firewall SECONDS reads {"netdevs": […], "peers": […], "open": […]} from stdin: the rails, the addresses of the other
                     nodes, and ports that stay open to everybody; or {} for no firewall; prints {"token": …}
    confirm TOKEN    keeps what was applied
    rollback TOKEN   takes it back now
    show             prints {"backend", "version", "own", "others", "loose", "firewall"}: the netplan file of this program,
                     the netdevs of ConnectX that other netplan files name, those that answer ARP for addresses of other
                     netdevs, and the table. Contents of other files stay here: they may hold the keys of a Wi-Fi.

Only netdevs of a ConnectX are changed. The one exception is a simulated node, on which root has made /etc/sparkfleet-lab.

Exit code 1 with one line on stderr if something is wrong.
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import json
import os
import re
import secrets
import select
import shutil
import stat
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

NETPLAN = Path("/etc/netplan")
NETPLAN_FILE = NETPLAN / "60-sparkfleet.yaml"
STATE = Path("/run/sparkfleet-rails")
NETDEVS = Path("/sys/class/net")
LAB = Path("/etc/sparkfleet-lab")
MELLANOX = "0x15b3"
"""Vendor of every ConnectX: https://pci-ids.ucw.cz/read/PC/15b3"""
DRIVER = "mlx5_core"
CONF = Path("/proc/sys/net/ipv4/conf")
SYSCTL_FILE = Path("/etc/sysctl.d/60-sparkfleet-rails.conf")
ARP = {"arp_ignore": 1, "arp_announce": 2}
"""Settings of a rail: it answers ARP for its own addresses only, and asks with one of them. By default Linux answers on
every netdev for every address of the machine, and both halves of a port are on the wire of a switch: neighbours then
send to the MAC of the wrong half. Documentation/networking/ip-sysctl.rst of the kernel."""
NETDEV = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
FIREWALL_FILE = Path("/etc/sparkfleet/firewall.nft")
FIREWALL_UNIT = Path("/etc/systemd/system/sparkfleet-firewall.service")
TABLE = "sparkfleet"
CLOSED = (10002, 60999)
"""TCP ports of Ray's workers, of engines and Ray (from 20000), and of everything that lets the kernel choose one."""
HEADER = "# Written by `sparkfleet fabric apply`: the rails between the nodes. Your other netplan files are not touched."
LONGEST_S = 600
_KNOWN = re.compile(
    r"network:|  (version: 2|ethernets:)|    [A-Za-z0-9._-]{1,15}:|      (addresses: \[[0-9./]+\]|mtu: [0-9]+"
    r"|dhcp[46]: false|accept-ra: false|link-local: \[\]|optional: true)"
)
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_MATCHED = re.compile(r"\b(name|macaddress|driver):\s*[\"']?([^\s\"',{}\[\]]+)")
"""The `match` of a netplan file, whose name and driver may be patterns: `name: en*`."""
MOST_PORTS = 64
MOST_PEERS = 4096
"""Addresses of the other nodes: 64 nodes with a network of each of IPv4 and IPv6 have some hundred."""
MOST_BYTES = 1 << 16
MOST_FIREWALL_BYTES = 4 * MOST_BYTES
"""Of a request for a firewall, and of its table: so many peers with IPv6 addresses of 39 characters."""


class RailsHelperError(Exception):
    """A request that cannot be carried out; the text is the reason."""


class Backend(Protocol):
    """Sets addresses and restores them."""

    name: str

    def save(self, ports: Any) -> Any:
        """State as JSON that `restore` takes."""

    def apply(self, ports: Any) -> None:
        """Make it as asked."""

    def restore(self, saved: Any) -> None:
        """Make it as it was."""


class Netplan:
    """Ubuntu's way: one file, and `netplan apply`."""

    name = "netplan"

    def __init__(self, file: Path = NETPLAN_FILE) -> None:
        self.file = file

    def save(self, ports: list[dict[str, Any]]) -> Any:
        """The file as it is, and the running addresses. Raises RailsHelperError if netplan refuses the files it has."""
        try:
            run("netplan", "generate")
        except RailsHelperError as error:
            # Afterwards neither the change nor the way back could be applied.
            raise RailsHelperError(
                f"netplan refuses the files that are there, so nothing was changed: {error}"
            ) from None
        text = self.file.read_text() if self.file.exists() else None
        return {"text": text, "running": Addresses().save(ports)}

    def apply(self, ports: list[dict[str, Any]]) -> None:
        """Write the file, and have netplan read it."""
        self._write(rendered(ports))
        run("netplan", "generate")
        run("netplan", "apply")

    def restore(self, saved: Any) -> None:
        """The file as it was, or none; netdevs of which netplan then has no definition are set as they were running."""
        if saved["text"] is None:
            self.file.unlink(missing_ok=True)
        else:
            self._write(saved["text"])
        run("netplan", "apply")
        defined = {name for file in self.file.parent.glob("*.yaml") for name in named_in(_text(file))}
        self._leave([one for one in saved["running"] if one["netdev"] not in defined])

    def _leave(self, running: list[dict[str, Any]]) -> None:
        """Sets what systemd-networkd does not when it lets go of a netdev: it takes all addresses and leaves the MTU."""
        for one in running:
            if one["generate"] == "none":
                # NetworkManager makes the link-local addresses of what it manages, and sets its own addresses again.
                run("ip", "link", "set", "dev", one["netdev"], "mtu", str(one["mtu"]))
            else:
                Addresses().restore([one])

    def _write(self, text: str) -> None:
        replace_file(self.file, text, 0o600)


class Addresses:
    """Without netplan: `ip`, until the next reboot."""

    name = "ip"

    def save(self, ports: list[dict[str, Any]]) -> Any:
        """Addresses, MTU and the making of link-local addresses, per netdev."""
        return [self._read(port["netdev"]) for port in ports]

    def apply(self, ports: list[dict[str, Any]]) -> None:
        """Address and MTU as asked, no others."""
        for port in ports:
            self._set(port["netdev"], port["mtu"], [port["address"]], "none")

    def restore(self, saved: Any) -> None:
        """As it was."""
        for one in saved:
            self._set(one["netdev"], one["mtu"], one["addresses"], one["generate"])

    def _read(self, netdev: str) -> dict[str, Any]:
        (found,) = [one for one in json.loads(run("ip", "-j", "-d", "addr", "show", "dev", netdev)) if one]
        return {
            "netdev": netdev,
            "mtu": found["mtu"],
            "addresses": [f"{one['local']}/{one['prefixlen']}" for one in found["addr_info"]],
            "generate": found.get("inet6_addr_gen_mode", "eui64"),
        }

    def _set(self, netdev: str, mtu: int, addresses: list[str], generate: str) -> None:
        run("ip", "link", "set", "dev", netdev, "addrgenmode", generate)
        run("ip", "addr", "flush", "dev", netdev)
        run("ip", "link", "set", "dev", netdev, "mtu", str(mtu), "up")
        for address in addresses:
            run("ip", "addr", "replace", address, "dev", netdev)


class StrictArp:
    """The settings of ARP of rails, running and, if `file` is given, after a reboot."""

    def __init__(self, file: Path | None) -> None:
        self.file = file

    def save(self, ports: list[dict[str, Any]]) -> Any:
        """The file as it is, and the running settings."""
        text = self.file.read_text() if self.file is not None and self.file.exists() else None
        return {"text": text, "running": {port["netdev"]: _arp_of(port["netdev"]) for port in ports}}

    def apply(self, ports: list[dict[str, Any]]) -> None:
        """Set `ARP`, and write the file: systemd reads it at boot, and whenever a netdev is added."""
        names = sorted(port["netdev"] for port in ports)
        self._write("".join(f"net/ipv4/conf/{name}/{key} = {ARP[key]}\n" for name in names for key in ARP))
        for name in names:
            self._set(name, ARP)

    def restore(self, saved: Any) -> None:
        """As it was."""
        self._write(saved["text"])
        for name, settings in saved["running"].items():
            self._set(name, settings)

    def _write(self, text: str | None) -> None:
        if self.file is None:
            return
        if text is None:
            self.file.unlink(missing_ok=True)
        else:
            self.file.parent.mkdir(mode=0o755, exist_ok=True)
            replace_file(self.file, text, 0o644)

    def _set(self, netdev: str, settings: dict[str, int]) -> None:
        for key, value in settings.items():
            (CONF / netdev / key).write_text(f"{value}\n")


def _arp_of(netdev: str) -> dict[str, int]:
    return {key: int((CONF / netdev / key).read_text()) for key in ARP}


def loose_netdevs(file: Path | None) -> list[str]:
    """Netdevs of ConnectX that answer ARP for other netdevs' addresses, or will after a reboot."""
    lines = set(_text(file).splitlines()) if file is not None and file.exists() else set()
    return [
        name
        for name in _rail_netdevs()
        if (CONF / name).is_dir()
        and (
            _arp_of(name) != ARP
            or (file is not None and not {f"net/ipv4/conf/{name}/{key} = {ARP[key]}" for key in ARP} <= lines)
        )
    ]


class Rails:
    """Addresses and settings of ARP, changed and restored together."""

    def __init__(self, addresses: Backend, arp: StrictArp) -> None:
        self.name, self._addresses, self._arp = addresses.name, addresses, arp

    def save(self, ports: Any) -> Any:
        """Both as they are."""
        return {"addresses": self._addresses.save(ports), "arp": self._arp.save(ports)}

    def apply(self, ports: Any) -> None:
        """ARP first: no neighbour learns the MAC of a wrong netdev for a new address."""
        self._arp.apply(ports)
        self._addresses.apply(ports)

    def restore(self, saved: Any) -> None:
        """Both as they were, the addresses also if ARP cannot be set."""
        try:
            self._arp.restore(saved["arp"])
        finally:
            self._addresses.restore(saved["addresses"])


class Firewall:
    """A table of nftables of our own, beside what ufw or others have: a packet passes only if all let it."""

    name = "nft"

    def __init__(self, file: Path = FIREWALL_FILE, unit: Path = FIREWALL_UNIT) -> None:
        self.file, self.unit = file, unit

    def save(self, asked: dict[str, Any]) -> Any:
        """The file as it is, and whether its table is loaded."""
        return {"text": self.file.read_text() if self.file.exists() else None, "loaded": self.table() != ""}

    def apply(self, asked: dict[str, Any]) -> None:
        """Write the file and load it; without a request, no file and no table."""
        self._set(firewall_rules(asked) if asked else None, loaded=bool(asked))

    def restore(self, saved: Any) -> None:
        """As it was."""
        self._set(saved["text"], loaded=saved["loaded"])

    def table(self) -> str:
        """The loaded table; "" if there is none, or no `nft`."""
        try:
            return run("nft", "list", "table", "inet", TABLE)
        except RailsHelperError:
            return ""

    def _set(self, text: str | None, *, loaded: bool) -> None:
        if text is None:
            self.file.unlink(missing_ok=True)
        else:
            self.file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_file(self.file, text, 0o644)
        if text is not None and loaded:
            run("nft", "-f", str(self.file))
        elif self.table():
            run("nft", "delete", "table", "inet", TABLE)
        self._at_boot(wanted=text is not None)

    def _at_boot(self, *, wanted: bool) -> None:
        if not Path("/run/systemd/system").is_dir():
            return
        if wanted:
            self.unit.write_text(firewall_unit(shutil.which("nft") or "/usr/sbin/nft", self.file))
            run("systemctl", "daemon-reload")
            run("systemctl", "enable", self.unit.name)
            run("systemctl", "restart", self.unit.name)
        elif self.unit.exists():
            run("systemctl", "disable", "--now", self.unit.name)
            self.unit.unlink()


def firewall_rules(asked: dict[str, Any]) -> str:
    """The file of the table for a checked request. Loading it replaces the table at once, in one step."""
    v4 = [one for one in asked["peers"] if ":" not in one]
    v6 = [one for one in asked["peers"] if ":" in one]
    passed = [
        'iifname "lo" accept',
        "ct state established,related accept",
        _one_of("iifname", [f'"{netdev}"' for netdev in asked["netdevs"]]),
        _one_of("ip saddr", v4),
        _one_of("ip6 saddr", v6),
        _one_of("tcp dport", [str(port) for port in asked["open"]]),
    ]
    rules = [*(rule for rule in passed if rule), f"tcp dport {CLOSED[0]}-{CLOSED[1]} counter drop"]
    lines = [
        "# Written by `sparkfleet fabric firewall`: closes the fleet's ports to machines that are no nodes of it.",
        f"table inet {TABLE}",
        f"delete table inet {TABLE}",
        f"table inet {TABLE} {{",
        "  chain input {",
        "    type filter hook input priority -5; policy accept;",
        *(f"    {rule}" for rule in rules),
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _one_of(what: str, values: list[str]) -> str:
    return f"{what} {{ {', '.join(values)} }} accept" if values else ""


def firewall_unit(nft: str, file: Path) -> str:
    """The systemd unit that loads the table after a reboot, before the network is up.

    The owner's own rules, if `nftables.service` loads any, begin with `flush ruleset`, which removes every table: so this
    one is loaded after them, and again if they are.
    """
    return f"""\
[Unit]
Description=Closes the ports of sparkfleet to machines that are no nodes of its fleet
DefaultDependencies=no
Before=network.target
After=nftables.service
PartOf=nftables.service
ReloadPropagatedFrom=nftables.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={nft} -f {file}
ExecReload={nft} -f {file}

[Install]
WantedBy=multi-user.target nftables.service
"""


def replace_file(file: Path, text: str, mode: int) -> None:
    """Write a file whose content is on the disk before it has its name, and then the name: a Spark may be switched off."""
    fresh = file.with_suffix(".sparkfleet-new")  # not .yaml: netplan does not read it
    fresh.touch(mode=mode)
    fresh.chmod(mode)
    with fresh.open("w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    fresh.replace(file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def run(*argv: str) -> str:
    """The output of a command. Raises RailsHelperError if it fails."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, check=False, env={"PATH": path, "LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RailsHelperError(f"{argv[0]}: {error}") from None
    if done.returncode != 0:
        reasons = [line for line in done.stderr.splitlines() if "WARNING **" not in line]
        raise RailsHelperError(f"{' '.join(argv)}: {' '.join(' '.join(reasons).split())[:300]}")
    return done.stdout


def rendered(ports: list[dict[str, Any]]) -> str:
    """The netplan file for `ports`."""
    lines = [HEADER, "network:", "  version: 2", "  ethernets:"]
    for port in ports:
        lines += [
            f"    {port['netdev']}:",
            f"      addresses: [{port['address']}]",
            f"      mtu: {port['mtu']}",
            "      dhcp4: false",
            "      dhcp6: false",
            "      accept-ra: false",
            "      link-local: []",
            "      optional: true",
        ]
    return "\n".join(lines) + "\n"


def backend() -> Backend:
    """Netplan if it is installed, else `ip`, until the next reboot; each with the settings of ARP."""
    if shutil.which("netplan") and NETPLAN.is_dir():
        return Rails(Netplan(), StrictArp(SYSCTL_FILE))
    return Rails(Addresses(), StrictArp(None))


# --- checks of the input ----------------------------------------------------------------------------------------------


def checked(text: str) -> list[dict[str, Any]]:
    """The ports of a request. Raises RailsHelperError for anything that is not exactly that."""
    try:
        ports = [checked_port(port) for port in json.loads(text)["ports"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RailsHelperError(f"the request is not valid: {error!r}"[:200]) from None
    if not 0 < len(ports) <= MOST_PORTS or len({port["netdev"] for port in ports}) != len(ports):
        raise RailsHelperError("the request names no netdev, too many, or one twice")
    return ports


def checked_port(port: Any) -> dict[str, Any]:
    """One port. Raises ValueError or TypeError."""
    netdev, text, mtu = port["netdev"], port["address"], port["mtu"]
    if not isinstance(netdev, str) or not NETDEV.fullmatch(netdev):
        raise ValueError("netdev")
    if not isinstance(mtu, int) or not 1280 <= mtu <= 9216:
        raise ValueError("mtu")
    if not isinstance(text, str):
        raise TypeError("address")
    address = ipaddress.IPv4Interface(text)  # not IPv6: its zone may be any text
    if not address.is_private or address.is_loopback:
        raise ValueError("address")
    return {"netdev": netdev, "address": str(address), "mtu": mtu}


def checked_firewall(text: str) -> dict[str, Any]:
    """The request for a firewall; {} for none. Raises RailsHelperError for anything that is not exactly that."""
    try:
        asked = json.loads(text)
        if asked == {}:
            return {}
        netdevs, peers, ports = asked["netdevs"], asked["peers"], asked["open"]
        if len(asked) != 3 or not all(isinstance(one, list) for one in (netdevs, peers, ports)):
            raise ValueError("fields")
        if max(len(netdevs), len(ports)) > MOST_PORTS or len(peers) > MOST_PEERS:
            raise ValueError(f"at most {MOST_PORTS} netdevs and ports, and {MOST_PEERS} peers")
        if not all(isinstance(netdev, str) and NETDEV.fullmatch(netdev) for netdev in netdevs):
            raise ValueError("netdevs")
        if not all(
            isinstance(port, int) and not isinstance(port, bool) and 0 < port < 1 << 16 for port in ports
        ):
            raise ValueError("open")
        return {"netdevs": netdevs, "peers": [_peer(one) for one in peers], "open": ports}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RailsHelperError(f"the request is not valid: {error!r}"[:200]) from None


def _peer(text: Any) -> str:
    """An address of a node, in its usual form. Raises ValueError or TypeError."""
    if not isinstance(text, str) or "%" in text:
        raise TypeError("peers")
    address = ipaddress.ip_address(text)
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        raise ValueError("peers")
    return str(address)


def present(ports: list[dict[str, Any]]) -> None:
    """Refuse netdevs that are not there or no ConnectX, and the one that the node is reached on. Raises RailsHelperError."""
    routes = json.loads(run("ip", "-j", "-4", "route", "show", "default") or "[]")
    default = {route.get("dev") for route in routes}
    require_rails([port["netdev"] for port in ports])
    for port in ports:
        if port["netdev"] in default:
            raise RailsHelperError(f"{port['netdev']} has the default route; it is no rail")


def require_rails(netdevs: list[str]) -> None:
    """Refuse netdevs that are not there or no ConnectX: the firewall would pass all of their packets.

    Raises RailsHelperError.
    """
    for netdev in netdevs:
        if not (NETDEVS / netdev).exists():
            raise RailsHelperError(f"{netdev}: no such device")
        if not (is_connectx(netdev) or is_simulated()):
            raise RailsHelperError(f"{netdev} is no port of a ConnectX; it is no rail")


def is_connectx(netdev: str) -> bool:
    """True for a physical port of Mellanox' driver; a VLAN, bridge or bond on one has no device of its own."""
    device = NETDEVS / netdev / "device"
    try:
        vendor, driver = (device / "vendor").read_text().strip(), (device / "driver").readlink().name
    except OSError:
        return False
    return vendor == MELLANOX and driver == DRIVER


def is_simulated() -> bool:
    """True on a node of the lab, whose ports are veths. Only root can make the file."""
    try:
        found = LAB.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == 0


# --- the change, and the way back -------------------------------------------------------------------------------------


def state_dir() -> Path:
    """Path of a pending change: one per network namespace, so that simulated nodes do not collide."""
    STATE.mkdir(mode=0o700, exist_ok=True)
    if STATE.stat().st_uid != os.geteuid():
        raise RailsHelperError(f"{STATE} belongs to somebody else")
    path = STATE / str(os.stat("/proc/self/ns/net").st_ino)
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def apply(seconds: float, request: str, backend: Backend) -> dict[str, str]:
    """Make the change; a process that is left behind takes it back after `seconds`."""
    ports = checked(request)
    present(ports)
    return begin(seconds, ports, backend)


def begin(seconds: float, ports: Any, backend: Backend) -> dict[str, str]:
    """Make a checked change; a process that is left behind takes it back after `seconds`."""
    state = state_dir()
    lock = _lock(state, wait=False)
    saved, token = backend.save(ports), secrets.token_hex(16)
    fifo = state / "fifo"
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo, 0o600)
    (state / "outcome").unlink(missing_ok=True)  # that of the change before is no evidence about this one
    (state / "token").write_text(token)
    _leave_behind(fifo, seconds, saved, backend)
    os.close(lock)
    try:
        backend.apply(ports)
    except (RailsHelperError, OSError) as error:
        try:
            answer(token, b"r")
        except (RailsHelperError, OSError) as left:
            raise RailsHelperError(f"{error}; {left}") from error
        raise
    return {"token": token, "backend": backend.name}


def answer(token: str, word: bytes) -> None:
    """Have the process that waits keep (k) or take back (r) the change, and wait until it has. Raises RailsHelperError."""
    state = state_dir()
    pending = _pending(state)
    if not pending or not secrets.compare_digest(pending, token):
        raise RailsHelperError("no such change is pending: it was confirmed, or taken back, before")
    try:
        fifo = os.open(state / "fifo", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        raise RailsHelperError("the change was taken back: its time was over") from None
    os.write(fifo, word)
    os.close(fifo)
    os.close(_lock(state, wait=True))
    try:
        outcome = (state / "outcome").read_text()
    except FileNotFoundError:
        outcome = "the process that waited for the answer was killed"
    if outcome != {b"k": "kept", b"r": "back"}[word]:
        raise RailsHelperError(f"the change was not {'kept' if word == b'k' else 'taken back'}: {outcome}")


def _pending(state: Path) -> str:
    """The token of the change that waits; "" if none does, or its time is over just now."""
    try:
        return (state / "token").read_text()
    except FileNotFoundError:
        return ""


def _lock(state: Path, *, wait: bool) -> int:
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(lock)
        raise RailsHelperError(
            "another change waits for its confirmation; without one it is taken back by itself, 90 s after it began unless"
            " --rollback gave another time"
        ) from None
    return lock


def _leave_behind(fifo: Path, seconds: float, saved: Any, backend: Backend) -> None:
    """Fork the process that waits. It inherits the lock, and outlives the connection that started it."""
    # Before the fork, so that nobody finds it without a reader.
    ready = os.open(fifo, os.O_RDWR | os.O_CLOEXEC)
    if os.fork():
        os.close(ready)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        _wait(ready, fifo.parent, seconds, saved, backend)
    finally:  # with the lock; an error must not go on in the code of the process that it was forked from
        os._exit(0)


def _wait(ready: int, state: Path, seconds: float, saved: Any, backend: Backend) -> None:
    readable, _, _ = select.select([ready], [], [], seconds)
    outcome = "kept"
    if not readable or os.read(ready, 1) != b"k":
        try:
            backend.restore(saved)
            outcome = "back"
        except (RailsHelperError, OSError) as error:
            outcome = str(error)
    (state / "outcome").write_text(outcome)
    (state / "token").unlink(missing_ok=True)


def show(backend: Backend) -> dict[str, Any]:
    """The back-end, this program's own digest and netplan file, and what others configure of a ConnectX."""
    files = sorted(NETPLAN.glob("*.yaml"))[:MOST_PORTS] if backend.name == "netplan" else []
    others = {str(file): named_in(_text(file)) for file in files if file != NETPLAN_FILE}
    table = Firewall().table()[:MOST_FIREWALL_BYTES]
    return {
        "backend": backend.name,
        "version": version(),
        "own": known_lines(_text(NETPLAN_FILE)) if NETPLAN_FILE in files else "",
        "others": {path: netdevs for path, netdevs in others.items() if netdevs},
        "loose": loose_netdevs(SYSCTL_FILE if backend.name == "netplan" else None),
        "firewall": table,
        "nft": bool(shutil.which("nft")),
    }


def _text(file: Path) -> str:
    return file.read_bytes()[:MOST_BYTES].decode(errors="replace")


def named_in(text: str) -> list[str]:
    """The netdevs that rails can be on, and that a netplan file names, or matches by a pattern, a MAC or their driver."""
    netdevs = _rail_netdevs()
    lines = _COMMENT.sub("", text)
    matched = _MATCHED.findall(lines)
    return [name for name in netdevs if _is_named(name, lines, matched)]


def _rail_netdevs() -> list[str]:
    return sorted(path.name for path in NETDEVS.iterdir() if is_connectx(path.name) or is_simulated())


def _is_named(netdev: str, lines: str, matched: list[tuple[str, str]]) -> bool:
    if re.search(rf"(?<![\w.-]){re.escape(netdev)}(?![\w.-])", lines):
        return True
    own = {"name": netdev, "macaddress": _mac(netdev), "driver": DRIVER}
    return any(
        fnmatchcase(own[key], pattern.lower() if key == "macaddress" else pattern) for key, pattern in matched
    )


def _mac(netdev: str) -> str:
    try:
        return (NETDEVS / netdev / "address").read_text().strip().lower()
    except OSError:
        return ""


def known_lines(text: str) -> str:
    """The lines of this program's file that it writes itself; others as a comment without their content."""
    return "".join(
        f"{line}\n" if line == HEADER or _KNOWN.fullmatch(line) else "# (a line of somebody else)\n"
        for line in text.splitlines()
    )


def version() -> str:
    """SHA-256 of this program; "" if it was handed to the interpreter without a file."""
    file = globals().get("__file__")
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def main(words: list[str]) -> int:
    """Carry out the command in `words`. Returns the exit code."""
    try:
        match words:
            case ["apply", seconds] if re.fullmatch(r"[0-9]{1,3}", seconds) and int(seconds) <= LONGEST_S:
                print(json.dumps(apply(int(seconds), sys.stdin.read(MOST_BYTES * 2), backend())))
            case ["firewall", seconds] if re.fullmatch(r"[0-9]{1,3}", seconds) and int(seconds) <= LONGEST_S:
                asked = checked_firewall(sys.stdin.read(MOST_FIREWALL_BYTES))
                require_rails(asked.get("netdevs", []))
                print(json.dumps(begin(int(seconds), asked, Firewall())))
            case ["confirm", token]:
                answer(token, b"k")
            case ["rollback", token]:
                answer(token, b"r")
            case ["show"]:
                print(json.dumps(show(backend())))
            case _:
                raise RailsHelperError(
                    "expected: apply SECONDS, firewall SECONDS, confirm TOKEN, rollback TOKEN, or show"
                )
    except (RailsHelperError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
