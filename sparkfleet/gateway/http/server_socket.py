"""Listening sockets of the gateway and its entries, and the connections that they hold."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections import Counter

from sparkfleet.errors import ControlError

CONNECTIONS = 4096
"""Connections of one server, if the process may have as many files: a request needs two."""
ADDRESS_SHARE = 0.5
"""Share of the connections that one address may have: to open them it needs no API key."""
_SPARE_FILES = 200
BACKLOG = 2048
_NO_FILES = (errno.EMFILE, errno.ENFILE)
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""TCP keepalive that notices a vanished client (a closed laptop) after 60 s."""

STALLED_MS = 60_000
"""Time after which the kernel ends a connection whose client takes nothing of what was sent to it: also one that is closing,
which nothing else would end as long as that client's kernel answers."""


class Connections:
    """Connections of one server, counted by address. `most`: connections that it holds."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: Counter[str] = Counter()

    def begin(self, address: str) -> bool:
        """Counts a connection. False if the server is full, or has `ADDRESS_SHARE` of its connections from there."""
        self._of[address] += 1
        return self._of.total() <= self._most and self._of[address] <= max(1, self._most * ADDRESS_SHARE)

    def end(self, address: str) -> None:
        """Counts its end."""
        self._of[address] -= 1
        if not self._of[address]:
            del self._of[address]


def connection_limit() -> int:
    """Connections that this process has files for. Its own limit, often 1,024, is raised as far as it may be."""
    wanted = 2 * CONNECTIONS + _SPARE_FILES
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < wanted:
        files = wanted if hard < 0 else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return CONNECTIONS if files < 0 else max(1, min(CONNECTIONS, (files - _SPARE_FILES) // 2))


def files_ran_out(error: OSError) -> bool:
    """True if the cause of an error is that this process, or the machine, may open no further file."""
    if isinstance(
        error, socket.gaierror
    ):  # a look-up of a name that could open nothing is one of an unknown name
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as cause:
            return cause.errno in _NO_FILES
        return False
    return error.errno in _NO_FILES


def listening_socket(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    """A socket at an address of this machine, for connections of clients.

    Args:
        host: the address, IPv4 or IPv6.
        port: 0 takes any free one.
        reuse_port: let other processes of this user listen on the same port; the kernel spreads connections.

    Raises:
        ControlError: the address cannot be bound.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted connections inherit these. Without Nagle every token leaves at once.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
        watch_peer(listener, _KEEPALIVE)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ControlError(
            f"The gateway cannot listen on {host} port {port}: {error.strerror}.",
            do="Choose another port, or stop the program that listens there (`ss -ltnp` lists it).",
        ) from error
    listener.setblocking(False)
    return listener


def watch_peer(connection: socket.socket, settings: tuple[tuple[str, int], ...]) -> None:
    """Sets TCP keepalive, so that the kernel notices a vanished peer. `settings` in s, s, and probes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in settings:
        option = getattr(socket, name, None)  # Linux has all of them
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
