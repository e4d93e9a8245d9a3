"""Reads an SSH server's host key without logging in, and compares it with the pinned one.

A server has several host keys, and the client's order of preference decides which one it presents. Reading for a pin and
connecting later use the same order, so the pinned key is the negotiated one. If another of the server's keys was pinned,
the connection tries the other key types before it reports a changed host key.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Collection, Sequence

import paramiko

from sparkfleet.errors import NodeError
from sparkfleet.remote.ssh.transport import Transport, in_thread
from sparkfleet.remote.unreachable import ConnectionLost, HostKeyChanged, Refused, Suspected, UnknownHost
from sparkfleet.specs.fields import quote
from sparkfleet.values import Value

KEY_TYPES: tuple[tuple[str, ...], ...] = (
    ("ssh-ed25519",),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    ("rsa-sha2-512", "rsa-sha2-256"),
)
"""Families of host keys, the preferred one first."""
ALL_KEY_TYPES = tuple(name for family in KEY_TYPES for name in family)

_KEEPALIVE_S = 15
_GONE_S = 45
"""Seconds for which sent bytes may stay unacknowledged before the kernel ends the connection (TCP_USER_TIMEOUT)."""


_RENAMED = "mDNS may rename a Spark (NAME-2.local) while its rails have no addresses: its IP address stays."
"""NVIDIA/dgx-spark-playbooks#56: NetworkManager tries DHCP on them for ever, and avahi sees conflicts with itself."""


class HostKey(Value):
    """A server's host key. Inventories pin `fingerprint`, and `ssh-keygen -lf` prints it."""

    type: str
    fingerprint: str


class Deadline:
    """Time limit of one operation, shared by its steps."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds that are left, never 0: that would mean 'do not wait' to a socket."""
        return max(self._end - time.monotonic(), 0.001)

    @property
    def is_over(self) -> bool:
        """True if it has passed."""
        return time.monotonic() >= self._end


async def fingerprint(address: str, port: int = 22, *, timeout_s: float = 10.0) -> HostKey:
    """The host key that a server presents, without login. It is unverified: a person compares it before it is pinned.

    Raises:
        Unreachable: nothing answers at the address, or something that is not an SSH server.
    """
    deadline = Deadline(timeout_s)
    return await in_thread("host-key", lambda: _read(address, port, deadline))


def _read(address: str, port: int, deadline: Deadline) -> HostKey:
    where = f"{address} port {port}"
    transport = greet(reach(address, port, where, deadline), where, deadline)
    try:
        return shown(transport)
    finally:
        transport.end()


def shown(transport: paramiko.Transport) -> HostKey:
    """The host key that the server has presented."""
    key = transport.get_remote_server_key()
    return HostKey(type=key.get_name(), fingerprint=key.fingerprint)


_NOT_THERE = frozenset({errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH})
"""No answer on the last network before the machine, or no route to that network: nothing is known of its sshd."""
_NO_MACHINE = (
    "No machine answers at this address: it is off, it boots, its network cable is out, or it has another address.",
    "Switch it on or wait until it has booted; else check its cable, and `address` in the inventory.",
)
_NO_SSHD = (
    "The machine or a router rejected the connection: nothing accepts SSH at this address and port.",
    "Check `address` and `port` in the inventory, and sshd on the node: `systemctl status ssh`.",
)


def reach(host: str, port: int, name: str, deadline: Deadline) -> socket.socket:
    """A TCP connection. `name` is the other side's name in messages. Raises Unreachable if the connection cannot be made."""
    there = f"{host} port {port}"
    prefix = "" if name == there else f"{name}: "
    try:
        sock = socket.create_connection((host, port), timeout=deadline.left_s)
    except socket.gaierror as error:
        raise UnknownHost(
            f"{prefix}the host name {host} cannot be resolved ({error.strerror})",
            means=_RENAMED if host.endswith(".local") else "",
            do=f"Correct `address` in the inventory, or DNS and /etc/hosts: `getent hosts {host}` must find it.",
        ) from error
    except UnicodeError as error:
        raise UnknownHost(f"{prefix}{quote(host)} is not a valid host name") from error
    except TimeoutError as error:
        raise silent(
            name, f"no answer from {there}" if prefix else "no answer", deadline.timeout_s
        ) from error
    except OSError as error:
        means, do = _NO_MACHINE if error.errno in _NOT_THERE else _NO_SSHD
        what = f"{prefix}{there} cannot be reached: {error.strerror or error}"
        raise Refused(what, means=means, do=do) from error
    _tune(sock)
    return sock


def silent(name: str, what: str, timeout_s: float) -> Suspected:
    """The error for an operation without an answer in time."""
    return Suspected(
        f"{name}: {what} within {timeout_s:g} s",
        means="The node may be down, busy, or behind a firewall that drops packets.",
        do="Try again. If it persists, check the node's power, its network and the firewalls on the way.",
    )


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_S),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", _GONE_S * 1000),
    ):
        if hasattr(socket, option):  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def greet(
    sock: socket.socket | paramiko.Channel,
    name: str,
    deadline: Deadline,
    key_types: Sequence[str] = ALL_KEY_TYPES,
) -> Transport:
    """Negotiate keys with the server at the other end of `sock`; closes `sock` if that fails.

    Raises:
        Unreachable: the server does not answer, or ends the connection.
        NoCommonKey: the server has no host key of `key_types`, or supports none of our algorithms.
    """
    transport = Transport(sock, key_types)
    # Our own time limit is shorter, so its error is raised, which is clearer.
    transport.banner_timeout = transport.handshake_timeout = deadline.left_s + 5
    agreed = threading.Event()
    try:
        transport.start_client(event=agreed)
        if not agreed.wait(deadline.left_s):
            raise silent(name, "connected, but no answer from an SSH server", deadline.timeout_s)
        if not transport.is_active():
            raise _not_agreed(name, transport.get_exception())
    except BaseException:
        transport.end()
        raise
    transport.set_keepalive(_KEEPALIVE_S)
    return transport


class NoCommonKey(NodeError):
    """The server and we have no algorithm in common."""


def _not_agreed(name: str, error: Exception | None) -> NodeError:
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return NoCommonKey(
            f"{name}: its SSH server and sparkfleet have no algorithm in common: {error}",
            do="Give it an ed25519 host key (`ssh-keygen -A`), or update its OpenSSH.",
        )
    return Refused(
        f"{name}: the server closed the connection before the SSH handshake: {error or 'no reason given'}",
        means="It is not an SSH server, or it rejects this client: MaxStartups, fail2ban or an access rule.",
        do="Read sshd's log on the node: `journalctl -u ssh`.",
    )


def verify(transport: paramiko.Transport, name: str, pins: Collection[str]) -> None:
    """Accept only a server whose host key is pinned. Raises HostKeyChanged if its host key is not pinned."""
    key = shown(transport)
    if key.fingerprint in pins:
        return
    raise HostKeyChanged(
        f"{name}: its SSH host key is {key.fingerprint} ({key.type}), but {' or '.join(sorted(pins))} is pinned",
        means="The node was reinstalled, another machine has its address, or the connection is intercepted."
        " Nothing was sent.",
        do="On the node's own console: `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`."
        " If it prints the key shown here, pin it: `sparkfleet init`.",
    )


def lost(name: str, error: Exception | None) -> ConnectionLost:
    """The error for a connection that ended in use."""
    reason = str(error).strip() if error is not None else ""
    return ConnectionLost(
        f"{name}: the SSH connection was lost{': ' + reason if reason else ''}",
        means="The node or its network went down, or sshd was stopped. Commands on the node may still run.",
        do="Try again: the next command opens a new connection.",
    )
