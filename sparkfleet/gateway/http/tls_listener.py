"""Accepts connections with TLS: each counts, and its time runs, from its opening on.

A server with TLS of asyncio's or uvloop's calls its protocol only after the handshake. A client that began none was never
counted, and held one of the gateway's files for a minute.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from sparkfleet.gateway.http.client_connection import ClientConnection
from sparkfleet.gateway.http.server_socket import BACKLOG, Connections

log = logging.getLogger(__name__)

ACCEPTS = 64
"""Connections that are accepted in one turn of the loop."""
PAUSE_S = 1.0
"""Pause after a connection could not be accepted: the process has no file left for it."""
_NOT_NOW = (errno.EAGAIN, errno.EINTR, errno.ECONNABORTED)


class TlsListener:
    """A listening socket with TLS, of the running event loop.

    Args:
        listener: does not block; it is closed with this one.
        make: makes the protocol of one connection.
        opened: counts connections, and has their limits.
        context: has the certificate: each handshake uses the one that it has then.
        handshake_s: time for a handshake, from the opening of the connection.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], ClientConnection],
        *,
        opened: Connections,
        context: ssl.SSLContext,
        handshake_s: float,
    ) -> None:
        self._listener = listener
        self._make = make
        self._opened = opened
        self._context = context
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._shaking = set[asyncio.Task[None]]()
        self._paused: asyncio.TimerHandle | None = None
        listener.listen(BACKLOG)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Stops accepting. Handshakes go on."""
        if self._paused is not None:
            self._paused.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def abort(self) -> None:
        """Ends it, and the handshakes."""
        self.close()
        for one in tuple(self._shaking):
            one.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                client, peer = self._listener.accept()
            except OSError as error:
                if error.errno not in _NOT_NOW:
                    self._pause(error)
                return
            self._take(client, peer[0])

    def _pause(self, error: OSError) -> None:
        log.error("no connection of a client is accepted for %.0f s: %s", PAUSE_S, error.strerror)
        self._loop.remove_reader(self._listener)
        self._paused = self._loop.call_later(PAUSE_S, self._loop.add_reader, self._listener, self._accept)

    def _take(self, client: socket.socket, address: str) -> None:
        """Begins a handshake, or closes a connection too many: an answer would need one."""
        if not self._opened.begin(address):
            self._opened.end(address)
            client.close()
            return
        client.setblocking(False)
        made = self._make()
        made.counted = address
        task = self._loop.create_task(self._shake_hands(client, made, address))
        self._shaking.add(task)
        task.add_done_callback(self._shaking.discard)

    async def _shake_hands(self, client: socket.socket, made: ClientConnection, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: made, client, ssl=self._context, ssl_handshake_timeout=self._handshake_s
            )
        except OSError as error:
            # ssl.SSLError, too: it speaks no TLS, does not trust the certificate, has left, or is too slow.
            log.debug("no TLS with %s: %s", address, error)
        finally:
            if made.counted is not None:  # it was not made, or it would end its count itself
                client.close()
                self._opened.end(address)
