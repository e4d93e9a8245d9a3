"""Forwarder in front of an engine that checks no token: it listens on the rank's address, the engine on loopback.

Runs in the rank's supervisor, so that it lives exactly as long as the engine. Stdlib only. The first request of a
connection decides about all of it: a client with the token is the gateway or the group, which send it with every request.
A connection with the metrics token gets the metrics page, by a request of ours, and is closed. Anything else gets a 401.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

LOOPBACK = "127.0.0.1"
_HEAD_BYTES = 64 << 10
_HEAD_S = 10.0
"""Time limit for the first request's head; the gateway sends it in one piece."""
_CLOSE_S = 5.0
_STRANGERS = 256
"""Connections at once that have sent no token yet. A further one ends the oldest of the address that has the most, so that
nobody else's silence closes a connection of the gateway. More than the streams that it opens to one engine at once; each is
one of the process's 1,024 files."""
_CHUNK = 256 << 10
_REFUSED = (
    b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\ncontent-length: 25\r\nconnection: close\r\n\r\n"
    b'{"error": "Unauthorized"}'
)
_NOT_UP = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True)
class ForwardOrder:
    """Addresses and tokens of a forwarder: `runtime.base.Forward` as plain data."""

    host: str
    port: int
    target_port: int
    token: str
    metrics_token: str
    """Several between spaces, while the fleet's secrets change."""
    metrics_path: str


class Forwarder:
    """A listener that passes connections with the token on to a port of loopback.

    Args:
        order: addresses and tokens.
    """

    def __init__(self, order: ForwardOrder) -> None:
        self._order = order
        self._server: asyncio.Server | None = None
        self._strangers: dict[asyncio.Task[Any], str] = {}
        """The tasks of connections that have sent no token yet, and their addresses; oldest first."""
        self._open: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Listens. Raises OSError if the address is not of this node, or the port is taken."""
        order = self._order
        self._server = await asyncio.start_server(self._serve, order.host, order.port, limit=_HEAD_BYTES)

    async def close(self) -> None:
        """Ends the listener and every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "the server runs this in a task"
        self._open.add(task)
        try:
            await self._answer(reader, writer)
        except (
            OSError,
            asyncio.CancelledError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            TimeoutError,
        ):
            pass  # the other side is gone or sends no request, or the rank ends
        finally:
            self._open.discard(task)
            await _closed(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._admit_stranger(writer)
        try:
            async with asyncio.timeout(_HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
        finally:
            self._strangers.pop(task, None)
        whole, metrics = self._admits(head)
        if not (whole or metrics):
            await _respond(writer, _REFUSED)
            return
        try:
            from_engine, to_engine = await asyncio.open_connection(LOOPBACK, self._order.target_port)
        except OSError:
            await _respond(writer, _NOT_UP)
            return
        to_engine.write(head if whole else self._metrics_request())
        await _both_ways(reader, writer, from_engine, to_engine)

    def _admit_stranger(self, writer: asyncio.StreamWriter) -> asyncio.Task[Any]:
        task = asyncio.current_task()
        assert task is not None, "the server runs this in a task"
        if len(self._strangers) >= _STRANGERS:
            ((address, _),) = Counter(self._strangers.values()).most_common(1)
            oldest = next(one for one, of in self._strangers.items() if of == address)
            del self._strangers[oldest]
            oldest.cancel()
        peer = writer.get_extra_info("peername")
        self._strangers[task] = str(peer[0]) if peer else ""
        return task

    def _admits(self, head: bytes) -> tuple[bool, bool]:
        """(true if the connection may be used, true if it gets the metrics page)."""
        order, lines = self._order, head.split(b"\r\n")
        given = bearer(lines[1:])
        if given is None:
            return False, False
        reads = bool(order.metrics_path) and lines[0].split(b" ")[:2] == [b"GET", order.metrics_path.encode()]
        metrics = reads and any(_same(given, token) for token in order.metrics_token.split())
        return _same(given, order.token), metrics

    def _metrics_request(self) -> bytes:
        order = self._order
        lines = (
            f"GET {order.metrics_path} HTTP/1.1",
            f"host: {LOOPBACK}",
            f"authorization: Bearer {order.token}",  # an engine may have it as its key
            "connection: close",
        )
        return "\r\n".join((*lines, "", "")).encode()


def bearer(lines: list[bytes]) -> bytes | None:
    """The bearer token among the lines of a request's head; None without one, or with several such headers."""
    pairs = (line.partition(b":") for line in lines)
    found = [value.strip() for name, _, value in pairs if name.strip().lower() == b"authorization"]
    scheme, _, token = found[0].partition(b" ") if len(found) == 1 else (b"", b"", b"")
    return token.strip() if scheme.lower() == b"bearer" else None


def _same(given: bytes, expected: str) -> bool:
    return bool(expected) and hmac.compare_digest(given, expected.encode())


async def _respond(writer: asyncio.StreamWriter, answer: bytes) -> None:
    writer.write(answer)
    await writer.drain()


async def _both_ways(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    from_engine: asyncio.StreamReader,
    to_engine: asyncio.StreamWriter,
) -> None:
    """Copies until one side closes: the engine has to learn at once that its client is gone."""
    ways = [asyncio.create_task(_copy(reader, to_engine)), asyncio.create_task(_copy(from_engine, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        await _closed(to_engine)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_S):  # what is left to send may never be read
            await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
