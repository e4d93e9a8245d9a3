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


NO_TEMPLATE = "default chat template is no longer allowed, so you must provide one"


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        (200, {"choices": []}, ""),
        (400, {"error": {"message": f"{NO_TEMPLATE}\n None", "code": 400}}, f"HTTP 400: {NO_TEMPLATE} None"),
        (400, {"object": "error", "message": NO_TEMPLATE}, f"HTTP 400: {NO_TEMPLATE}"),
        (500, {"error": "undefined"}, "HTTP 500: undefined"),
        (500, ["x"], 'HTTP 500: ["x"]'),
        (500, None, "HTTP 500: Internal Server Error"),
        (503, {"message": "The request queue is full."}, ""),
        (429, {}, ""),
    ],
)
async def test_a_refused_chat_has_the_engines_own_words(status, answer, words):
    """Only plain completions were tried: a checkpoint without a chat template was ready, and answered 400 to each chat."""
    asked = []

    async def chat(request):
        asked.append(await request.json())
        if answer is None:
            return web.Response(status=status, text="Internal Server Error")
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session:
        assert await Probe(session, f"http://127.0.0.1:{port}", "m", "token").chat_refusal() == words
    await runner.cleanup()
    assert asked[0]["messages"] == [{"role": "user", "content": module.PROMPT}]


async def test_a_chat_without_an_answer_is_no_end(monkeypatch):
    async def stuck(_):
        await asyncio.Event().wait()

    app = web.Application()
    app.router.add_post("/v1/chat/completions", stuck)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    monkeypatch.setattr(module, "MEASURE_S", 0.1)
    async with aiohttp.ClientSession() as session:
        probe = Probe(session, f"http://127.0.0.1:{port}", "m", "token")
        assert await probe.chat_refusal() == "no answer in 0 s"
        await runner.cleanup()
        assert "Cannot connect" in await probe.chat_refusal()
