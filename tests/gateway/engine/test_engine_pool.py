"""Connections to engines between requests."""

from __future__ import annotations

import asyncio
import socket

import pytest

from sparkfleet.engines.fake import FakeEngine, InjectedFault
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.engine.engine_pool import EngineLost, EnginePool
from sparkfleet.gateway.engine.upstream import EngineRequest, Upstream


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
