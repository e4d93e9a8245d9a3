"""The listening socket itself: what it does to those who speak no HTTP, too much of it, or too slowly."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import socket
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from raw_client import Start, answers, exchange

from sparkfleet.engines.fake import Pace
from sparkfleet.errors import ControlError
from sparkfleet.gateway.accounting.request_record import RequestRecord
from sparkfleet.gateway.asgi import ClientGone, Receive, Scope, Send, WhileConnected, direct_writer, respond
from sparkfleet.gateway.client_request import ClientRequest
from sparkfleet.gateway.engine.connection import EngineConnection
from sparkfleet.gateway.engine.exchange import EngineExchange
from sparkfleet.gateway.http import client_connection, http_answers
from sparkfleet.gateway.http.http_server import Server
from sparkfleet.gateway.http.sent_ahead import SENT_AHEAD

if TYPE_CHECKING:
    from conftest import Door


async def get(server: Server, path: str = "/a") -> str:
    async with aiohttp.request("GET", server.url + path) as answer:
        return await answer.text()


async def test_it_answers_where_it_says(start: Start) -> None:
    server = await start()
    assert server.url == f"http://127.0.0.1:{server.port}"
    assert server.port > 0
    assert await get(server) == "/a"


async def test_it_answers_over_ipv6(start: Start) -> None:
    try:
        server = await start(host="::1")
    except ControlError:
        pytest.skip("this machine has no IPv6")
    assert server.url == f"http://[::1]:{server.port}"
    assert await get(server) == "/a"


async def test_two_servers_share_a_port_and_one_may_leave(start: Start) -> None:
    first = await start()
    second = await start(port=first.port)
    await first.aclose()
    assert await get(second) == "/a"


async def test_who_stops_accepting_leaves_the_port_to_the_other(start: Start) -> None:
    first = await start()
    second = await start(port=first.port)
    first.stop_accepting()
    for _ in range(8):
        assert await get(second) == "/a"


async def test_a_port_that_is_taken_is_an_error_with_a_remedy(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ControlError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"
        ) as e:
            await start(port=port)
    assert "ss -ltnp" in e.value.do


async def test_an_address_that_is_not_ours_is_an_error(start: Start) -> None:
    with pytest.raises(ControlError, match="cannot listen"):
        await start(host="192.0.2.1")


async def test_without_sharing_a_second_server_is_refused(start: Start) -> None:
    first = await start(reuse_port=False)
    with pytest.raises(ControlError):
        await start(port=first.port, reuse_port=False)


async def test_signals_stay_with_the_process_it_lives_in(start: Start) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    await start()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_connections_carry_tokens_at_once_and_notice_dead_peers(start: Start) -> None:
    options: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        connection = next(iter(server._server.server_state.connections)).transport.get_extra_info("socket")
        options.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        options.append(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        await respond(send, 200, [], b"")

    server = await start(app)
    await get(server)
    assert all(options)
    assert len(options) == 2


async def test_closing_lets_an_answer_end(start: Start) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await may_end.wait()
        await respond(send, 200, [], b"whole")

    server = await start(app)
    asking = asyncio.create_task(get(server))
    await begun.wait()
    closing = asyncio.create_task(server.aclose())
    await asyncio.sleep(0)
    may_end.set()
    assert await asking == "whole"
    await closing


async def test_closing_cancels_what_does_not_end(start: Start) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    server = await start(app)
    asking = asyncio.create_task(get(server))
    await begun.wait()
    await server.aclose(timeout_s=0.01)
    await cancelled.wait()
    assert await asking == "Internal Server Error"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx-a: b\rX-Evil: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx a: b\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_told_so_in_json(start: Start, sent: bytes) -> None:
    server = await start()
    head, _, body = (await exchange(server, sent)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert await get(server) == "/a"


@pytest.mark.parametrize("sent", [b"GET /" + b"a" * 5000, b"GET / HTTP/1.1\r\nx: " + b"a" * 5000])
async def test_a_head_without_end_is_refused(start: Start, sent: bytes) -> None:
    server = await start(head_bytes=4096)
    head, _, body = (await exchange(server, sent)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "headers_too_large"


@pytest.mark.parametrize(
    "sent", [b"", b"GET", b"GET / HTTP/1.1\r\nhost: x\r\n", b"\r\n"], ids=["none", "G", "half", "nl"]
)
async def test_a_head_that_trickles_is_given_up(start: Start, sent: bytes) -> None:
    server = await start(head_s=0.05)
    assert await exchange(server, sent) == b""


async def test_the_clock_stops_with_the_head_and_starts_again_with_the_next_one(start: Start) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.1)  # an answer may take longer than a head
        await respond(send, 200, [], b"ok")

    server = await start(app, head_s=0.05)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200 ")
    writer.write(b"GET / HT")
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


async def test_requests_of_one_connection_are_answered_in_turn(start: Start) -> None:
    server = await start()
    one = b"GET /%d HTTP/1.1\r\nhost: x\r\n"
    answers = await exchange(
        server, one % 1 + b"\r\n" + one % 2 + b"\r\n" + one % 3 + b"connection: close\r\n\r\n"
    )
    assert [answers.count(b"\r\n\r\n/%d" % i) for i in (1, 2, 3)] == [1, 1, 1]
    assert answers.index(b"/1") < answers.index(b"/2") < answers.index(b"/3")


async def test_what_is_left_of_a_body_that_was_refused_is_dropped(start: Start) -> None:
    """The client sees the refusal although it is still sending, and the connection goes on."""
    server = await start()
    first = b"POST /1 HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n"
    last = b"GET /2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    answers = await exchange(server, first + b"x" * 300_000 + last)
    assert answers.count(b"HTTP/1.1 200 ") == 2


# Connections


async def test_a_full_server_says_so_and_one_address_leaves_room(start: Start) -> None:
    server = await start(connections=4)
    held = [await asyncio.open_connection(server.host, server.port) for _ in range(2)]
    reader, writer = await asyncio.open_connection(server.host, server.port)
    async with asyncio.timeout(5):
        refused = await reader.read()
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 2" in refused
    assert b"too_many_connections" in refused
    writer.close()
    for _, open_one in held:
        open_one.close()
        await open_one.wait_closed()
    async with asyncio.timeout(5):
        while (await exchange(server, b"GET /a HTTP/1.0\r\n\r\n"))[:12] != b"HTTP/1.1 200":
            await asyncio.sleep(0.01)


# HTTP/1.0


async def test_an_old_client_gets_no_chunks(start: Start) -> None:
    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"a/b")]})
        for part in (b"one ", b"", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b" three"})

    server = await start(streaming)
    answer = await exchange(server, b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert b"connection: close" in head
    assert body == b"one two three"
    new = await exchange(server, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert b"transfer-encoding: chunked" in new


async def test_an_old_client_may_keep_a_connection_with_lengths(start: Start) -> None:
    server = await start()
    answer = await exchange(
        server, b"GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\nGET /b HTTP/1.0\r\n\r\n"
    )
    assert b"content-length: 2" in answer
    assert answer.endswith(b"/b") or answer.endswith(b"/a")


async def test_what_has_ended_is_freed_without_a_search_for_cycles(door: Door) -> None:
    """Every request left 20 objects that referred to each other, and each search among them stopped all streams."""
    of_a_request = (http_answers.ClientAnswer, ClientRequest, RequestRecord, EngineExchange)
    kinds = (client_connection.ClientConnection, EngineConnection, *of_a_request)

    def alive() -> int:
        return sum(type(one) in kinds for one in gc.get_objects())  # isinstance() runs code of other objects

    gc.collect()
    before = alive()
    gc.disable()
    try:
        for stream in (True, False):
            assert (await door.post(stream=stream))[0] == 200
            assert (await door.post(model="none", stream=stream))[0] == 404
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                door.engine.pace = Pace(ttft_s=60)
                await door.post()
        await door.http.close()
        await door.engine.aclose()
        await door.gateway.aclose()
        async with asyncio.timeout(5):
            while alive() > before:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


# System calls


class Recorder:
    """A transport that notes its writes."""

    def __init__(self, transport: Any, writes: list[bytes]) -> None:
        self._transport = transport
        self._writes = writes

    def write(self, data: bytes) -> None:
        self._writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Bytes that the server has written, call by call."""
    made, found = client_connection.ClientConnection.connection_made, list[bytes]()

    def connection_made(self: Any, transport: Any) -> None:
        made(self, Recorder(transport, found))  # type: ignore[arg-type]

    monkeypatch.setattr(client_connection.ClientConnection, "connection_made", connection_made)
    return found


