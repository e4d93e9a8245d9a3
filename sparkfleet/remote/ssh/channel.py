"""Channel to a node over SSH."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from sparkfleet.errors import NodeError
from sparkfleet.remote.bounded_output import OUTPUT_BYTES
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.ssh.command import ANSWER_S, Command
from sparkfleet.remote.ssh.config import Hop
from sparkfleet.remote.ssh.connection import SshConnection
from sparkfleet.remote.ssh.forward import forwarding
from sparkfleet.remote.ssh.host_keys import silent
from sparkfleet.remote.ssh.stream import Stream
from sparkfleet.remote.unreachable import ConnectionLost, Suspected
from sparkfleet.specs.fields import quote

_log = logging.getLogger(__name__)

CONNECT_S = 15.0
"""Seconds for name resolution, TCP, key exchange and login together, jump hosts included."""
FILE_S = 60.0
"""Seconds for reading or writing a file."""
_KILL_S = 5.0
"""Seconds for a node to kill a command; after them the connection is closed."""

_READ = """
[ -p "$1" ] && exit 0  # a FIFO is empty, not endless
exec <"$1" || exit 1
[ "$2" = 1 ] && exec head -c "$3"
tail -c "+$2" | head -c "$3"
"""
_WRITE = """
set -eC; umask 077
case "$1" in */*) dir="${1%/*}"; dir="${dir:-/}";; *) dir=.;; esac
[ -d "$dir" ] || mkdir -p "$dir"
beside="$dir/$2"
trap 'rm -f "$beside"' EXIT
head -c "$3" >"$beside"
[ "$(wc -c <"$beside")" -eq "$3" ] || { echo "it did not arrive whole" >&2; exit 1; }
chmod "$4" "$beside"
sync "$beside"
mv -fT "$beside" "$1"
"""


class SshChannel:
    """Runs commands over one connection that is opened when it is first needed, and again, once, after a loss.

    Belongs to the event loop that first uses it.

    Args:
        hops: the way to it; the last is the node. See `SshConfig.route`.
        connect_s: seconds until an attempt to connect fails with `Suspected`.
    """

    def __init__(self, node: str, hops: Sequence[Hop], *, connect_s: float = CONNECT_S) -> None:
        self.node = node
        self.unreached: NodeError | None = None
        self._hops = tuple(hops)
        self._connect_s = connect_s
        self._connection: SshConnection | None = None
        self._opening: asyncio.Task[SshConnection] | None = None
        self._flights: set[_Flight] = set()
        self._closed = False

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """See `Channel.run`. Keeps the first 8 MiB of stdout and of stderr; bytes that are not UTF-8 are replaced.

        Values of `env` are sent on stdin, so that no process list shows them. `timeout_s` includes the wait for one of
        the connection's sessions.
        """
        command = Command(argv, env, on_output=on_output)
        exit_code = await self._execute(command, stdin, timeout_s)
        return Completed(
            argv=tuple(argv),
            exit_code=exit_code,
            stdout=command.stdout.text(),
            stderr=command.stderr.text(),
        )

    async def read(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """See `Channel.read`. One command."""
        if offset < 0 or limit < 0:
            raise NodeError(f"{path} cannot be read on {self.node}: neither offset nor limit can be negative")
        argv = ("/bin/sh", "-c", _READ, "read", path, str(offset + 1), str(limit))
        command = await self._file("read", path, argv, b"", limit)
        return command.stdout.content

    async def write(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """See `Channel.write`. One command. Raises NodeError if the file cannot be written."""
        beside = f".sparkfleet.{secrets.token_hex(4)}"
        argv = ("/bin/sh", "-c", _WRITE, "write", path, beside, str(len(content)), f"{mode:o}")
        await self._file("written", path, argv, content, OUTPUT_BYTES)

    def forward(self, host: str, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        """See `Channel.forward`. Any number of TCP connections share the SSH connection."""
        return forwarding(self._connected, host, port)

    async def close(self) -> None:
        """See `Channel.close`. The channel cannot be used again."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        flights = tuple(self._flights)
        for flight in flights:
            flight.command.fail(self._gone())
        await asyncio.gather(*(flight.landed.wait() for flight in flights))
        if self._connection is not None:
            await self._connection.close()

    async def _file(self, done: str, path: str, argv: Sequence[str], stdin: bytes, limit: int) -> Command:
        problem = (
            f"{quote(path)} cannot be {done} on {self.node}"
            if "\0" in path
            else f"{path} cannot be {done} on {self.node}"
        )
        if "\0" in path:
            raise NodeError(f"{problem}: embedded null byte")
        command = Command(argv, limit=limit)
        if await self._execute(command, stdin, FILE_S) != 0:
            reason = command.stderr.text().strip()[-400:] or "no reason given"
            raise NodeError(f"{problem}: {reason}")
        return command

    async def _execute(self, command: Command, stdin: bytes, timeout_s: float) -> int:
        """The exit code. Raises NodeError."""
        flight = _Flight(command)
        self._flights.add(flight)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._follow(flight, stdin)
        except TimeoutError:
            raise self._late(flight, timeout_s) from None
        finally:
            self._flights.discard(flight)
            flight.landed.set()

    async def _follow(self, flight: _Flight, stdin: bytes) -> int:
        command = flight.command
        connection, stream = await self._begin(flight)
        try:
            stream.send(command.script + stdin)
            stream.finish()
            return await command.finished(connection)
        finally:
            # Shielded: a second cancellation must not leave the command running on the node.
            await asyncio.shield(self._end(connection, stream, flight))

    async def _begin(self, flight: _Flight) -> tuple[SshConnection, Stream]:
        """A session that runs the command. A connection that proves to be lost is replaced, once."""
        try:
            return await self._begin_on(await self._session(flight), flight)
        except ConnectionLost:
            return await self._begin_on(await self._session(flight), flight)

    async def _session(self, flight: _Flight) -> SshConnection:
        flight.waits_for = "no SSH connection"
        connection = await self._connected()
        flight.waits_for = "the connection had no free session"
        await connection.sessions.acquire()
        flight.waits_for = "sshd did not start the command"
        return connection

    @staticmethod
    async def _begin_on(connection: SshConnection, flight: _Flight) -> tuple[SshConnection, Stream]:
        command = flight.command
        try:
            return connection, await connection.command(command.line, command, timeout_s=ANSWER_S)
        except BaseException:
            connection.sessions.release()
            raise

    async def _connected(self) -> SshConnection:
        """The connection, opened if there is none. Concurrent callers share one attempt and its error."""
        if self._closed:
            raise self._gone()
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(self._connection))
            self._opening.add_done_callback(self._opened)
        try:
            return await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            if self._closed:
                raise self._gone() from None
            raise

    async def _open(self, before: SshConnection | None) -> SshConnection:
        if before is not None:
            _log.warning("%s. Opening a new one.", before.lost.what)
            await before.close()
        return await SshConnection.open(self._hops, timeout_s=self._connect_s)

    def _opened(self, opening: asyncio.Task[SshConnection]) -> None:
        self._opening = None
        if opening.cancelled():
            return
        error = opening.exception()
        if error is None:
            self._connection = opening.result()
            self.unreached = None
        elif self._connection is None and isinstance(error, NodeError):
            self.unreached = error

    async def _end(self, connection: SshConnection, stream: Stream, flight: _Flight) -> None:
        """Release the session, and kill a command that has not ended."""
        try:
            if not flight.command.is_ended and connection.is_open:
                await self._kill(connection, flight)
        finally:
            stream.close()
            connection.sessions.release()

    async def _kill(self, connection: SshConnection, flight: _Flight) -> None:
        try:
            async with asyncio.timeout(_KILL_S):
                await flight.command.kill(connection)
        except (TimeoutError, NodeError):
            flight.trouble = (
                "The node no longer answers: it is busy or down. The command may still run there."
            )
            await connection.close()
            return
        try:
            async with asyncio.timeout(_KILL_S):
                await flight.command.ended()
        except TimeoutError:
            flight.trouble = (
                "It got SIGKILL and has not ended: it hangs in the kernel, or runs as another user."
            )

    def _late(self, flight: _Flight, timeout_s: float) -> NodeError:
        if not flight.command.has_begun:
            return silent(self._hops[-1].name, flight.waits_for, timeout_s)
        what = f"{flight.command.program} did not end within {timeout_s:g} s"
        if flight.trouble:
            return Suspected(
                f"{what} on {self.node}",
                means=flight.trouble,
                do=f"On the node: `ps -ef | grep {flight.command.program}`.",
            )
        return NodeError(what, means="It was killed, with its process group.")

    def _gone(self) -> NodeError:
        return NodeError(f"{self.node}: the channel was closed")


@dataclass(eq=False)
class _Flight:
    """A command in progress."""

    command: Command
    landed: asyncio.Event = field(default_factory=asyncio.Event)
    waits_for: str = ""
    trouble: str = ""
