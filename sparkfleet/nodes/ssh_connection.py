"""One SSH connection to one node, through its jump hosts. Threads inside, asyncio outside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import paramiko

from sparkfleet.errors import NodeError
from sparkfleet.nodes.host_keys import (
    ALL_KEY_TYPES,
    KEY_TYPES,
    Deadline,
    NoCommonKey,
    Transport,
    greet,
    lost,
    reach,
    silent,
    verify,
)
from sparkfleet.nodes.ssh_config import Hop
from sparkfleet.nodes.ssh_login import log_in
from sparkfleet.nodes.ssh_stream import Receiver, Stream
from sparkfleet.nodes.unreachable import HostKeyChanged, Refused

T = TypeVar("T")

MOST_SESSIONS = 8
"""Commands at a time. sshd allows 10 sessions to a connection (MaxSessions)."""
MOST_KILLS = 2
"""Killing a command takes a session, too."""
_BETWEEN_S = 0.05
"""Between two attempts to open a session, where sshd has not yet forgotten one that has ended."""
MOST_TUNNELS_OPENING = 8
_MOVERS = 4
"""Threads that move bytes. They do not wait for the other side, so a few serve any number of streams."""
_OPENERS = MOST_SESSIONS + MOST_KILLS + MOST_TUNNELS_OPENING
"""Threads that wait for the other side to open a channel. Started as they are needed."""


class Connection:
    """An open connection. Made by `Connection.open`."""

    def __init__(self, hops: Sequence[Hop]) -> None:
        self.name = hops[-1].name
        self.sessions = asyncio.Semaphore(MOST_SESSIONS)
        self.kills = asyncio.Semaphore(MOST_KILLS)
        self.tunnels = asyncio.Semaphore(MOST_TUNNELS_OPENING)
        self._way = _Way(hops)
        self._loop = asyncio.get_running_loop()
        self._openers = ThreadPoolExecutor(_OPENERS, "sparkfleet-ssh-open")
        self._movers = ThreadPoolExecutor(_MOVERS, "sparkfleet-ssh-move")

    @classmethod
    async def open(cls, hops: Sequence[Hop], *, timeout_s: float) -> Connection:
        """Connect, verify every host key on the way, and log in.

        Raises:
            Unreachable: see `unreachable.py` for the ways in which that can fail.
        """
        self = cls(hops)
        try:
            async with asyncio.timeout(timeout_s + 1):
                await self._in_thread(self._way.go, Deadline(timeout_s))
        except TimeoutError:
            # What has no time-out of its own: the name service, the SSH agent.
            await self.close()
            raise silent(self.name, "no connection was made", timeout_s) from None
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def is_open(self) -> bool:
        """Whether it can be used, as far as is known."""
        return self._way.is_open

    @property
    def lost(self) -> NodeError:
        """Why it can no longer be used."""
        return lost(self.name, self._way.reason)

    async def command(self, line: str, receiver: Receiver, *, timeout_s: float) -> Stream:
        """Begin a command, whose output goes to `receiver`. Raises NodeError."""
        deadline = Deadline(timeout_s)
        stream = await self._session(receiver, deadline)
        try:
            async with asyncio.timeout(deadline.left_s):
                await self._in_thread(self._execute, stream.channel, line)
        except TimeoutError:
            self.let_go(stream)
            raise silent(self.name, "the command was not taken", timeout_s) from None
        except BaseException:
            self.let_go(stream)
            raise
        return stream

    async def _session(self, receiver: Receiver, deadline: Deadline) -> Stream:
        def begin() -> Stream:
            left_s = deadline.left_s
            return self._stream(lambda: self._way.last.open_session(timeout=left_s), receiver, left_s)

        while True:
            try:
                return await self._opened(begin)
            except NotOpened:
                if deadline.left_s < deadline.timeout_s / 2:
                    raise
            await asyncio.sleep(_BETWEEN_S)

    async def tunnel(self, host: str, port: int, receiver: Receiver, *, timeout_s: float) -> Stream:
        """A TCP connection from the node to `host:port`. Raises NodeError."""

        def ask() -> paramiko.Channel:
            there, here = (host, port), ("127.0.0.1", 0)
            return self._way.last.open_channel("direct-tcpip", there, here, timeout=timeout_s)

        return await self._opened(lambda: self._stream(ask, receiver, timeout_s))

    def let_go(self, stream: Stream) -> None:
        """Close a stream, from the event loop, without waiting for it."""
        stream.close()

    async def close(self) -> None:
        """Close it and end its threads. Whatever uses it ends with an error."""
        closing = threading.Thread(target=self._way.end, name="sparkfleet-ssh-close", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join)
        self._openers.shutdown(wait=False, cancel_futures=True)
        self._movers.shutdown(wait=False)

    def _stream(self, ask: Callable[[], paramiko.Channel], receiver: Receiver, timeout_s: float) -> Stream:
        try:
            stream = Stream(ask(), self._movers, receiver)
            stream.attach(self._loop)
            return stream
        except (paramiko.SSHException, OSError, EOFError) as error:
            if not self.is_open:
                raise self.lost from error
            if str(error).startswith("Timeout"):
                raise silent(self.name, "no channel was opened", timeout_s) from error
            # A ChannelException; or, where several are refused at once, what paramiko leaves of it.
            raise _not_opened(self.name, error) from error

    def _execute(self, channel: paramiko.Channel, line: str) -> None:
        try:
            channel.exec_command(line)
        except (paramiko.SSHException, OSError, EOFError) as error:
            if not self.is_open:
                raise self.lost from error
            raise NodeError(f"{self.name}: sshd refused to run a command: {error}") from error

    async def _opened(self, begin: Callable[[], Stream]) -> Stream:
        """A stream; where nobody waits for it any more when it is there, it is closed."""
        opening = asyncio.ensure_future(self._in_thread(begin))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._unwanted)
            raise

    def _unwanted(self, opening: asyncio.Future[Stream]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self.let_go(opening.result())

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        try:
            return await self._loop.run_in_executor(self._openers, work, *args)
        except RuntimeError as error:  # the pool is shut down
            raise self.lost from error


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
        """What ended the first transport that is no longer active."""
        for transport in self._transports:
            if not transport.is_active():
                return transport.get_exception()
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
    try:
        return before.open_channel(
            "direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), timeout=deadline.left_s
        )
    except paramiko.ChannelException as error:
        raise Refused(
            f"{hop.name}: the jump host does not reach {hop.host} port {hop.port}: {error}",
            do="Check the address as the jump host sees it, and that it allows TCP forwarding.",
        ) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        if before.is_active():
            raise silent(hop.name, "no answer through the jump host", deadline.timeout_s) from error
        raise lost(hop.name, error) from error


class NotOpened(NodeError):
    """sshd refused a channel."""


def _not_opened(name: str, error: Exception) -> NotOpened:
    reason = error.text if isinstance(error, paramiko.ChannelException) else error
    return NotOpened(
        f"{name}: sshd opened no channel: {reason}",
        means="Too many sessions in one connection, a port that nothing listens on, or forwarding is not allowed.",
        do=f"sparkfleet needs `MaxSessions` {MOST_SESSIONS + MOST_KILLS} (OpenSSH's default is 10) and"
        " `AllowTcpForwarding yes` in /etc/ssh/sshd_config.",
    )