async def test_the_head_of_an_answer_leaves_with_the_first_part_of_its_body(
    start: Start, writes: list[bytes]
) -> None:
    server = await start()
    assert await get(server) == "/a"
    (whole,) = writes
    assert whole.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\ncontent-length: 2\r\n" in whole
    assert whole.endswith(b"\r\n\r\n/a")


async def test_parts_of_a_stream_leave_as_they_are_made(start: Start, writes: list[bytes]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        direct = direct_writer(scope)
        assert direct is not None
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert writes == []
        direct.write(b"one")
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    server = await start(app)
    assert await get(server) == "onetwo"
    first, second, end = writes
    assert b"\r\ntransfer-encoding: chunked\r\n" in first
    assert first.endswith(b"\r\n\r\n3\r\none\r\n")
    assert (second, end) == (b"3\r\ntwo\r\n", b"0\r\n\r\n")


async def test_an_answer_without_a_body_has_its_head(start: Start, writes: list[bytes]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 204, [], b"")

    server = await start(app)
    async with aiohttp.request("GET", server.url) as answer:
        assert answer.status == 204
    (head,) = writes
    assert b"chunked" not in head
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "messages",
    [
        [("start", [(b"x-a", b"1\r\nx-b: 2")])],
        [("start", [(b"x-a", b"\0")])],
        [("start", []), ("start", [])],
        [("body", b"a")],
        [("start", [(b"content-length", b"1")]), ("body", b"ab")],
        [("start", [(b"content-length", b"2")]), ("body", b"a")],
    ],
    ids=["line break", "NUL", "begun twice", "not begun", "too long", "too short"],
)
async def test_an_answer_that_is_none_never_reaches_a_client(
    start: Start, messages: list[tuple[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for kind, content in messages:
            if kind == "start":
                await send({"type": "http.response.start", "status": 200, "headers": content})
            else:
                await send({"type": "http.response.body", "body": content})

    answer = await exchange(await start(app), b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert answer == b"" or answer.startswith(b"HTTP/1.1 500")


async def test_who_asks_for_an_end_is_told_that_the_connection_closes(start: Start) -> None:
    answer = await exchange(await start(), b"GET /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert answer.count(b"connection: close\r\n") == 1
    assert answer.endswith(b"\r\n\r\n/a")


async def test_every_request_of_a_connection_is_watched_until_its_end(start: Start) -> None:
    """Also the first of two that a client sent at once: what it asked for ends when it hangs up."""
    ended: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        direct = direct_writer(scope)
        assert direct is not None
        try:
            async with WhileConnected(receive, direct):
                await asyncio.sleep(60)
        except ClientGone:
            ended.append(scope["path"])

    server = await start(app)
    _, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"GET /b HTTP/1.1\r\nhost: a\r\n\r\nGET /c HTTP/1.1\r\nhost: a\r\n\r\n")
    await asyncio.sleep(0.05)
    writer.close()
    async with asyncio.timeout(5):
        while "/b" not in ended:
            await asyncio.sleep(0.01)


async def told(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body and, then, the names of the headers."""
    body = b""
    while (message := await receive())["more_body"]:
        body += message["body"]
    names = b",".join(name for name, _ in scope["headers"])
    await respond(send, 200, [], b"%b %b" % (body + message["body"], names))


POST = b"POST /a HTTP/1.1\r\nhost: x\r\n"
LAST = b"GET /b HTTP/1.1\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "framing",
    [b"content-length: 5\r\n\r\nhello", b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
)
@pytest.mark.parametrize("name", [b"h2c", b"websocket"])
async def test_a_body_behind_an_offer_of_another_protocol_arrives(
    start: Start, framing: bytes, name: bytes
) -> None:
    """Java's HTTP client offers h2c with the first request of each connection."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + name + b"\r\nHTTP2-Settings: AAMAAABk\r\n"
    found = await answers(await start(told), POST + offer + framing + LAST)
    assert [one.split(b" ")[0] for one in found] == [b"hello", b""]


async def test_a_head_that_stays_incomplete_ends_its_connection_and_no_answer_before_it(start: Start) -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(10):
            await asyncio.sleep(0.1)
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    server = await start(slow, head_s=0.3)
    whole = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
    for before in (1, 2):
        answer = await exchange(server, before * whole + b"GET /b HTTP/1.1\r\nhost:")
        assert answer.count(b"\r\nx\r\n") == 10 * before
        assert answer.endswith(b"0\r\n\r\n")


LONG = b"x" * (1 << 20)


async def endless(scope: Scope, receive: Receive, send: Send) -> None:
    """An answer without an end: in parts, as an application sends it, or through the direct writer."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": LONG, "more_body": True})
    direct = direct_writer(scope) if scope["path"] == "/direct" else None
    async with WhileConnected(receive, direct):
        while True:
            if direct is None:
                await send({"type": "http.response.body", "body": LONG, "more_body": True})
            elif not direct.write(LONG):
                await direct.drained()


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1", b"GET /direct HTTP/1.1", b"GET / HTTP/1.0"])
async def test_a_client_that_takes_nothing_has_left_and_a_slow_one_has_not(
    start: Start, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """A stopped program's kernel still answers for it: its request had its slot on the engine for ever."""
    monkeypatch.setattr(http_answers, "STALLED_S", 0.3)
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await endless(scope, receive, send)
        finally:
            ended.set()

    server = await start(app)
    with socket.create_connection((server.host, server.port)) as client:
        client.setblocking(False)
        client.sendall(line + b"\r\nhost: x\r\n\r\n")
        for _ in range(20):
            await asyncio.sleep(0.1)
            with contextlib.suppress(BlockingIOError):
                client.recv(1 << 20)
        assert not ended.is_set(), "slow, and more slowly than anybody reads"
        async with asyncio.timeout(5):
            await ended.wait()


async def test_a_client_that_takes_less_than_the_kernel_holds_has_not_left(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel asks for more once a third of its megabytes is free: until then the program's own buffer stays as it is."""
    monkeypatch.setattr(http_answers, "STALLED_S", 1.0)
    server = await start(endless)
    with socket.create_connection((server.host, server.port)) as client:
        client.setblocking(False)
        client.sendall(b"GET /direct HTTP/1.1\r\nhost: x\r\n\r\n")
        for _ in range(25):
            await asyncio.sleep(0.2)
            assert len(client.recv(100_000)) > 0


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize(
    "rest",
    [
        b"\r\n",
        b"content-length: 5\r\n\r\nhello",
        b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 5\r\n\r\nhello",
    ],
)
async def test_a_request_for_a_tunnel_is_refused_and_the_server_goes_on(
    start: Start, version: bytes, rest: bytes
) -> None:
    """It is an upgrade without the header: its head was parsed again and again, and no other client was answered."""
    server = await start()
    answer = await exchange(server, b"CONNECT a:1 HTTP/" + version + b"\r\nhost: a:1\r\n" + rest)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert await get(server) == "/a"


async def test_an_offer_without_a_body_loses_no_request_behind_it(start: Start) -> None:
    offer = b"GET /a HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    assert len(await answers(await start(told), SENT_AHEAD * offer + LAST)) == SENT_AHEAD + 1


async def test_fields_behind_a_body_are_no_headers(start: Start) -> None:
    chunked = POST + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\ncontent-encoding: gzip\r\n\r\n"
    assert await answers(await start(told), chunked + LAST) == [
        b"hello host,transfer-encoding",
        b" connection",
    ]


@pytest.mark.parametrize("field", [b"a: b\r\n", b"aaaaaa"])
async def test_fields_behind_a_body_have_an_end(start: Start, field: bytes) -> None:
    server = await start(told, head_bytes=1000)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(POST + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\na: ")
    answer = asyncio.create_task(reader.read(12))
    async with asyncio.timeout(5):
        while not answer.done():
            await asyncio.sleep(0.001)
            writer.write(field)
    assert await answer == b"HTTP/1.1 431"
    writer.close()


async def test_long_chunks_are_no_head(start: Start) -> None:
    body = b"x" * 300_000
    chunked = (
        POST + b"transfer-encoding: chunked\r\n\r\n" + 3 * (b"493e0\r\n" + body + b"\r\n") + b"0\r\n\r\n"
    )
    assert (await answers(await start(told, head_bytes=1000), chunked + LAST))[0].startswith(3 * body)
