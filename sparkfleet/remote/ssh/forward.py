"""Forwards a port of this machine's loopback to a node, through the open SSH connection."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

from sparkfleet.errors import NodeError
from sparkfleet.remote.ssh.connection import NotConnected, SshConnection
from sparkfleet.remote.ssh.stream import Stream

_log = logging.getLogger(__name__)

_OPEN_S = 15.0
"""Seconds for the node to connect to the port."""
_WAITING_BYTES = 1 << 20
"""Bytes that may wait to be sent, in either direction; above that the sender is paused."""


@asynccontextmanager
async def forwarding(
    connected: Callable[[], Awaitable[SshConnection]], host: str, port: int
) -> AsyncIterator[tuple[str, int]]:
    """See `Channel.forward`. Raises NodeError if the node cannot be reached now."""
    await connected()
    tunnels: set[_Tunnel] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Tunnel(connected, (host, port), tunnels), "127.0.0.1", 0)
    address, listening = server.sockets[0].getsockname()[:2]
    try:
        yield address, listening
    finally:
        server.close()
        for tunnel in tuple(tunnels):
            tunnel.abort()
        await asyncio.gather(*(tunnel.gone.wait() for tunnel in tuple(tunnels)))


class _Tunnel(asyncio.Protocol):
    """One forwarded TCP connection between a local client and the node's port. See also `Receiver`."""

    def __init__(
        self,
        connected: Callable[[], Awaitable[SshConnection]],
        to: tuple[str, int],
        tunnels: set[_Tunnel],
    ) -> None:
        self.gone = asyncio.Event()
        self._connected = connected
        self._to = to
        self._tunnels = tunnels
        self._stream: Stream | None = None
        self._is_shut = self._is_remote_shut = self._is_local_shut = False

    # Events of the local client.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._local = cast(asyncio.Transport, transport)
        self._local.set_write_buffer_limits(_WAITING_BYTES)
        # Soon, not now: Debian 12's Python (3.11.2) begins to read after this call whatever it has paused.
        asyncio.get_running_loop().call_soon(self._local.pause_reading)
        self._tunnels.add(self)
        self._opening = asyncio.create_task(self._open())

    def data_received(self, data: bytes) -> None:
        assert self._stream is not None
        self._stream.send(data)
        if self._stream.waiting > _WAITING_BYTES:
            self._local.pause_reading()

    def eof_received(self) -> bool:
        assert self._stream is not None
        self._is_local_shut = True
        self._stream.finish()
        self._close_if_done()
        return True  # it may still receive

    def pause_writing(self) -> None:
        assert self._stream is not None
        self._stream.pause(True)

    def resume_writing(self) -> None:
        assert self._stream is not None
        self._stream.pause(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_shut = True
        self._opening.cancel()
        if self._stream is not None:
            self._stream.close()
        self._tunnels.discard(self)
        self.gone.set()

    # Events of the node's port.

    def received(self, data: bytes) -> None:
        if not self._is_shut:
            self._local.write(data)

    def received_stderr(self, data: bytes) -> None:
        """A tunnel has none."""

    def drained(self) -> None:
        if not (self._is_shut or self._is_local_shut):
            self._local.resume_reading()

    def eof(self) -> None:
        self._is_remote_shut = True
        if not self._is_shut and self._local.can_write_eof():
            self._local.write_eof()
        self._close_if_done()

    def exited(self, exit_code: int) -> None:
        """A tunnel has none."""

    def closed(self) -> None:
        if self._is_remote_shut and not self._is_shut:
            self._local.close()
        else:
            self.abort()

    def abort(self) -> None:
        """End both sides at once by a reset: truncated data must not look complete to the client."""
        if not self._is_shut:
            sock = self._local.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._local.abort()

    def _close_if_done(self) -> None:
        if self._is_remote_shut and self._is_local_shut and not self._is_shut:
            self._local.close()

    async def _open(self) -> None:
        host, port = self._to
        try:
            connection = await self._connected()
            async with connection.tunnels:
                self._stream = await connection.tunnel(host, port, self, timeout_s=_OPEN_S)
        except NotConnected:
            self.abort()  # as if the client had called the port itself: it has the words for that
            return
        except NodeError as error:
            _log.warning("Forwarding to %s port %d failed: %s", host, port, error.what)
            self.abort()
            return
        self._local.resume_reading()
