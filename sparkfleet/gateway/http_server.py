"""HTTP server with its own listening socket for an ASGI application, inside a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sparkfleet.gateway.access.limits import has_body
from sparkfleet.gateway.asgi import DIRECT, App
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.request_errors import bad_request, headers_too_large, too_many_connections
from sparkfleet.gateway.http_answers import DirectAnswer, UntilCloseAnswer
from sparkfleet.gateway.server_socket import BACKLOG, Connections, connection_limit, listening_socket

HEAD_BYTES = 64 << 10
"""Limit of the request line and headers: the parser itself has none."""
HEAD_S = 15.0
"""From the opening of a connection, or the first byte of a request, to the end of its headers."""
IDLE_S = 75
"""Seconds for which an idle connection is kept: longer than by clients, so that they rarely meet a closed one."""


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with limits on connections, and on the size and the time of a request's head.

    uvicorn has none: a client could hold connections, or fill memory, without an API key.
    """

    head_bytes: ClassVar[int] = HEAD_BYTES
    head_s: ClassVar[float] = HEAD_S
    open: ClassVar[Connections]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_size: int | None = None
        """Bytes of the current head, or of the fields behind a body; None between them."""
        self._parsing = 0
        """Bytes that are being parsed."""
        self._again = b""
        """A head to parse once more."""
        self._in_head = False
        self._watchers: list[Callable[[], None]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the clock. (uvicorn narrows the type of `transport` likewise.)"""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        if self.open.begin(self._address):
            self._start_clock()
        else:
            self._refuse(too_many_connections())

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        self._stop_clock()
        self.open.end(self._address)
        super().connection_lost(exc)
        for gone in tuple(self._watchers):
            gone()
        if isinstance(self.cycle, DirectAnswer):
            self.cycle.forget_itself()
        self.cycle = None  # type: ignore[assignment]  # it refers to this object, too

    def data_received(self, data: bytes) -> None:
        """Parses data, and refuses a head that does not end."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            # An empty line, or the rest of a refused body: neither may go on for ever.
            self._start_clock()
        self._unset_keepalive_if_required()
        self._parsing = len(data)
        self._parse(data)
        if self._head_size is not None and not self.transport.is_closing():
            self._head_size += len(data)
            if self._head_size > self.head_bytes:
                self._refuse(headers_too_large())

    def _parse(self, data: bytes) -> None:
        while data and not self.transport.is_closing():
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Another protocol was offered, and is not accepted: what follows is HTTP/1.1.
                data = self._again + data[upgrade.args[0] :]
                self._again = b""
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return
            else:
                return

    def on_message_begin(self) -> None:
        """Begins a head. Its clock starts once no answer before it is under way, which would end with it."""
        if self.cycle is None or self.cycle.response_complete:
            self._start_clock()
        self._head_size = 0
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; those after the body are dropped: they would pass the checks of headers."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stops the clock at the end of a head, and begins the request."""
        if self.parser.get_method() == b"CONNECT":
            # An upgrade by itself, whatever its headers are: parsed once more it would be one again, without end.
            return self._refuse(bad_request("CONNECT is a method of proxies, and this is none."))
        if self.parser.should_upgrade() and has_body(self.headers):
            # Java's client offers HTTP/2 with its first request; the parser would take the body for that protocol.
            self._again = self._head_without_upgrade()
            return None
        self._stop_clock()
        self._in_head = False
        self._head_size = None
        super().on_headers_complete()
        if self.cycle is None:
            return None
        # uvicorn has no place for other classes
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = UntilCloseAnswer
        elif self.scope["method"] != "HEAD":
            self.cycle.__class__ = DirectAnswer
            self.cycle.watchers = self._watchers  # type: ignore[attr-defined]  # of the class it has now
            self.scope["extensions"] = {DIRECT: self.cycle}  # type: ignore[dict-item]
        return None

    def on_chunk_header(self) -> None:
        """Counts from here: behind the last chunk come fields, which the parser does not limit."""
        self._head_size = -self._parsing

    def on_body(self, body: bytes) -> None:
        """Takes a part of the body."""
        self._head_size = None
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends a request, unless its head is parsed once more."""
        self._head_size = None
        if not self._again and self.cycle is not None:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Goes on with the next request, and starts the clock of one whose head is not complete."""
        super().on_response_complete()
        if self._in_head and self.cycle.response_complete:
            self._start_clock()

    def _head_without_upgrade(self) -> bytes:
        line = b"%b %b HTTP/%b" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        fields = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([line, *fields, b"", b""])

    def send_400_response(self, msg: str) -> None:
        """Answers input that is not HTTP with an error in the usual form."""
        self._refuse(bad_request(msg))

    def _start_clock(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self.transport.close)

    def _stop_clock(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, refusal: ApiError) -> None:
        self._stop_clock()
        self.transport.write(refusal.http_answer())
        self.transport.close()


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
        for server in self._server.servers:
            server.close()

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
        head_s: time for them to arrive.
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
    protocol = type("Protocol", (GuardedProtocol,), limits)
    config = _config(app, protocol)
    config.load()
    config.ssl = tls
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name=f"sparkfleet gateway on port {port}")
    await server.is_listening(task)
    return Server(server, listener, task, "http" if tls is None else "https")


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers: signals belong to its process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._listening = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        # uvicorn checks ten times a second for its end; once, for the date header, is enough.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stopping.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn polls every 100 ms for the end of all requests; this one is notified.
        for server in self.servers:
            server.close()
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


def _config(app: App, protocol: type[GuardedProtocol]) -> uvicorn.Config:
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
        timeout_keep_alive=IDLE_S,
    )
