"""One HTTP/1.1 connection of a client: parses its requests and has the application answer them, one after the other.

It has limits on connections, on the size and the time of a request's head, and on requests that are sent ahead: without
them a client could hold connections, or fill memory, without an API key.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from sparkfleet.gateway.access.limits import has_body
from sparkfleet.gateway.asgi import DIRECT, LINGER_S, Headers, Scope, respond
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.request_errors import bad_request, headers_too_large, too_many_connections
from sparkfleet.gateway.http.http_answers import ClientAnswer
from sparkfleet.gateway.http.sent_ahead import SentAhead, WaitingRequest
from sparkfleet.gateway.http.server_socket import Connections

log = logging.getLogger(__name__)

HEAD_BYTES = 64 << 10
"""Limit of the request line and headers: the parser itself has none."""
HEADERS = 256
"""Headers of one request: each takes up to 40 times its bytes of memory. Those of the API are limited further, in
`RequestLimits`, so that their refusals are counted."""
HEAD_S = 15.0
"""From the opening of a connection, or the first byte of a request, to the end of its headers."""
IDLE_S = 75.0
"""Seconds for which an idle connection is kept: longer than by clients, so that they rarely meet a closed one."""


class ClientConnection(asyncio.Protocol):
    """A connection. Its server closes it at its `deadline`."""

    head_bytes: ClassVar[int] = HEAD_BYTES
    head_s: ClassVar[float] = HEAD_S
    open: ClassVar[Connections]

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any] | None = None,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = config.loaded_app
        self._server = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        # A client that announces the end of its connection with its first request may have sent others.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.deadline = math.inf
        """Time of the loop at which it is closed."""
        self.counted: str | None = None
        """Address under which it counts before it is made: with TLS, that is after the handshake."""
        self.is_lost = False
        self.watchers: list[Callable[[], None]] = []
        self._answer: ClientAnswer | None = None
        """The answer to the last request."""
        self._waiting = SentAhead()
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._has_clock = False
        """True if the deadline is that of a head."""
        self._head_size: int | None = None
        """Bytes of the current head, or of the fields behind a body; None between them."""
        self._parsing = 0
        """Bytes that are being parsed."""
        self._behind = 0
        """Size from which a head counts: less than 0 behind the end of a message, whose bytes are among those parsed."""
        self._refusal: ApiError | None = None
        """The last answer, to what cannot be read: nothing behind it is parsed."""
        self._again = b""
        """A head to parse once more."""
        self._in_head = False

    @property
    def default_headers(self) -> Headers:
        """Headers of every answer."""
        return self._server.default_headers

    def shutdown(self) -> None:
        """Closes it, after the answer that is under way."""
        if self._is_at_rest:
            self.transport.close()
        elif self._answer is not None:
            self._answer.keep_alive = False

    @property
    def _is_at_rest(self) -> bool:
        return self._answer is None or self._answer.complete

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the clock. (uvloop's transports are no classes of asyncio's.)"""
        self._server.connections.add(self)  # type: ignore[arg-type]  # it is no protocol of uvicorn's
        self.transport = transport
        self.flow = FlowControl(transport)
        self._sides = {
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "scheme": "https" if is_ssl(transport) else "http",
        }
        client, counted = self._sides["client"], self.counted
        self._address, self.counted = counted or (client[0] if client else ""), None
        if counted is not None or self.open.begin(self._address):
            self._start_clock()
        else:
            self._write_last(too_many_connections())

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what its client has asked for."""
        self.is_lost, self.deadline = True, math.inf
        self._server.connections.discard(self)
        self.open.end(self._address)
        for gone in tuple(self.watchers):
            gone()
        self.flow.resume_writing()  # after them: what waits to write is cancelled before it goes on
        # They refer to this object, too.
        self._answer = None
        self._waiting.clear()
        del self._parser

    def data_received(self, data: bytes) -> None:
        """Parses data, and refuses a head that does not end."""
        if self._refusal is not None or self.transport.is_closing():
            return
        if self._answer is None or self._answer.complete:
            # An empty line, or the rest of a refused body: neither may go on for ever.
            self._start_clock()
        self._parsing, self._behind = len(data), 0
        self._parse(data)
        if self._head_size is not None and self._refusal is None:
            self._head_size += len(data)
            if self._head_size > self.head_bytes:
                self._refuse(headers_too_large())
        if self._waiting and self._refusal is None and self._waiting.is_too_long:
            self._refuse(self._waiting.refusal())

    def pause_writing(self) -> None:
        """Notes that the client is slow."""
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        """Goes on."""
        self.flow.resume_writing()

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Another protocol was offered, and is not accepted: what follows is HTTP/1.1.
                data = self._again + data[upgrade.args[0] :]
                self._again = b""
            except httptools.HttpParserError:
                if self._refusal is None:
                    self._refuse(bad_request("Invalid HTTP request received."))
                return
            else:
                return

    # What the parser calls

    def on_message_begin(self) -> None:
        """Begins a head. Its clock starts once no answer before it is under way, which would end with it."""
        if self._answer is None or self._answer.complete:
            self._start_clock()
        self._head_size = self._behind
        self._in_head = True
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        """Takes a part of the address."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; those after the body are dropped: they would pass the checks of headers."""
        if self._in_head:
            self._headers.append((name.lower(), value))
            if len(self._headers) > HEADERS:
                self._stop(headers_too_large())

    def on_headers_complete(self) -> None:
        """Stops the clock at the end of a head, and begins the request."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            # An upgrade by itself, whatever its headers are: parsed once more it would be one again, without end.
            self._stop(bad_request("CONNECT is a method of proxies, and this is none."))
        if self._parsing > self.head_bytes and self._head_length() > self.head_bytes:
            self._stop(headers_too_large())
        if self._waiting and self._waiting.is_full:
            self._stop(self._waiting.refusal())
        if self._parser.should_upgrade() and has_body(self._headers):
            # Java's client offers HTTP/2 with its first request; the parser would take the body for that protocol.
            self._again = self._head_without_upgrade()
            return None
        self._stop_clock()
        self._in_head = False
        self._head_size = None
        return self._begin(method.decode("ascii"))

    def on_chunk_header(self) -> None:
        """Counts from here: behind the last chunk come fields, which the parser does not limit."""
        self._head_size = -self._parsing

    def on_body(self, body: bytes) -> None:
        """Takes a part of the body."""
        self._head_size = None
        answer = self._answer
        if answer is None or answer.complete:
            return
        answer.body += body
        if len(answer.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        answer.note()

    def on_message_complete(self) -> None:
        """Ends a request, unless its head is parsed once more."""
        self._head_size, self._behind = None, -self._parsing
        if not self._again and self._answer is not None and not self._answer.complete:
            self._answer.more_body = False
            self._answer.note()

    def _begin(self, method: str) -> None:
        version = self._parser.get_http_version()
        target = httptools.parse_url(self._url)
        raw_path = target.path or b"/"  # http://host: the root
        path = raw_path.decode("ascii")
        before, is_old = self._answer, version == "1.0"
        self._answer = answer = ClientAnswer(
            self,
            is_head=method == "HEAD",
            is_old=is_old,
            keep_alive=not is_old and self._parser.should_keep_alive(),
            headers=self._headers,
        )
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            **self._sides,
            "method": method,
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": target.query or b"",
            "headers": self._headers,
        }
        if method != "HEAD":
            scope["extensions"] = {DIRECT: answer}
        if before is None or before.complete:
            self._serve(answer, scope)
        else:
            self.flow.pause_reading()
            self._waiting.append(WaitingRequest(answer, scope, self._head_length()))

    def _head_length(self) -> int:
        return len(self._url) + sum([len(name) + len(value) for name, value in self._headers])

    # Answers

    def _serve(self, answer: ClientAnswer, scope: Scope) -> None:
        self._server.tasks.add(self._loop.create_task(self._run(answer, scope)))

    async def _run(self, answer: ClientAnswer, scope: Scope) -> None:
        try:
            await self._app(scope, answer.receive, answer.send)
        except (Exception, asyncio.CancelledError):  # also a cancellation: it ends here, with the connection
            log.exception("a request of a client failed")
        finally:
            self._server.tasks.discard(asyncio.current_task())
        if answer.complete or self.is_lost:
            return
        if answer.begun:
            self.transport.close()
        else:
            await respond(answer.send, 500, _FAILED, b"Internal Server Error")

    def on_answered(self) -> None:
        """Goes on with the next request, and starts the clock of one whose head is not complete."""
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self._waiting:
            following = self._waiting.popleft()
            self._serve(following.answer, following.scope)
        elif self._refusal is not None:
            self._end()
        elif self._in_head:
            self._start_clock()
        else:
            self.deadline = self._loop.time() + IDLE_S

    def _head_without_upgrade(self) -> bytes:
        line = b"%b %b HTTP/%b" % (
            self._parser.get_method(),
            self._url,
            self._parser.get_http_version().encode(),
        )
        fields = [name + b": " + value for name, value in self._headers if name != b"upgrade"]
        return b"\r\n".join([line, *fields, b"", b""])

    def _start_clock(self) -> None:
        if not self._has_clock:
            self._has_clock = True
            self.deadline = self._loop.time() + self.head_s

    def _stop_clock(self) -> None:
        self._has_clock = False
        self.deadline = math.inf

    def _stop(self, refusal: ApiError) -> NoReturn:
        """Refuses what is being parsed. The parser goes no further: it takes an error of its caller as the end."""
        self._refuse(refusal)
        raise refusal

    def _refuse(self, refusal: ApiError) -> None:
        """Answers what cannot be read, behind the answers that are under way, and ends the connection."""
        self._refusal = refusal
        self._stop_clock()
        answer = self._answer
        if answer is None or answer.complete:
            self._end()
        elif not answer.more_body:
            pass  # it is behind that request: `on_answered` goes on
        elif self._waiting:
            self._waiting.pop()  # it is in that request's body, whose turn has not come
        elif answer.begun:
            self.deadline = self._loop.time() + LINGER_S
        else:
            self._write_last(refusal)

    def _end(self) -> None:
        """Sends the last answer, and closes soon: at once, what the client has sent meanwhile would reset it."""
        assert self._refusal is not None
        self._answer = None
        if not self.transport.can_write_eof():  # TLS reads on by itself until its client ends it
            return self._write_last(self._refusal)
        self.transport.write(self._refusal.http_answer())
        self.transport.write_eof()
        self.flow.resume_reading()
        self.deadline = self._loop.time() + LINGER_S
        return None

    def _write_last(self, refusal: ApiError) -> None:
        self._refusal = refusal
        self.transport.write(refusal.http_answer())
        self.transport.close()


_FAILED = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
