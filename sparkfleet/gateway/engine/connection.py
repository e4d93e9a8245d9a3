"""One HTTP/1.1 connection to an engine, on its transport: no task runs between the engine's bytes and the client's.

A general client library takes three times the processor time of this (docs/gateway.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import httptools

from sparkfleet.gateway.asgi import Fields, fields_of
from sparkfleet.gateway.body.request_body import PIECE_BYTES, RequestBody

HEAD_BYTES = 64 << 10
"""Longest head of an answer, bytes: the parser itself has no limit."""
HIGH_WATER = 256 << 10
"""Bytes of an answer that are held for a client before the engine has to wait."""
_INFORMATIONAL = range(100, 200)
_LENGTHS = frozenset((b"content-length", b"transfer-encoding"))

Sink = Callable[[bytes], bool]
"""Takes a part of an answer. False: its client is slow, the engine has to wait."""


class EngineConnectionLost(Exception):
    """The connection ended, or brought something that is no HTTP, before the end of the answer."""


class EngineConnection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._write_paused = False
        self._lost: EngineConnectionLost | None = None
        self.has_served = False
        """True once it has carried a whole answer."""
        self.in_use = False
        self.idle_until = 0.0
        """Time of the loop until which it is kept for another request."""
        self._parser = httptools.HttpResponseParser(self)
        self._reset(is_head=False)

    def _reset(self, *, is_head: bool) -> None:
        self._is_head = is_head
        self._got: list[bytes] = []
        """Parts of the bytes that are being parsed."""
        self._held: list[bytes] = []
        self._size = self._head_size = 0
        self._sink: Sink | None = None
        self._is_slow = self._read_paused = False
        self._has_head = self._ended = False
        self._reusable = True
        self._until_close = False
        self.status = 0
        """HTTP status of the answer."""
        self.headers: list[tuple[bytes, bytes]] = []
        """Its headers; names in lower case."""
        self.fields: Fields = {}
        """The first value of each."""

    # Requests and answers

    @property
    def is_free(self) -> bool:
        """True if it can carry another request."""
        return (
            self._ended and self._reusable and self._lost is None and not self._held and not self._is_closing
        )

    @property
    def transport(self) -> asyncio.Transport:
        """The transport."""
        return self._transport

    @property
    def _is_closing(self) -> bool:
        return self._transport.is_closing()

    async def ask(self, head: bytes, body: RequestBody, *, is_head: bool = False) -> None:
        """Sends a request and waits, without a time limit, for the head of the answer.

        Args:
            head: first line and headers, with the empty line.
            is_head: true for the method HEAD, whose answer has no body whatever its headers declare.

        Raises:
            EngineConnectionLost: the connection ended before.
        """
        self._reset(is_head=is_head)
        self.in_use = True
        if body.size <= PIECE_BYTES:
            self._transport.write(head + body.whole())
        else:
            self._transport.write(head)
            await self._send_long(body)
        while not self._has_head:
            await self._wait()

    async def _send_long(self, body: RequestBody) -> None:
        for piece in body:
            while self._write_paused and not self._has_head:
                await self._wait()
            if self._has_head:  # it answers without the rest, which it will not read
                self._reusable = False
                return
            if self._lost is not None:
                raise self._lost
            self._transport.write(piece)

    async def readany(self) -> bytes:
        """The bytes of the answer that have arrived, at least one; b"" at its end.

        Raises:
            EngineConnectionLost: it ended in the middle.
        """
        while not self._held:
            if self._ended:
                return b""
            await self._wait()
        chunk, self._held, self._size = b"".join(self._held), [], 0
        self._resume()
        return chunk

    async def pump(self, sink: Sink, drained: Callable[[], Awaitable[None]]) -> None:
        """Passes the rest of the answer to `sink`, each part as it arrives.

        Args:
            drained: waits until a slow client takes more.

        Raises:
            EngineConnectionLost: it ended in the middle.
        """
        self._sink = sink
        held, self._held, self._size = self._held, [], 0
        for chunk in held:
            self._is_slow = not sink(chunk) or self._is_slow
        while not self._ended:
            if self._is_slow:
                self._pause()
                await drained()
                self._is_slow = False
            self._resume()
            await self._wait()

    def close(self) -> None:
        """Closes it at once: an engine that is still generating stops."""
        self._transport.abort()

    async def _wait(self) -> None:
        """Waits until something has changed."""
        if self._lost is not None:
            raise self._lost
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _pause(self) -> None:
        if not self._read_paused and not self._is_closing:
            self._read_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._read_paused and not self._is_closing:
            self._read_paused = False
            self._transport.resume_reading()

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parses bytes of an answer, and passes its body on."""
        if not self.in_use or self._ended:
            self._reusable = False  # nothing was asked
            return self.close()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            return self._fail(f"its answer is no HTTP: {error}")
        if not self._has_head:
            self._head_size += len(data)
            if self._head_size > HEAD_BYTES:
                self._fail(f"the head of its answer has more than {HEAD_BYTES >> 10} KiB")
            return None
        got, sink = self._got, self._sink
        if got:
            chunk = got.pop() if len(got) == 1 else b"".join(got)
            got.clear()
            if sink is None:
                self._hold(chunk)
            elif not sink(chunk):
                self._is_slow = True
        if self._ended or sink is None or self._is_slow:
            self._wake()
        return None

    def _hold(self, chunk: bytes) -> None:
        self._held.append(chunk)
        self._size += len(chunk)
        if self._size > HIGH_WATER:
            self._pause()

    def pause_writing(self) -> None:
        """Notes that the engine is slow to read."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Goes on."""
        self._write_paused = False
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the answer, if its end is that of the connection; otherwise it is lost."""
        if self._has_head and not self._ended and self._until_close and exc is None:
            self._ended = True
        elif not self._ended:
            self._lost = self._lost or EngineConnectionLost(str(exc or "it closed the connection"))
        self._reusable = False
        self._wake()
        del self._parser  # they refer to each other: only a collection of cycles would free them

    def _fail(self, why: str) -> None:
        self._lost = EngineConnectionLost(why)
        self._reusable = False
        self.close()
        self._wake()

    # What the parser calls

    def on_message_begin(self) -> None:
        """Notes bytes after the end of an answer."""
        if self._ended:
            self._reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; those after the body are dropped."""
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Ends the head, unless it is that of an interim answer."""
        if self._ended:
            return
        self.status = int(self._parser.get_status_code())
        if self.status in _INFORMATIONAL:
            self.headers = []
            return
        self._has_head = True
        self.fields = fields_of(self.headers)
        self._until_close = _LENGTHS.isdisjoint(self.fields)
        self._reusable = self._reusable and self._parser.should_keep_alive() and not self._ends_unannounced
        if self._is_head:
            self._ended, self._reusable = True, False

    @property
    def _ends_unannounced(self) -> bool:
        """True for a stream of llama.cpp: its server closes the connection behind one, and announces the opposite."""
        return self.fields.get(b"server") == b"llama.cpp" and b"transfer-encoding" in self.fields

    def on_body(self, body: bytes) -> None:
        """Takes a part of the body."""
        if not self._ended:
            self._got.append(body)

    def on_message_complete(self) -> None:
        """Ends the answer."""
        if self._has_head:
            self._ended = self.has_served = True
