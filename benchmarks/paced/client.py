"""The clients of a load: one connection each, requests one after another, at as little cost as Python allows."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

import httptools

from paced.engine import TOKEN

ANSWER_S = 60.0
_SHOWN = 300
_KEPT = 50
"""Requests on one connection of `mixed_requests`."""


@dataclass
class Samples:
    """Seconds, and failures with their reason."""

    ttft: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    answers: int = 0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Side:
    """One way to the engine."""

    url: str
    key: str = ""
    model: str = "fake"

    def request(self, *, stream: bool, tokens: int) -> bytes:
        """The bytes of one request."""
        asked: dict[str, object] = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Describe the cable between the two machines."}],
            "max_tokens": tokens,
        }
        if stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps(asked, separators=(",", ":")).encode()
        at = urlsplit(self.url)
        key = f"authorization: Bearer {self.key}\r\n" if self.key else ""
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {at.netloc}\r\n{key}content-type: application/json\r\n"
            f"accept: */*\r\nuser-agent: paced/1\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class Connection(asyncio.Protocol):
    """Sends requests and records the arrival of each token."""

    def __init__(self) -> None:
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.arrivals: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of no class of asyncio's

    async def ask(self, request: bytes) -> float:
        """Sends a request and waits for the end of its answer. Returns the time at which it was sent."""
        self._parser = httptools.HttpResponseParser(self)
        self.arrivals = []
        self.body = b""
        self._tail = b""
        self._ended = asyncio.get_running_loop().create_future()
        sent = perf_counter()
        self._transport.write(request)
        async with asyncio.timeout(ANSWER_S):
            await self._ended
        return sent

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    @property
    def is_whole(self) -> bool:
        """True if a stream ended as it should."""
        return b"[DONE]" in self._tail

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._now = perf_counter()
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        text = self._tail[1 - len(TOKEN) :] + body
        self.arrivals += [self._now] * text.count(TOKEN)
        self._tail = (self._tail + body)[-64:]
        if self.status >= 400:
            self.body = (self.body + body)[:_SHOWN]

    def on_message_complete(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_exception(ConnectionError(f"cut: {exc}"))


async def connect(side: Side) -> Connection:
    """A new connection."""
    at = urlsplit(side.url)
    _, made = await asyncio.get_running_loop().create_connection(Connection, at.hostname, at.port)
    return made


async def streams(side: Side, count: int, answers: int, tokens: int, span_s: float) -> Samples:
    """Keeps `count` streams open until each has had `answers`. They begin spread over `span_s`."""
    samples = Samples()
    clients = await _connected(side, count, samples)
    await asyncio.gather(
        *(
            _one_client(client, side.request(stream=True, tokens=tokens), answers, tokens, samples, wait)
            for client, wait in zip(clients, _spread(len(clients), span_s), strict=True)
        )
    )
    for client in clients:
        client.close()
    return samples


def _spread(count: int, span_s: float) -> list[float]:
    return [span_s * index / count for index in range(count)]


async def _connected(side: Side, count: int, samples: Samples) -> list[Connection]:
    """Connections that have had one short answer each, a few at a time."""
    turns = asyncio.Semaphore(16)
    warm = side.request(stream=False, tokens=1)

    async def one() -> Connection | None:
        async with turns:
            try:
                client = await connect(side)
                await client.ask(warm)
            except (OSError, TimeoutError) as error:
                samples.failed.append(repr(error))
                return None
            return client

    return [client for client in await asyncio.gather(*(one() for _ in range(count))) if client]


async def _one_client(
    client: Connection, request: bytes, answers: int, tokens: int, samples: Samples, wait_s: float
) -> None:
    await asyncio.sleep(wait_s)
    for _ in range(answers):
        samples.answers += 1
        try:
            sent = await client.ask(request)
        except (OSError, TimeoutError) as error:
            samples.failed.append(repr(error))
            return
        if client.status != 200 or len(client.arrivals) != tokens or not client.is_whole:
            samples.failed.append(f"{client.status}, {len(client.arrivals)} tokens: {client.body!r}")
            continue
        at = client.arrivals
        samples.ttft.append(at[0] - sent)
        samples.gaps += [b - a for a, b in itertools.pairwise(at)]


async def small_requests(side: Side, clients: int, seconds: float) -> tuple[float, int]:
    """Requests per second with short answers at once, and failures."""
    failed = Samples()
    connected = await _connected(side, clients, failed)
    request = side.request(stream=False, tokens=1)
    until = perf_counter() + seconds
    done = 0

    async def one(client: Connection) -> None:
        nonlocal done
        while perf_counter() < until:
            await client.ask(request)
            if client.status == 200:
                done += 1
            else:
                failed.failed.append(f"{client.status}: {client.body!r}")

    begun = perf_counter()
    await asyncio.gather(*(one(client) for client in connected))
    took = perf_counter() - begun
    for client in connected:
        client.close()
    return done / took, len(failed.failed)


async def mixed_requests(side: Side, clients: int, total: int, tokens: int) -> int:
    """Sends so many requests, every other one a stream, on connections that carry `_KEPT` each. Returns the failures."""
    asked = [side.request(stream=stream, tokens=tokens) for stream in (True, False)]
    left, failed = iter(range(total)), 0

    async def one() -> None:
        nonlocal failed
        client, carried = await connect(side), 0
        for number in left:
            if carried == _KEPT:
                client.close()
                client, carried = await connect(side), 0
            carried += 1
            await client.ask(asked[number % 2])
            failed += client.status != 200
        client.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return failed
