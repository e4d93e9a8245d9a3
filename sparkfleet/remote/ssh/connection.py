"""One SSH connection to one node, through its jump hosts. Threads inside, asyncio outside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import paramiko

from sparkfleet.errors import NodeError
from sparkfleet.remote.ssh.config import Hop
from sparkfleet.remote.ssh.host_keys import (
    ALL_KEY_TYPES,
    KEY_TYPES,
    Deadline,
    NoCommonKey,
    greet,
    lost,
    reach,
    silent,
    verify,
)
from sparkfleet.remote.ssh.login import log_in
from sparkfleet.remote.ssh.stream import Receiver, Stream
from sparkfleet.remote.ssh.transport import Transport, in_thread
from sparkfleet.remote.unreachable import HostKeyChanged, Refused

MOST_SESSIONS = 8
"""Concurrent commands. sshd allows 10 sessions per connection (MaxSessions)."""
MOST_KILLS = 2
"""Sessions reserved for killing commands."""
_BETWEEN_S = 0.05
"""Seconds between attempts to open a session while sshd still counts one that has ended."""
MOST_TUNNELS_OPENING = 8


class SshConnection:
    """An open connection. Made by `SshConnection.open`."""

    def __init__(self, hops: Sequence[Hop]) -> None:
        self.name = hops[-1].name
        self.sessions = asyncio.Semaphore(MOST_SESSIONS)
        self.kills = asyncio.Semaphore(MOST_KILLS)
        self.tunnels = asyncio.Semaphore(MOST_TUNNELS_OPENING)
        self._way = _Way(hops)

    @classmethod
    async def open(cls, hops: Sequence[Hop], *, timeout_s: float) -> SshConnection:
        """Connect, verify every host key on the way, and log in.

        Raises:
            Unreachable: see `unreachable.py` for the ways in which that can fail.
        """
        self = cls(hops)
        try:
            async with asyncio.timeout(timeout_s + 1):
                await in_thread("open", lambda: self._way.go(Deadline(timeout_s)))
        except TimeoutError:
            # The name service and the SSH agent have no time-out of their own.
            await self.close()
            raise silent(self.name, "no SSH connection", timeout_s) from None
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def is_open(self) -> bool:
        """True if it can be used, as far as is known."""
        return self._way.is_open

    @property
    def lost(self) -> NodeError:
        """Reason why it can no longer be used."""
        return lost(self.name, self._way.reason)

    async def command(self, line: str, receiver: Receiver, *, timeout_s: float) -> Stream:
        """Begin a command, whose output goes to `receiver`. Raises NodeError."""
        deadline = Deadline(timeout_s)
        while True:
            try:
                return await self._begin(self._way.last.open_session, receiver, line, deadline)
            except NotOpened:
                if deadline.left_s < timeout_s / 2:
                    raise
            await asyncio.sleep(_BETWEEN_S)

    async def tunnel(self, host: str, port: int, receiver: Receiver, *, timeout_s: float) -> Stream:
        """A TCP connection from the node to `host:port`. Raises NodeError."""

        def ask() -> paramiko.Channel:
            return self._way.last.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 0))

        return await self._begin(ask, receiver, None, Deadline(timeout_s))

    async def close(self) -> None:
        """Close it and end its threads. Commands and tunnels that use it end with an error."""
        await in_thread("close", self._way.end)

    async def _begin(
        self,
        ask: Callable[[], paramiko.Channel],
        receiver: Receiver,
        line: str | None,
        deadline: Deadline,
    ) -> Stream:
        """Open a stream; it is closed if the caller was cancelled meanwhile."""
        if not self.is_open:
            raise self.lost
        stream = Stream(self._way.last, receiver)
        try:
            async with asyncio.timeout(deadline.left_s):
                await stream.begin(ask, line)
        except TimeoutError:
            what = "sshd did not start the command" if stream.was_opened else "sshd opened no channel"
            raise silent(self.name, what, deadline.timeout_s) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._not_begun(stream, error) from error
        return stream

    def _not_begun(self, stream: Stream, error: Exception) -> NodeError:
        if not self.is_open:
            return self.lost
        if stream.was_opened:
            return NodeError(f"{self.name}: sshd refused to run a command: {error}")
        # A ChannelException; paramiko raises others if several channels are refused at once.
        return _not_opened(self.name, error)


class _Way:
    """The transports along the hops. Its methods block; `end` may be called from any thread, and ends `go`."""

    def __init__(self, hops: Sequence[Hop]) -> None:
        self._hops = hops
        self._lock = threading.Lock()
        self._transports: list[Transport] = []
        self._ended = False

    @property
    def last(self) -> Transport:
        """The transport to the node itself."""
        return self._transports[-1]

    @property
    def is_open(self) -> bool:
        return len(self._transports) == len(self._hops) and all(t.is_active() for t in self._transports)

    @property
    def reason(self) -> Exception | None:
        """Error that ended the first transport that is no longer active."""
        for transport in self._transports:
            if not transport.is_active():
                return transport.reason
        return None

    def go(self, deadline: Deadline) -> None:
        for hop in self._hops:
            transport = self._greet(hop, deadline)
            log_in(transport, hop, deadline)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            transports = list(reversed(self._transports))
        for transport in transports:
            transport.end()

    def _greet(self, hop: Hop, deadline: Deadline) -> Transport:
        """A transport to a server whose host key is pinned."""
        before = self._transports[-1] if self._transports else None
        try:
            return self._verified(hop, before, deadline, ALL_KEY_TYPES)
        except HostKeyChanged as changed:
            for family in KEY_TYPES[1:]:
                try:
                    return self._verified(hop, before, deadline, family)
                except (HostKeyChanged, NoCommonKey):
                    continue
            raise changed

    def _verified(
        self, hop: Hop, before: Transport | None, deadline: Deadline, key_types: Sequence[str]
    ) -> Transport:
        sock = (
            reach(hop.host, hop.port, hop.name, deadline)
            if before is None
            else _through(before, hop, deadline)
        )
        transport = greet(sock, hop.name, deadline, key_types)
        try:
            verify(transport, hop.name, hop.pins)
            with self._lock:
                if self._ended:
                    raise lost(hop.name, None)
                self._transports.append(transport)
        except BaseException:
            transport.end()
            raise
        return transport


def _through(before: Transport, hop: Hop, deadline: Deadline) -> paramiko.Channel:
    to = (hop.host, hop.port)
    try:
        channel = before.open_channel("direct-tcpip", to, ("127.0.0.1", 0), timeout=deadline.left_s)
        before.packets.forget(channel)  # the next transport's: paramiko serves it
        return channel
    except paramiko.ChannelException as error:
        raise Refused(
            f"{hop.name}: the jump host cannot reach {hop.host} port {hop.port}: {error}",
            do="On the jump host, check that this address is reachable and that sshd has `AllowTcpForwarding yes`.",
        ) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        if before.is_active():
            raise silent(hop.name, "no answer through the jump host", deadline.timeout_s) from error
        raise lost(hop.name, error) from error


class NotOpened(NodeError):
    """sshd refused a channel."""


class NotConnected(NotOpened):
    """sshd could not connect to the port of a tunnel: mostly nothing listens there."""


_CONNECT_FAILED = 2
"""Reason of a channel that was not opened (RFC 4254, 5.1)."""


def _not_opened(name: str, error: Exception) -> NotOpened:
    kind, reason = NotOpened, str(error)
    if isinstance(error, paramiko.ChannelException):
        kind, reason = (NotConnected if error.code == _CONNECT_FAILED else NotOpened), error.text
    return kind(
        f"{name}: sshd opened no channel: {reason}",
        means="Too many sessions in one connection, nothing listens on the port, or forwarding is forbidden.",
        do=f"Set `MaxSessions {MOST_SESSIONS + MOST_KILLS}` (OpenSSH's default) or more and"
        " `AllowTcpForwarding yes` in the node's /etc/ssh/sshd_config.",
    )
