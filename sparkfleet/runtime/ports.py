"""TCP ports of this node: a free one for an engine that binds it seconds later, and those that are in use."""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

from sparkfleet.errors import NodeError

_LOWEST = 20_000
"""First port, above the range of Ray's workers (10002 to 19999)."""
_TRIES = 64
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""The second one also has IPv4 connections to a listener on `::`; without IPv6 there is none."""
_ESTABLISHED = "01"


def free_port(host: str = "127.0.0.1") -> int:
    """A free TCP port of `host`.

    It is below the kernel's ephemeral range if there is room: an engine binds its port up to half a minute after this
    choice, and until then no outgoing connection can get it.

    Raises:
        NodeError: `host` is not an address of this node, or every port is taken.
    """
    candidates = range(_LOWEST, _ephemeral_start())
    for port in random.sample(candidates, min(_TRIES, len(candidates))):
        if _bound(host, port) is not None:
            return port
    if (any_port := _bound(host, 0)) is not None:
        return any_port
    raise NodeError(f"no free TCP port on {host}", do="list the programs that hold them: ss -ltnp")


def is_taken(port: int, host: str = "127.0.0.1") -> bool:
    """True if a program listens on this port of `host`, or of every address. Connections that wait for their end
    (TIME_WAIT) do not count."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def connections(port: int) -> int:
    """TCP connections that are open to this port of the node, by whichever of its addresses or names."""
    tables = (path.read_text() for path in _TABLES if path.exists())
    rows = (line.split() for table in tables for line in table.splitlines())
    return sum(row[3] == _ESTABLISHED and row[1].endswith(f":{port:04X}") for row in rows)


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _LOWEST


def _bound(host: str, port: int) -> int | None:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.bind(address)
            return int(probe.getsockname()[1])
    except socket.gaierror as error:
        raise NodeError(f"{host} is not an address: {error}") from error
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise NodeError(f"{host} is not an address of this node") from error
        return None
