"""A forwarder lets through what carries the token, and answers everything else itself."""

import asyncio
import socket
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from rank_processes import IDLE

from sparkfleet.runtime import forwarder
from sparkfleet.runtime.base import Phase
from sparkfleet.runtime.forwarder import Forwarder, ForwardOrder
from sparkfleet.runtime.ports import free_port

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


@asynccontextmanager
async def forwarded(metrics_path="/metrics", engine=True):
    """(port of the forwarder, what the engine behind it got)."""
    got = []

    async def serve(reader, writer):
        while data := await reader.read(65536):
            got.append(data)
            writer.write(ANSWER)
            if b"connection: close" in data:
                break
        got.append(b"")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = server.sockets[0].getsockname()[1]
    if not engine:
        server.close()
    port = free_port()
    one = Forwarder(ForwardOrder("127.0.0.1", port, target, "tok", "met former", metrics_path))
    await one.open()
    try:
        yield port, got
    finally:
        await one.close()
        server.close()


async def ask(port, *requests):
    """The answer to requests on one connection, up to its end or a pause."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        for request in requests:
            writer.write(request)
            try:
                answer += await asyncio.wait_for(reader.read(65536), 1)
            except (TimeoutError, ConnectionError):
                break
    finally:
        writer.close()
    return answer


def request(path="/v1/models", token="", method="GET", more=b""):
    said = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{said}\r\n".encode() + more


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/health", "/"])
@pytest.mark.parametrize("token", ["", "no", "tok2", "met "])
async def test_without_the_token_the_engine_gets_nothing(path, token):
    if (path, token.strip()) == ("/metrics", "met"):
        return
    async with forwarded() as (port, got):
        assert (await ask(port, request(path, token))).startswith(b"HTTP/1.1 401 ")
        assert got == []


async def test_with_the_token_bytes_pass_as_they_are():
    async with forwarded() as (port, got):
        first, second = request("/v1/completions", "tok", "POST", b"body"), request("/v1/models", "tok")
        assert await ask(port, first, second) == ANSWER * 2
        await asyncio.sleep(0.05)
        assert got == [first, second, b""], "the engine learns that its client is gone"


async def test_the_metrics_token_gets_a_request_of_ours_and_no_second_one():
    async with forwarded() as (port, got):
        answer = await ask(
            port, request("/metrics", "met", more=request("/v1/models")), request("/v1/models")
        )
        assert answer == ANSWER
        assert [data.split(b" HTTP")[0] for data in got if data] == [b"GET /metrics"]
        assert b"\r\nauthorization: Bearer tok\r\n" in got[0], "an engine may have the token as its key"
        assert (await ask(port, request("/v1/models", "met"))).startswith(b"HTTP/1.1 401 ")
        assert (await ask(port, request("/metrics", "met", "POST"))).startswith(b"HTTP/1.1 401 ")


async def test_while_the_secrets_change_the_former_metrics_token_is_good_too():
    async with forwarded() as (port, _):
        assert await ask(port, request("/metrics", "former")) == ANSWER
        assert (await ask(port, request("/metrics", "met former"))).startswith(b"HTTP/1.1 401 ")


async def test_an_engine_without_metrics_opens_nothing_to_the_metrics_token():
    async with forwarded(metrics_path="") as (port, got):
        assert (await ask(port, request("/", "met"))).startswith(b"HTTP/1.1 401 ")
        assert got == []


async def test_an_engine_that_does_not_listen_yet_is_a_503():
    async with forwarded(engine=False) as (port, _):
        assert (await ask(port, request(token="tok"))).startswith(b"HTTP/1.1 503 ")


async def test_two_tokens_are_none():
    async with forwarded() as (port, got):
        twice = b"GET / HTTP/1.1\r\nauthorization: Bearer tok\r\nAuthorization: Bearer no\r\n\r\n"
        assert (await ask(port, twice)).startswith(b"HTTP/1.1 401 ")
        assert got == []


async def test_who_sends_no_request_is_cut(monkeypatch):
    monkeypatch.setattr(forwarder, "_HEAD_S", 0.2)
    async with forwarded() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 2) == b""
        writer.close()


async def test_silent_connections_of_others_keep_nobody_out(monkeypatch):
    """The oldest of the address that has the most is ended: neither the newest, nor the only one of another address."""
    monkeypatch.setattr(forwarder, "_STRANGERS", 3)
    async with forwarded() as (port, _):
        slow = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.3", 0))
        silent = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(2)
        ]
        assert await ask(port, request(token="tok")) == ANSWER
        with suppress(ConnectionError):
            assert await asyncio.wait_for(silent[0][0].read(), 2) == b""
        for reader, writer in (slow, silent[1]):
            writer.write(request(token="tok"))
            assert await asyncio.wait_for(reader.read(65536), 2) == ANSWER
            writer.close()
        silent[0][1].close()


async def test_a_head_without_an_end_is_cut():
    async with forwarded() as (port, got):
        assert await ask(port, b"GET / HTTP/1.1\r\nx: " + b"a" * 200_000) == b""
        assert got == []


SERVES = """
import http.server
class Open(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('content-length', '6')
        self.end_headers()
        self.wfile.write(b'secret')
    def log_message(self, *_): print(dict(self.headers), flush=True)
server = http.server.ThreadingHTTPServer(('127.0.0.1', %d), Open)
tell(os.getpid())
server.serve_forever()
"""


async def test_an_engine_without_a_token_is_behind_a_forwarder(
    tmp_path, runtime, running, herald, make_spec, ended
):
    host, port, target = "127.0.0.2", free_port("127.0.0.2"), free_port()
    forward = {"host": host, "target_port": target, "token": "tok-1234", "metrics_token": "met-1234"}
    rank = await running(make_spec(herald.script(SERVES % target), port=port, forward=forward))
    await herald.hear_pid()

    async def ask(**headers):
        async with aiohttp.request("GET", f"http://{host}:{port}/", headers=headers) as answer:
            return answer.status, await answer.text()

    assert (await ask())[0] == 401
    assert (await ask(authorization="Bearer met-1234"))[0] == 401
    assert await ask(authorization="Bearer tok-1234") == (200, "secret")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.3", target), timeout=1)
    await rank.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port), timeout=1)
    log = (tmp_path / "logs" / "rank.log").read_text()
    assert "tok-1234" not in log


async def test_a_forwarder_whose_port_is_taken_is_an_exit_with_its_reason(runtime, herald, make_spec):
    with socket.create_server(("127.0.0.2", 0)) as taken:
        forward = {"host": "127.0.0.2", "target_port": 1, "token": "t" * 8, "metrics_token": "m" * 8}
        spec = make_spec(herald.script(IDLE), port=taken.getsockname()[1], forward=forward)
        started = await runtime.start(spec)
        assert started.phase is Phase.EXITED
        assert "127.0.0.2" in started.reason
