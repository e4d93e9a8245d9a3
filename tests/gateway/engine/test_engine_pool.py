"""Connections to engines between requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import uvloop

from sparkfleet.engines.fake import FakeEngine, InjectedFault
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.engine.engine_pool import EngineLost, EnginePool
from sparkfleet.gateway.engine.upstream import EngineRequest, Upstream
from sparkfleet.gateway.errors.api_error import ApiError

if TYPE_CHECKING:
    from conftest import OpenDoor


def request(body: bytes = b'{"model": "tiny"}') -> EngineRequest:
    return EngineRequest(
        id="req-1", method="POST", target="/v1/completions", headers=(), body=RequestBody(body)
    )


async def test_connections_are_used_again() -> None:
    async with FakeEngine(model="tiny") as engine:
        upstream = Upstream()
        for _ in range(3):
            answer = await upstream.open(EngineEndpoint(url=engine.url), request())
            while await answer.readany():
                pass
            answer.close()
        peers = {made.transport.get_extra_info("peername") for made in engine.requests if made.transport}
        assert len(engine.requests) == 3
        assert len(peers) == 1
        await upstream.aclose()


async def test_a_node_that_vanishes_is_noticed_by_the_kernel() -> None:
    async with FakeEngine(model="tiny", fault=InjectedFault(kind="hang", after=1)) as engine:
        upstream = Upstream()
        body = b'{"model": "tiny", "stream": true}'
        answer = await upstream.open(EngineEndpoint(url=engine.url), request(body))
        peer = answer.connection.transport.get_extra_info("socket")
        assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        assert [peer.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options] == [10, 5, 3]
        answer.close()
        await upstream.aclose()


async def test_nothing_is_left_of_an_engine_that_is_gone() -> None:
    """Each start of an engine has another port, and a gateway runs for months."""
    pool = EnginePool()
    async with FakeEngine(model="tiny") as engine:
        url = engine.url
        upstream = Upstream()
        upstream._pool = pool
        for _ in range(2):
            answer = await upstream.open(EngineEndpoint(url=url), request())
            while await answer.readany():
                pass
            answer.close()
        assert len(pool._idle) == 1
    while any(kept.is_free for idle in pool._idle.values() for kept in idle):
        await asyncio.sleep(0.01)
    with pytest.raises(EngineLost):
        await pool.take(url, fresh=False)
    assert not pool._idle
    await upstream.aclose()


@contextlib.contextmanager
def no_file_left() -> Iterator[None]:
    """Lets this process open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_gateway_without_a_file_has_lost_no_engine(run: Callable[..., None], host: str) -> None:
    async def take() -> None:
        pool = EnginePool()
        with no_file_left():
            await pool.take(f"http://{host}:1", fresh=True)

    with pytest.raises(ApiError, match="no file left") as caught:
        run(take())
    assert (caught.value.status, caught.value.kind) == (503, "no_files")


async def test_a_gateway_without_a_file_opens_no_circuit(
    open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    """Healthy groups counted as failing, and stayed so once there were files again."""
    door = await open_door()
    assert (await door.post())[0] == 200
    door.gateway.proxy.upstream._pool.close()
    await asyncio.sleep(0.05)  # its file is free after a turn of the loop
    with no_file_left():
        for _ in range(8):
            status, headers, body = await door.post()
            assert (status, json.loads(body)["error"]["code"]) == (503, "no_files")
            assert headers["retry-after"] == "5"
    assert door.value("sparkfleet_errors_total", model="tiny", kind="no_files") == 8
    assert "no file left" in caplog.text
    assert not door.gateway.failing_groups
    assert (await door.post())[0] == 200
