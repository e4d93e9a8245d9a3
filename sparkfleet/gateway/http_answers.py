"""Answers of the HTTP server, in place of uvicorn's: written without a task in between, and ended if nobody takes them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from sparkfleet.gateway.asgi import Headers

STALLED_S = 60.0
"""Seconds in which a client has to take a part of what is held for it. The kernel of a stopped program answers for it for
ever, and its request would keep its slot on the engine; nginx's `send_timeout` is as long."""


async def _drain(cycle: RequestResponseCycle) -> None:
    """Waits until a slow client takes more, and ends the connection of one that takes nothing."""
    left = _held_bytes(cycle.transport)
    while cycle.flow.write_paused and not cycle.disconnected:
        try:
            async with asyncio.timeout(STALLED_S):
                await cycle.flow.drain()
        except TimeoutError:
            before, left = left, _held_bytes(cycle.transport)
            if left >= before:
                cycle.transport.abort()


def _held_bytes(transport: asyncio.WriteTransport) -> int:
    """Bytes that a client has not taken. The kernel reports room only if a third of its megabytes is free."""
    queued = bytearray(4)
    with contextlib.suppress(OSError):
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)


class UntilCloseAnswer(RequestResponseCycle):
    """Answer to HTTP/1.0, which has no chunked encoding: without a length, the end of the connection ends it."""

    _endless = False

    async def send(self, message: Any) -> None:
        """Sends a part as ASGI has it, once the client takes more."""
        await _drain(self)
        if message["type"] == "http.response.start":
            if not any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
                self._endless = True
                self.chunked_encoding = False
                self.keep_alive = False
        elif self._endless:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class DirectAnswer(RequestResponseCycle):
    """Answer whose body can be written without a task in between, for HTTP/1.1.

    Its head waits for the first part of the body: one system call, and one wake-up of the client, instead of two.
    """

    watchers: list[Callable[[], None]]
    """Called when its connection ends."""
    _head = b""

    async def send(self, message: Any) -> None:
        """Sends a part as ASGI has it. Raises RuntimeError for an answer that contradicts itself."""
        if self.flow.write_paused:
            await _drain(self)
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            if self.response_started:
                raise RuntimeError("the answer has begun")
            self._begin(message["status"], message.get("headers", ()))
        elif not self.response_started or self.response_complete:
            raise RuntimeError("a part of an answer that has not begun, or is complete")
        else:
            self._pass(message.get("body", b""), last=not message.get("more_body", False))

    def _begin(self, status: int, headers: Headers) -> None:
        self.response_started = True
        self.forget_itself()
        self.waiting_for_100_continue = False
        lines = [STATUS_LINE[status][:-2]]
        for name, value in (*self.default_headers, *headers):
            lines.append(name + b": " + value)
            if name == b"content-length":
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive = False
                lines.pop()
        if self.chunked_encoding is None and status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked")
        if not self.keep_alive:
            lines.append(b"connection: close")
        self._head = b"\r\n".join((*lines, b"", b""))
        if self._head.count(b"\n") != len(lines) + 1 or b"\0" in self._head:
            raise RuntimeError("a header has a line break")

    def _pass(self, body: bytes, *, last: bool) -> None:
        if not self.chunked_encoding:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (last and self.expected_content_length):
                raise RuntimeError("the answer has another length than it has declared")
        elif body:
            body = b"%x\r\n%b\r\n" % (len(body), body)
        if self.chunked_encoding and last:
            body += b"0\r\n\r\n"
        head, self._head = self._head, b""
        if head or body:
            self.transport.write(head + body)
        if last:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def forget_itself(self) -> None:
        """Ends its reference to itself, so that it is freed without a search for cycles. Its scope has been read."""
        self.scope.pop("extensions", None)

    def arrived(self) -> bytes | None:
        """See `DirectWriter.arrived`."""
        if self.more_body or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        self.flow.resume_reading()
        return body

    def write(self, chunk: bytes) -> bool:
        """See `DirectWriter.write`."""
        if self.disconnected:
            return True  # the request is about to be cancelled
        if self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(chunk), chunk)
        else:
            self.expected_content_length -= len(chunk)
        if self._head:
            chunk, self._head = self._head + chunk, b""
        self.transport.write(chunk)
        return not self.flow.write_paused

    def watch(self, gone: Callable[[], None]) -> bool:
        """See `DirectWriter.watch`."""
        self.flow.resume_reading()  # the end of the connection is read, too
        self.watchers.append(gone)
        return not self.disconnected

    def unwatch(self, gone: Callable[[], None]) -> None:
        """See `DirectWriter.unwatch`."""
        self.watchers.remove(gone)

    async def drained(self) -> None:
        """See `DirectWriter.drained`."""
        await _drain(self)
