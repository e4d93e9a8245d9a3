"""Answers of engines as raw bytes, in every form and with every fault that HTTP allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.engine.connection import HEAD_BYTES, EngineConnectionLost
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.engine.engine_pool import EngineLost
from sparkfleet.gateway.engine.upstream import EngineRequest, Upstream, UpstreamAnswer

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
LLAMACPP = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Keep-Alive: timeout=5, max=100\r\n\r\n"
)
"""Head of a stream of b11434, which closes the connection behind it."""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class RawEngine:
    """Answers each request with given pieces, one write each. Ends the connection after a piece None."""

    def __init__(self, pieces: Sequence[bytes | None]) -> None:
        self.pieces = pieces
        self.connections = 0
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                for line in head.split(b"\r\n"):
                    if line.startswith(b"content-length: "):
                        await reader.readexactly(int(line.partition(b": ")[2]))
                for piece in self.pieces:
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.002)
        except (OSError, EOFError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[tuple[Upstream, EngineEndpoint]]:
    upstream, tasks = Upstream(), set()

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            await serve(reader, writer)
            writer.close()  # what it still holds is sent before: an abort would drop up to 64 KiB
        except asyncio.CancelledError:  # the test is over
            writer.transport.abort()

    server = await asyncio.start_server(noted, "127.0.0.1", 0)
    try:
        yield upstream, EngineEndpoint(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        await upstream.aclose()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        await asyncio.sleep(0.01)  # transports close in the next step


@asynccontextmanager
async def running(*pieces: bytes | None) -> AsyncIterator[tuple[RawEngine, Upstream, EngineEndpoint]]:
    engine = RawEngine(pieces)
    async with listening(engine.serve) as (upstream, target):
        yield engine, upstream, target


def request(body: bytes = b"{}", method: str = "POST") -> EngineRequest:
    return EngineRequest(
        "req-1", method, "/v1/completions", ((b"content-type", b"application/json"),), RequestBody(body)
    )


async def whole(upstream: Upstream, target: EngineEndpoint, asked: EngineRequest | None = None) -> bytes:
    answer = await upstream.open(target, asked or request())
    try:
        body = answer.first
        while chunk := await answer.readany():
            body += chunk
        return body
    finally:
        answer.close()


FORMS = {
    "length": [PLAIN],
    "bytewise": [bytes([byte]) for byte in PLAIN],
    "chunked": [CHUNKED, b"2\r\nhe\r\n", b"3\r\nllo\r\n0\r\n\r\n"],
    "trailers": [CHUNKED, b"5\r\nhello\r\n0\r\nx-late: 1\r\n\r\n"],
    "interim": [b"HTTP/1.1 100 Continue\r\n\r\n", PLAIN],
}


@pytest.mark.parametrize("pieces", FORMS.values(), ids=FORMS)
async def test_an_answer_is_read_whole_and_its_connection_kept(pieces: list[bytes]) -> None:
    async with running(*pieces) as (engine, upstream, target):
        assert [await whole(upstream, target) for _ in range(3)] == [b"hello"] * 3
        assert engine.connections == 1
        assert engine.requests[0].startswith(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:")
        assert b"content-length: 2\r\n" in engine.requests[0]


ENDS = {
    "no length": [b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", None],
    "closed": [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello", None],
    "http/1.0": [b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", None],
    "more than was asked for": [PLAIN + PLAIN],
    "llama.cpp's stream": [LLAMACPP, b"5\r\nhello\r\n0\r\n\r\n"],
}


@pytest.mark.parametrize("pieces", ENDS.values(), ids=ENDS)
async def test_an_answer_whose_connection_cannot_be_used_again(pieces: list[bytes | None]) -> None:
    async with running(*pieces) as (engine, upstream, target):
        assert [await whole(upstream, target) for _ in range(2)] == [b"hello"] * 2
        assert engine.connections == 2


async def test_bytes_on_an_idle_connection_are_not_taken_for_the_next_answer() -> None:
    async with running(PLAIN, b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil") as (
        engine,
        upstream,
        target,
    ):
        assert await whole(upstream, target) == b"hello"
        await asyncio.sleep(0.05)
        assert await whole(upstream, target) == b"hello"
        assert engine.connections == 2


FAULTS = {
    "no http": [b"hello\r\n\r\n"],
    "a tls alert": [b"\x15\x03\x01\x00\x02\x02\x16"],
    "endless head": [b"HTTP/1.1 200 OK\r\nx: " + b"a" * (HEAD_BYTES + 1)],
    "closed at once": [None],
    "half a head": [b"HTTP/1.1 200 OK\r\ncontent-", None],
    "switching protocols": [
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        None,
    ],
    "two lengths": [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello"],
    "length and chunks": [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nhello"],
}


@pytest.mark.parametrize("pieces", FAULTS.values(), ids=FAULTS)
async def test_a_faulty_answer_is_a_lost_engine(pieces: list[bytes | None]) -> None:
    async with running(*pieces) as (engine, upstream, target), asyncio.timeout(5):
        with pytest.raises(EngineLost) as caught:
            await upstream.open(target, request())
        assert caught.value.deliveries == 1
        assert engine.connections == 1


CUT = {
    "short": [b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello", None],
    "chunks without an end": [CHUNKED + b"5\r\nhello\r\n", None],
    "a chunk that is none": [CHUNKED + b"5\r\nhello\r\n", b"zz\r\n"],
}


@pytest.mark.parametrize("pieces", CUT.values(), ids=CUT)
@pytest.mark.parametrize("pumped", [False, True])
async def test_an_answer_that_is_cut_off_is_never_taken_for_a_whole_one(
    pieces: list[bytes | None], pumped: bool
) -> None:
    async with running(*pieces) as (_, upstream, target), asyncio.timeout(5):
        answer = await upstream.open(target, request())
        assert answer.first == b"hello"
        with pytest.raises(EngineConnectionLost):
            await (answer.pump(lambda _: True, _never) if pumped else _read(answer))
        answer.close()


async def test_an_answer_to_head_has_no_body() -> None:
    async with running(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n") as (_, upstream, target):
        assert await whole(upstream, target, request(b"", "HEAD")) == b""


async def test_an_engine_may_refuse_a_long_body_before_its_end() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await asyncio.sleep(0.5)  # without reading the rest
        writer.close()

    async with listening(serve) as (upstream, target), asyncio.timeout(5):
        answer = await upstream.open(target, request(b"x" * (32 << 20)))
        assert (answer.status, answer.first) == (413, b"no")
        answer.close()


async def test_a_slow_client_makes_the_engine_wait() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 67108864\r\n\r\n")
        for _ in range(64):
            writer.write(b"x" * (1 << 20))
            await writer.drain()
            sent += 1

    resumed, taken = asyncio.Event(), 0

    def sink(chunk: bytes) -> bool:
        nonlocal taken
        taken += len(chunk)
        return resumed.is_set()

    async with listening(serve) as (upstream, target):
        answer = await upstream.open(target, request())
        pump = asyncio.create_task(answer.pump(sink, _waits(resumed)))
        await asyncio.sleep(0.3)
        assert sent < 32  # what sockets hold
        assert taken < 8 << 20
        resumed.set()
        async with asyncio.timeout(10):
            await pump
        assert len(answer.first) + taken == 64 << 20
        answer.close()


async def test_an_idle_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkfleet.gateway.engine.engine_pool.IDLE_S", 0.05)
    async with running(PLAIN) as (engine, upstream, target):
        await whole(upstream, target)
        await asyncio.sleep(0.2)
        await whole(upstream, target)
        assert engine.connections == 2


async def test_an_answer_that_is_left_closes_its_connection() -> None:
    async with running(CHUNKED, b"1\r\nx\r\n") as (engine, upstream, target):
        answer = await upstream.open(target, request())
        answer.close()
        answer.close()
        await asyncio.sleep(0.05)
        assert answer.connection.transport.is_closing()
        again = await upstream.open(target, request())
        again.close()
        assert engine.connections == 2


async def _read(answer: UpstreamAnswer) -> None:
    while await answer.readany():
        pass


async def _never() -> None:
    raise AssertionError("no client is slow")


def _waits(event: asyncio.Event) -> Callable[[], Any]:
    async def wait() -> None:
        await event.wait()

    return wait
