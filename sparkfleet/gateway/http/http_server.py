"""HTTP server with its own listening socket for an ASGI application, inside a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from functools import partial

import uvicorn

from sparkfleet.gateway.asgi import App
from sparkfleet.gateway.http.client_connection import HEAD_BYTES, HEAD_S, ClientConnection
from sparkfleet.gateway.http.server_socket import BACKLOG, Connections, connection_limit, listening_socket
from sparkfleet.gateway.http.tls_listener import TlsListener

TICK_S = 1.0
"""Pause between two looks at the deadlines of connections, and two dates in the headers of answers."""


class Server:
    """A listening server, created by `serve`."""

    def __init__(
        self, server: _Server, listener: socket.socket, task: asyncio.Task[None], scheme: str
    ) -> None:
        self._server = server
        self._scheme = scheme
        self._listener = listener
        self._task = task
        self.host, self.port = listener.getsockname()[:2]

    @property
    def url(self) -> str:
        """Listening addresses."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self._scheme}://{host}:{self.port}"

    def stop_accepting(self) -> None:
        """Closes the listening socket: new connections go to other processes on the port. Open ones go on."""
        self._server.stop_accepting()

    async def aclose(self, timeout_s: float = 5.0) -> None:
        """Stops accepting, lets answers end for `timeout_s`, cancels the rest, and closes everything."""
        self._server.config.timeout_graceful_shutdown = timeout_s  # type: ignore[assignment]
        self._server.stop()
        await self._task


async def serve(
    app: App,
    host: str,
    port: int,
    *,
    reuse_port: bool = True,
    head_bytes: int = HEAD_BYTES,
    head_s: float = HEAD_S,
    connections: int | None = None,
    tls: ssl.SSLContext | None = None,
) -> Server:
    """Serves `app`. Returns when it listens; it then runs as a task of the current event loop.

    Args:
        host: address to bind, IPv4 or IPv6.
        port: 0 takes any free one.
        reuse_port: let other processes of this user listen on the same port; the kernel spreads connections.
        head_bytes: limit of a request's line and headers.
        head_s: time for them to arrive, and before them for a TLS handshake.
        connections: connections that are held at once; None: `CONNECTIONS`, or fewer if the process may open fewer files.
        tls: has the certificate; None: HTTP without TLS.

    Raises:
        ControlError: the address cannot be bound.
    """
    listener = listening_socket(host, port, reuse_port=reuse_port)
    limits = {
        "head_bytes": head_bytes,
        "head_s": head_s,
        "open": Connections(connections or connection_limit()),
    }
    protocol = type("Protocol", (ClientConnection,), limits)
    config = _config(app, protocol)
    config.load()
    server = _Server(config, min(TICK_S, head_s / 4), protocol, tls)
    task = asyncio.create_task(server.serve(sockets=[listener]), name=f"sparkfleet gateway on port {port}")
    await server.is_listening(task)
    return Server(server, listener, task, "http" if tls is None else "https")


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers: signals belong to its process."""

    def __init__(
        self,
        config: uvicorn.Config,
        tick_s: float,
        protocol: type[ClientConnection],
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(config)
        self._tick_s = tick_s
        self._protocol = protocol
        self._tls = tls
        self._encrypted: list[TlsListener] = []
        self._listening = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        # uvicorn checks ten times a second for its end, and has a timer for each idle connection.
        loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._tick_s):
                    await self._stopping.wait()
            now = loop.time()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, ClientConnection) and connection.deadline <= now:
                    connection.transport.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn would leave connections to asyncio until their handshake is done.
        await super().startup(sockets if self._tls is None else [])
        if self._tls is not None:
            self._encrypted = [
                TlsListener(
                    listener,
                    partial(self._protocol, self.config, self.server_state),
                    opened=self._protocol.open,
                    context=self._tls,
                    handshake_s=self._protocol.head_s,
                )
                for listener in sockets or []
            ]
        self._listening.set()

    def stop_accepting(self) -> None:
        for server in self.servers:
            server.close()
        for encrypted in self._encrypted:
            encrypted.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn polls every 100 ms for the end of all requests; this one is notified.
        self.stop_accepting()
        for one in self._encrypted:
            one.abort()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()  # an idle one closes, a busy one will after its answer
        await _end(set(self.server_state.tasks), self.config.timeout_graceful_shutdown)

    async def is_listening(self, task: asyncio.Task[None]) -> None:
        waiting = asyncio.create_task(self._listening.wait())
        await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await task  # raises the error

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _end(tasks: set[asyncio.Task[None]], timeout_s: float | None) -> None:
    if not tasks:
        return
    _, pending = await asyncio.wait(tasks, timeout=timeout_s)
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)


def _config(app: App, protocol: type[ClientConnection]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
    )
