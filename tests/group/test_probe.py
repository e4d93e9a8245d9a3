import asyncio

import aiohttp
import pytest
from aiohttp import web

from sparkfleet.errors import EngineError
from sparkfleet.group import probe as module
from sparkfleet.group.probe import Probe


async def test_the_reason_for_which_it_is_not_healthy_is_known(monkeypatch):
    answers = iter([web.Response(status=404), None, web.Response()])

    async def health(_):
        if (answer := next(answers)) is None:
            await asyncio.Event().wait()
        return answer

    app = web.Application()
    app.router.add_get("/healthz", health)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session:
        probe = Probe(session, f"http://127.0.0.1:{port}", "m", "token")
        assert not await probe.healthy("/healthz")
        assert probe.unhealthy == "GET /healthz returns 404"
        monkeypatch.setattr(module, "HEALTH_ANSWER_S", 0.1)
        assert not await probe.healthy("/healthz")
        assert probe.unhealthy == "GET /healthz takes longer than 0 s"
        monkeypatch.setattr(module, "HEALTH_ANSWER_S", 5.0)
        assert await probe.healthy("/healthz")
        assert probe.unhealthy == ""
        probe.unhealthy = "an earlier answer"
        await runner.cleanup()
        assert not await probe.healthy("/healthz")
        assert probe.unhealthy == ""


async def test_an_engine_that_is_too_slow_has_the_time_and_what_arrived(monkeypatch):
    async def stuck(_):
        await asyncio.Event().wait()

    app = web.Application()
    app.router.add_post("/v1/completions", stuck)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    monkeypatch.setattr(module, "MEASURE_S", 0.1)
    async with aiohttp.ClientSession() as session:
        probe = Probe(session, f"http://127.0.0.1:{port}", "m", "token")
        with pytest.raises(EngineError, match=rf": 0 of {module.MEASURED_TOKENS} tokens in 0 s\."):
            await probe.measure()
        with pytest.raises(EngineError, match=r": no answer of /v1/completions in 0 s\."):
            await probe.generated("a", 4)
    await runner.cleanup()
