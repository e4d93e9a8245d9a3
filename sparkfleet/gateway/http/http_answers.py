"""Answers of the HTTP server: written without a task in between, and ended if nobody takes them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from sparkfleet.gateway.asgi import Headers, Message

STALLED_S = 60.0
"""Seconds in which a client has to take a part of what is held for it. The kernel of a stopped program answers for it for
ever, and its request would keep its slot on the engine; nginx's `send_timeout` is as long."""
_PHRASES = {one.value: one.phrase for one in HTTPStatus}
_WITHOUT_BODY = (204, 304)


class AnsweredConnection(Protocol):
    """The connection of a client, as its answers use it."""

    transport: asyncio.Transport
    flow: FlowControl
    is_lost: bool
    """True once it has ended."""
    watchers: list[Callable[[], None]]
    """Called at its end."""

    @property
    def default_headers(self) -> Headers:
        """Headers of every answer."""
        ...

    def on_answered(self) -> None:
        """Called after the last byte of an answer."""
        ...


class ClientAnswer:
    """The answer to one request: ASGI's `receive` and `send` for it, and a `DirectWriter`.

    Its head waits for the first part of the body: one system call, and one wake-up of the client, instead of two. HTTP/1.0
    has no chunked encoding: without a length, the end of the connection ends such an answer.

    Args:
        is_head: the method is HEAD: bodies are not sent.
        is_old: the client speaks HTTP/1.0.
        headers: of the request.
    """

    __slots__ = (
        "_changed",
        "_chunked",
        "_connection",
        "_flow",
        "_head",
        "_headers",
        "_is_head",
        "_is_old",
        "_left",
        "_may_wait",
        "_transport",
        "_waiter",
        "begun",
        "body",
        "complete",
        "keep_alive",
        "more_body",
    )

    def __init__(
        self,
        connection: AnsweredConnection,
        *,
        is_head: bool,
        is_old: bool,
        keep_alive: bool,
        headers: Headers,
    ) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._flow = connection.flow
        self._is_head = is_head
        self._is_old = is_old
        self.keep_alive = keep_alive
        """True if the connection may carry another request."""
        self._headers = headers
        self._may_wait = True
        """True if the client may wait for leave to send the body."""
        self._waiter: asyncio.Future[None] | None = None
        self._changed = False
        """True if there is something to receive."""
        self.body = bytearray()
        """Bytes of the request that have arrived and were not received."""
        self.more_body = True
        """True until all of it has arrived."""
        self.begun = self.complete = False
        self._chunked = False
        self._left: int | None = None
        """Bytes of the body that are declared and not sent; None: its length is not declared."""
        self._head = b""
        """Its first bytes, until they are sent."""

    # The request's body

    def note(self) -> None:
        """Notes that a part of the body has arrived, or its end, or that of the connection."""
        self._changed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def arrived(self) -> bytes | None:
        """See `DirectWriter.arrived`."""
        if self.more_body or self._connection.is_lost:
            return None
        self._changed = False
        if self._flow.read_paused:
            self._flow.resume_reading()
        return self._taken()

    async def receive(self) -> Message:
        """The next part of the body, or the end of the connection, as ASGI has it."""
        connection = self._connection
        if self._may_wait and not self.begun and not self._transport.is_closing() and self._waits():
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._may_wait = False
        if not connection.is_lost and not self.complete:
            self._flow.resume_reading()
            await self._change()
        if connection.is_lost or self.complete:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._taken(), "more_body": self.more_body}

    def _waits(self) -> bool:
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)

    async def _change(self) -> None:
        """Waits until there is something to receive."""
        self._connection.watchers.append(self.note)
        try:
            while not self._changed:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        finally:
            self._waiter = None
            self._connection.watchers.remove(self.note)
        self._changed = False

    def _taken(self) -> bytes:
        body, self.body = bytes(self.body), bytearray()
        return body

    # The answer

    async def send(self, message: Message) -> None:
        """Sends a part as ASGI has it. Raises RuntimeError for an answer that contradicts itself."""
        if self._flow.write_paused:
            await self.drained()
        if self._connection.is_lost:
            await asyncio.sleep(0)  # an answer without an end would never come to its own cancellation
            return
        if message["type"] == "http.response.start":
            if self.begun:
                raise RuntimeError("the answer has begun")
            self._begin(message["status"], message.get("headers", ()))
        elif not self.begun or self.complete:
            raise RuntimeError("a part of an answer that has not begun, or is complete")
        else:
            self._pass(message.get("body", b""), last=not message.get("more_body", False))

    def _begin(self, status: int, headers: Headers) -> None:
        self.begun = True
        fields = dict(headers)
        if b"connection" in fields:
            self.keep_alive = self.keep_alive and b"close" not in fields[b"connection"].lower()
            headers = [one for one in headers if one[0] != b"connection"]
        lines = [_status_line(status), *map(b": ".join, (*self._connection.default_headers, *headers))]
        if b"content-length" in fields:
            self._left = int(fields[b"content-length"])
        elif status in _WITHOUT_BODY:
            self._left = 0
        elif self._is_old:
            self.keep_alive = False
        elif not self._is_head:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked")
        if not self.keep_alive:
            lines.append(b"connection: close")
        self._head = b"\r\n".join((*lines, b"", b""))
        if self._head.count(b"\n") != len(lines) + 1 or b"\0" in self._head:
            raise RuntimeError("a header has a line break")

    def _pass(self, body: bytes, *, last: bool) -> None:
        if self._is_head:
            body = b""
        elif self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (last and self._left):
                raise RuntimeError("the answer has another length than it has declared")
        elif self._chunked and body:
            body = b"%b%b\r\n" % (_chunk_head(len(body)), body)
        if self._chunked and last:
            body += b"0\r\n\r\n"
        head, self._head = self._head, b""
        if head or body:
            self._transport.write(head + body)
        if last:
            self.complete = True
            self.note()
            if not self.keep_alive:
                self._transport.close()
            self._connection.on_answered()

    def write(self, chunk: bytes) -> bool:
        """See `DirectWriter.write`."""
        if self._connection.is_lost:
            return True  # the request is about to be cancelled
        if self._chunked:
            chunk = _chunk_head(len(chunk)) + chunk + b"\r\n"
        elif self._left is not None:
            self._left -= len(chunk)
        if self._head:
            chunk, self._head = self._head + chunk, b""
        self._transport.write(chunk)
        return not self._flow.write_paused

    async def drained(self) -> None:
        """Waits until a slow client takes more, and ends the connection of one that takes nothing."""
        left = _held_bytes(self._transport)
        while self._flow.write_paused and not self._connection.is_lost:
            try:
                async with asyncio.timeout(STALLED_S):
                    await self._flow.drain()
            except TimeoutError:
                before, left = left, _held_bytes(self._transport)
                if left >= before:
                    self._transport.abort()

    def watch(self, gone: Callable[[], None]) -> bool:
        """See `DirectWriter.watch`."""
        if self._flow.read_paused:
            self._flow.resume_reading()  # the end of the connection is read, too
        self._connection.watchers.append(gone)
        return not self._connection.is_lost

    def unwatch(self, gone: Callable[[], None]) -> None:
        """See `DirectWriter.unwatch`."""
        self._connection.watchers.remove(gone)


@lru_cache(maxsize=1024)
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {_PHRASES.get(status, '')}".encode()


@lru_cache(maxsize=4096)  # most parts of a stream have one of a few hundred lengths
def _chunk_head(size: int) -> bytes:
    return b"%x\r\n" % size


def _held_bytes(transport: asyncio.WriteTransport) -> int:
    """Bytes that a client has not taken. The kernel reports room only if a third of its megabytes is free."""
    queued = bytearray(4)
    with contextlib.suppress(OSError):
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)
