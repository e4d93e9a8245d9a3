"""Reads an SSH server's host key without logging in, and compares it with the pinned one.

A server has several host keys, and the client's order of preference decides which one it shows. Reading for a pin and
connecting later use the same order, so the key that is pinned is the key that is negotiated. Where somebody pinned
another of the server's keys, the others are asked for before the server is called another machine.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Collection, Sequence

import paramiko

from sparkfleet.errors import NodeError
from sparkfleet.remote.ssh.transport import Transport, in_thread
from sparkfleet.remote.unreachable import ConnectionLost, HostKeyChanged, Refused, Suspected, UnknownHost
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
"""How long sent bytes may stay unacknowledged before the kernel gives the connection up (TCP_USER_TIMEOUT)."""


class HostKey(Value):
    """A server's host key. `fingerprint` is what inventories pin, and what `ssh-keygen -lf` prints."""

    type: str
    fingerprint: str


class Deadline:
    """A moment by which something must have happened.

    Args:
        timeout_s: seconds from now.
    """

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
    """The host key that a server shows, without logging in. It proves nothing: show it to a person before pinning it.

    Raises:
        Unreachable: nothing answers there, or no SSH server does.
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
    """The host key that the other side has shown."""
    key = transport.get_remote_server_key()
    return HostKey(type=key.get_name(), fingerprint=key.fingerprint)


def reach(host: str, port: int, name: str, deadline: Deadline) -> socket.socket:
    """A TCP connection. `name` is what messages call the other side.

    Raises:
        Unreachable: there is none to be had.
    """
    there = f"{host} port {port}"
    who = "" if name == there else f"{name}: "
    try:
        sock = socket.create_connection((host, port), timeout=deadline.left_s)
    except socket.gaierror as error:
        raise UnknownHost(
            f"{who}the host name {host} leads to no address ({error.strerror})",
            do="Correct `address` in the inventory, or the name service.",
        ) from error
    except UnicodeError as error:
        raise UnknownHost(f"{who}{host[:80]!r} is no host name") from error
    except TimeoutError as error:
        raise silent(name, f"no answer from {there}" if who else "no answer", deadline.timeout_s) from error
    except OSError as error:
        raise Refused(
            f"{who}{there} cannot be reached: {error.strerror or error}",
            means="The machine or its network answered, and no SSH server is to be had there.",
            do="Check that it is on, that `address` and `port` are right, and that sshd runs.",
        ) from error
    _tune(sock)
    return sock


def silent(name: str, what: str, timeout_s: float) -> Suspected:
    """The error for what did not answer in time."""
    return Suspected(
        f"{name}: {what} within {timeout_s:g} s",
        means="It is suspected, not known, to be down: it may be busy, or packets are dropped on the way.",
        do="Try again. If it stays so, look at the machine's power, its network, and firewalls between.",
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
    """Agree on keys with the server at the other end of `sock`, which is closed when that fails.

    Raises:
        Unreachable: it says nothing, or ends the connection.
        NoCommonKey: it has no host key of `key_types`, or nothing else in common with us.
    """
    transport = Transport(sock, key_types)
    # Ours is the shorter: it says what happened.
    transport.banner_timeout = transport.handshake_timeout = deadline.left_s + 5
    agreed = threading.Event()
    try:
        transport.start_client(event=agreed)
        if not agreed.wait(deadline.left_s):
            raise silent(name, "the connection was accepted, but no SSH server spoke", deadline.timeout_s)
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
        f"{name}: the SSH server ended the connection before it began: {error or 'no reason given'}",
        means="It is no SSH server, or it turns callers away: MaxStartups, fail2ban, or an access rule.",
        do="Look at the node: `journalctl -u ssh`.",
    )


def verify(transport: paramiko.Transport, name: str, pins: Collection[str]) -> None:
    """Accept only a server whose host key is pinned.

    Raises:
        HostKeyChanged: it is not.
    """
    key = shown(transport)
    if key.fingerprint in pins:
        return
    raise HostKeyChanged(
        f"{name}: its SSH host key is {key.fingerprint} ({key.type}), pinned is {' or '.join(sorted(pins))}",
        means="Its system was installed anew, another machine has its address, or somebody is in between."
        " Nothing was sent to it.",
        do="Compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the node's own console."
        " If that is the key shown here, run `sparkfleet init` again to pin it.",
    )


def lost(name: str, error: Exception | None) -> ConnectionLost:
    """The error for a connection that ended in use."""
    reason = str(error).strip() if error is not None else ""
    return ConnectionLost(
        f"{name}: the SSH connection was lost{': ' + reason if reason else ''}",
        means="The node went down, its network did, or sshd was stopped. What ran there may still run.",
        do="Try again: the connection is opened anew.",
    )
