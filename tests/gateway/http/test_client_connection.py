"""Abuse of a connection by a client without a key: memory held by requests sent ahead, answers that are cut."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from raw_client import Start, answers, exchange, hello

from sparkfleet.gateway.asgi import Receive, Scope, Send, respond
from sparkfleet.gateway.http import server_socket
from sparkfleet.gateway.http.client_connection import HEADERS, ClientConnection
from sparkfleet.gateway.http.http_server import Server
from sparkfleet.gateway.http.sent_ahead import SENT_AHEAD

ONE = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"


def connection_of(server: Server) -> ClientConnection:
    (found,) = server._server.server_state.connections
    assert isinstance(found, ClientConnection)
    return found


class Gate:
    """An application whose first answer waits."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = 0, True
        while more:
            message = await receive()
            body, more = body + len(message.get("body", b"")), message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % body, "more_body": True})
        self.begun.set()
        await self.may_end.wait()
        await send({"type": "http.response.body", "body": b" end"})


async def test_requests_sent_ahead_have_a_bound_and_those_within_it_are_answered(start: Start) -> None:
    gate = Gate()
    server = await start(gate)
    asking = asyncio.create_task(exchange(server, ONE * 3000))
    await gate.begun.wait()
    assert len(connection_of(server)._waiting) == SENT_AHEAD
    gate.may_end.set()
    found = await asking
    assert found.count(b"HTTP/1.1 200 ") == SENT_AHEAD + 1
    last = found[found.rindex(b"HTTP/1.1 ") :]
    assert last.startswith(b"HTTP/1.1 429 ")
    error = json.loads(last.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "too_many_sent_ahead"
    assert "More than 16 requests" in error["message"]


@pytest.mark.parametrize(
    ("ahead", "answered"),
    [
        ((b"GET /b HTTP/1.1\r\na: " + b"a" * 20_000 + b"\r\n\r\n") * 10, 4),
        (b"POST /b HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n" + bytes(1_000_000), 0),
    ],
    ids=["heads", "a body"],
)
async def test_bytes_sent_ahead_have_a_bound(start: Start, ahead: bytes, answered: int) -> None:
    """Each answer, and each look for the end of the connection, has another part of them read."""
    gate = Gate()
    server = await start(gate)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(ONE)
    await gate.begun.wait()
    connection = connection_of(server)
    for at in range(0, len(ahead), 10_000):
        if connection._refusal is None:
            connection.flow.resume_reading()
            connection.data_received(ahead[at : at + 10_000])
    gate.may_end.set()
    async with asyncio.timeout(5):
        found = await reader.read()
    assert found.count(b"HTTP/1.1 200 ") == 1 + answered
    assert b"too_many_sent_ahead" in found[found.rindex(b"HTTP/1.1 ") :]
    writer.close()


@pytest.mark.parametrize("path", [b"/", b"/a"])
async def test_a_long_head_that_arrives_at_once_is_refused(start: Start, path: bytes) -> None:
    server = await start(head_bytes=4096)
    refused = await exchange(server, b"GET " + path + b" HTTP/1.1\r\na: " + b"a" * 5000 + b"\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_body_before_it_is_no_part_of_a_head(start: Start, size: int) -> None:
    gate = Gate()
    server = await start(gate)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"POST /a HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size + bytes(size) + b"GET /b HT")
    await gate.begun.wait()
    writer.write(b"TP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    gate.may_end.set()
    async with asyncio.timeout(5):
        found = await reader.read()
    assert found.count(b"HTTP/1.1 200 ") == 2
    assert found.count(b"%d\r\n" % size) >= 1
    writer.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n" + ONE, b"400"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (HEADERS + 2), b"431"),
    ],
    ids=["version", "tunnel", "body", "headers"],
)
async def test_a_refusal_comes_behind_the_answer_that_is_under_way(
    start: Start, sent: bytes, status: bytes
) -> None:
    gate = Gate()
    server = await start(gate)
    asking = asyncio.create_task(exchange(server, ONE + sent))
    await gate.begun.wait()
    gate.may_end.set()
    first, second = (await asking).split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"200 ")
    assert first.endswith(b"\r\n0\r\n\r\n")
    assert second.startswith(status)


async def test_a_head_without_end_behind_an_answer_is_refused_behind_it(start: Start) -> None:
    gate = Gate()
    server = await start(gate, head_bytes=4096)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(ONE + b"GET /")
    await gate.begun.wait()
    async with asyncio.timeout(5):
        while connection_of(server)._refusal is None:
            writer.write(b"a" * 1000)
            await asyncio.sleep(0.001)
        gate.may_end.set()
        found = await reader.read()
    assert [one[:3] for one in found.split(b"HTTP/1.1 ")[1:]] == [b"200", b"431"]
    writer.close()


async def test_who_still_sends_sees_the_refusal(start: Start) -> None:
    """Closed at once, the connection would be reset by what arrives, and the refusal lost."""
    server = await start()
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"no HTTP\r\n\r\n" + bytes(4 << 20))
    async with asyncio.timeout(5):
        await writer.drain()
        found = await reader.read()
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b"bad_request" in found
    writer.close()


async def test_headers_have_a_number(start: Start) -> None:
    server = await start()
    most = b"GET /a HTTP/1.1\r\nconnection: close\r\n" + b"a: b\r\n" * (HEADERS - 1)
    assert b" 200 " in await exchange(server, most + b"\r\n")
    refused = await exchange(server, most + b"a: b\r\n" * 10_000 + b"\r\n")
    assert refused.startswith(b"HTTP/1.1 431 ")


async def test_what_is_left_for_a_client_that_takes_nothing_ends(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_socket, "STALLED_MS", 300)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, [], bytes(32 << 20))

    server = await start(app)
    with socket.create_connection((server.host, server.port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
        async with asyncio.timeout(10):
            while not server._server.server_state.connections:
                await asyncio.sleep(0.01)
            while server._server.server_state.connections:
                await asyncio.sleep(0.01)


async def test_an_address_in_the_target_is_that_of_this_server(start: Start) -> None:
    """RFC 9112, 3.2.2: a server has to accept the form that a proxy is asked with."""
    server = await start(hello)
    sent = b"GET http://x%b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert await answers(server, sent % b"/a") == [b"/a"]
    assert await answers(server, sent % b"") == [b"/"]
