"""An entry: passes connections of a node's address on to the head's gateway, byte by byte.

It reads nothing of what it passes on: keys, limits, queues and routing are the gateway's alone, which sees the node as its
client and never its own loopback. If no gateway accepts, the client waits: a killed one is replaced within seconds.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import TypeVar, cast

from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.request_errors import gateway_away, too_many_connections
from sparkfleet.gateway.http.server_socket import (
    ADDRESS_SHARE,
    BACKLOG,
    CONNECTIONS,
    Connections,
    connection_limit,
    listening_socket,
    watch_peer,
)
from sparkfleet.gateway.listening import EntryOrder

P = TypeVar("P", bound=asyncio.Protocol)

MOST = int(CONNECTIONS * ADDRESS_SHARE)
"""Connections of one entry: as many as the gateway takes from one address."""
HOLD_S = 10.0
"""Seconds for which a client waits for a gateway that accepts: a killed one is away for 3 s, one that hangs for up to 10."""
CONNECT_S = 3.0
"""Time limit of one attempt."""
RETRY_S = 0.2
LINGER_S = 2.0
"""Seconds in which a client may read an answer behind which its connection ends."""
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""TCP keepalive that ends the streams of a head that lost its power, after 25 s."""


class EntryServer:
    """A listener whose address, and the gateway's, may change while its connections go on.

    Args:
        hold_s: seconds for which a client waits for a gateway that accepts.
        most: connections at once; None: `MOST`, or fewer if the process may open fewer files.
    """

    def __init__(self, hold_s: float = HOLD_S, most: int | None = None) -> None:
        self.order: EntryOrder | None = None
        """Its address and the gateway's; None: it does not listen."""
        self.clients: set[_Client] = set()
        """Connections that are open."""
        self.counted = Connections(most or min(MOST, connection_limit()))
        self._hold_s = hold_s
        self._server: asyncio.Server | None = None

    async def listen(self, order: EntryOrder | None) -> None:
        """Listens as ordered. Open connections go on, and new ones reach the gateway where it is now.

        Raises:
            ControlError: the address cannot be bound; there is no listener then.
        """
        before, self.order = self.order, order
        if order and before and (order.host, order.port) == (before.host, before.port):
            return
        self._stop_accepting()
        if order is None:
            return
        try:
            # Fails if another program listens there, although the port itself is shared: with the gateway that starts on
            # this node when the head moves to it.
            listening_socket(order.host, order.port, reuse_port=False).close()
            listener = listening_socket(order.host, order.port, reuse_port=True)
        except BaseException:
            self.order = None
            raise
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Client(self), sock=listener, backlog=BACKLOG)

    def close(self) -> None:
        """Stops listening, and ends every connection."""
        self._stop_accepting()
        self.order = None
        for client in tuple(self.clients):
            client.transport.abort()

    def _stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def reach(self, client: _Client) -> bool:
        """Connects a client with the gateway. False if none accepts in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._hold_s
        while (order := self.order) is not None:
            try:
                _, side = await _connect(order, _Side)
            except OSError:
                if loop.time() >= until:
                    break
                await asyncio.sleep(RETRY_S)
            else:
                client.join(side)
                return True
        return False

    async def trouble(self) -> str:
        """Reason why clients do not reach the gateway now; "" if they do, or if it does not listen."""
        if (order := self.order) is None:
            return ""
        try:
            transport, _ = await _connect(order, asyncio.Protocol)
        except OSError as error:
            reason = (
                os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or "no answer"
            )
            return f"it does not reach the gateway at {order.target} port {order.target_port}: {reason}."
        transport.close()
        return ""


async def _connect(order: EntryOrder, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
    """A connection to the gateway. Raises OSError, also if nothing answers in time."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_S):
        return await loop.create_connection(protocol, order.target, order.target_port)


class _Side(asyncio.Protocol):
    """One of the two sockets of a connection: what it receives is sent by the other, as fast as that sends."""

    def __init__(self) -> None:
        self.other: _Side | None = None
        """None until the gateway has accepted: nothing is read before."""
        self._ended = False
        """True if the peer sends no more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        watch_peer(transport.get_extra_info("socket"), _KEEPALIVE)
        # Soon, not now: Debian 12's Python (3.11.2) begins to read after this call whatever it has paused.
        asyncio.get_running_loop().call_soon(self.transport.pause_reading)

    def join(self, other: _Side) -> None:
        """Begins to pass on, both ways."""
        for one, two in ((self, other), (other, self)):
            one.other = two
            if two.transport.is_closing():  # it has gone meanwhile
                one.transport.abort()
            else:
                one.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        self._ended = True
        if self.other is None or self.other._ended:
            return False  # closes this one, and thereby the other
        if not self.other.transport.is_closing():
            self.other.transport.write_eof()
            self.other.peer_ended()
        return True

    def peer_ended(self) -> None:
        """Called when the other side sends no more."""

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other._ended and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is None:
            return
        if exc is None:
            self.other.transport.close()  # after what is left to send
        else:
            _reset(self.other.transport)


def _reset(transport: asyncio.Transport) -> None:
    """Ends a connection with an error at its peer: a cut answer must not end as if it were whole."""
    if not transport.is_closing():
        now = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
    transport.abort()


class _Client(_Side):
    """The side of a client."""

    def __init__(self, server: EntryServer) -> None:
        super().__init__()
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        self._server.clients.add(self)
        self._reaching: asyncio.Task[None] | None = None
        if self._server.counted.begin(self._address):
            self._reaching = asyncio.get_running_loop().create_task(self._reach())
        else:
            self._answer(too_many_connections())
            self.transport.close()

    def peer_ended(self) -> None:
        # The gateway ends whole connections: an idle client would keep this one without it, and others out.
        asyncio.get_running_loop().call_later(LINGER_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.clients.discard(self)
        self._server.counted.end(self._address)
        if self._reaching is not None:
            self._reaching.cancel()
        super().connection_lost(exc)

    async def _reach(self) -> None:
        if not await self._server.reach(self):
            self._answer(gateway_away())
            self.transport.resume_reading()  # what the client has sent: unread, it would reset the answer
            self.transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER_S, self.transport.close)

    def _answer(self, refusal: ApiError) -> None:
        order = self._server.order
        if order is not None and not order.tls:
            self.transport.write(refusal.http_answer())
