"""A question over a real HTTP server on loopback that streams as the gateway does."""

import asyncio
import json

import pytest
from aiohttp import web
from open_client import OpenClient
from statuses import deployment, fleet

from sparkfleet.errors import ControlError
from sparkfleet.fleet.clients.endpoint import _waits_for_start, ask_at, listed_state


def chunk(text="", **usage):
    event = {"choices": [{"delta": {"content": text}}] if text else []} | ({"usage": usage} if usage else {})
    return f"data: {json.dumps(event)}\n\n"


@pytest.fixture
async def endpoint():
    """endpoint(lines, or seconds to wait, status) → its URL; endpoint.requests are the bodies and keys that it received."""
    runners = []

    async def serve(*lines, status=200):
        async def answer(request):
            serve.requests.append((await request.json(), request.headers["authorization"]))
            response = web.StreamResponse(status=status)
            await response.prepare(request)
            for line in lines:
                if isinstance(line, float):
                    await asyncio.sleep(line)
                else:
                    await response.write(line.encode())
            return response

        async def listed(request):
            state = request.match_info["name"].removeprefix("org/")
            return (
                web.json_response({"id": "m", "state": state})
                if state != "gone"
                else web.Response(status=404)
            )

        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        app.router.add_get("/v1/models/{name:.+}", listed)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        site = web.TCPSite(runners[-1], "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runners[-1].addresses[0][1]}/v1"

    serve.requests = []
    yield serve
    for runner in runners:
        await runner.cleanup()


async def test_an_answer_is_passed_on_as_it_arrives_and_measured(endpoint):
    url = await endpoint(chunk("A "), 0.03, chunk("word"), chunk(completion_tokens=7), "data: [DONE]\n\n")
    texts = []
    speed = (await ask_at(url, "tiny", "What?", "sk-1", max_tokens=9, on_text=texts.append)).speed
    assert texts == ["A ", "word"]
    assert speed.tokens == 7
    assert speed.ttft_ms > 0
    assert speed.decode_tps > 0
    ((body, key),) = endpoint.requests
    assert (body["model"], body["max_tokens"], body["messages"][0]["content"]) == ("tiny", 9, "What?")
    assert key == "Bearer sk-1"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_reasoning_is_measured_and_known_to_be_no_answer(endpoint, field):
    """256 tokens of reasoning were "too few to measure a rate", under an empty answer."""
    thought = f"data: {json.dumps({'choices': [{'delta': {field: 'hm'}}]})}\n\n"
    texts = []
    for lines, only in (((thought, 0.03, thought), True), ((thought, 0.03, chunk("yes")), False)):
        url = await endpoint(*lines, chunk(completion_tokens=2))
        speed = (await ask_at(url, "tiny", "What?", "sk-1", max_tokens=2, on_text=texts.append)).speed
        assert (speed.decode_tps > 0, speed.only_reasoning) == (True, only)
    assert texts == ["yes"]


async def test_an_endpoint_that_is_away():
    """It ended with a traceback while the gateway was replaced."""
    with pytest.raises(ControlError, match="The endpoint did not answer") as caught:
        await ask_at("http://127.0.0.1:1/v1", "tiny", "What?", "sk-1", max_tokens=9, on_text=print)
    assert "`sparkfleet status`" in caught.value.do


async def test_a_key_that_is_refused_has_a_remedy(endpoint):
    url = await endpoint('{"error": {"message": "unknown key"}}', status=401)
    with pytest.raises(ControlError, match="HTTP 401: unknown key") as caught:
        await ask_at(url, "tiny", "What?", "sk-1", max_tokens=9, on_text=print)
    assert "`sparkfleet keys list`" in caught.value.do


async def test_tokens_that_arrive_at_once_have_no_rate(endpoint):
    """39 tokens within 2 ms, after the client had waited for a processor, were shown as 16,343 tok/s."""
    url = await endpoint(chunk("A ") + chunk("word"), chunk(completion_tokens=39))
    speed = (await ask_at(url, "tiny", "What?", "sk-1", max_tokens=39)).speed
    assert (speed.tokens, speed.decode_tps) == (39, None)
    assert speed.ttft_ms > 0


async def test_tokens_without_text_take_their_time(endpoint):
    """A model that ended its answer under `ignore_eos` went on with ends of turns: they were counted, not their time."""
    end = f"data: {json.dumps({'choices': [{'delta': {}, 'finish_reason': 'length'}]})}\n\n"
    url = await endpoint(chunk("A "), 0.03, chunk("word"), 0.3, end, chunk(completion_tokens=31))
    speed = (await ask_at(url, "tiny", "What?", "sk-1", max_tokens=31, full_length=True)).speed
    assert speed.decode_tps < 30 / 0.3


async def test_tokens_of_the_first_chunk_are_no_part_of_the_rate(endpoint):
    """With speculation the first chunk has several tokens, and Harmony's first tokens have no text."""
    running = {"prompt_tokens": 9, "completion_tokens": 5}
    first = f"data: {json.dumps({'choices': [{'delta': {'content': 'A'}}], 'usage': running})}\n\n"
    url = await endpoint(first, 0.2, chunk("word"), chunk(completion_tokens=7, prompt_tokens=9))
    found = await ask_at(url, "tiny", "What?", "sk-1", max_tokens=7, full_length=True)
    assert (found.first_tokens, found.tokens, found.prompt_tokens) == (5, 7, 9)
    assert found.speed.decode_tps < 2 / 0.2
    ((body, _),) = endpoint.requests
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


async def test_one_token_has_no_rate(endpoint):
    url = await endpoint(chunk("A"), chunk(completion_tokens=1))
    speed = (await ask_at(url, "tiny", "What?", "sk-1", max_tokens=9)).speed
    assert (speed.tokens, speed.ttft_ms, speed.decode_tps) == (1, None, None)


@pytest.mark.parametrize(
    ("lines", "status", "message"),
    [
        (['{"error": {"message": "no such key"}}'], 401, "HTTP 401: no such key"),
        (["<html>"], 502, "HTTP 502: <html>"),
        (
            [chunk("A"), 'data: {"error": {"message": "the engine died"}}\n\n'],
            200,
            "incomplete: the engine died",
        ),
    ],
    ids=["refused", "no JSON", "error after the first token"],
)
async def test_errors(endpoint, lines, status, message):
    url = await endpoint(*lines, status=status)
    with pytest.raises(ControlError, match=message):
        await ask_at(url, "tiny", "What?", "sk-1", max_tokens=9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("unloaded", "unloaded"), ("org/unloaded", "unloaded"), ("ready", "ready"), ("gone", "")],
)
async def test_a_model_that_starts_with_the_question_is_known_before(endpoint, name, expected):
    assert await listed_state(await endpoint(), name, "sk-1", True) == expected


async def test_of_an_endpoint_that_is_away_nothing_is_known():
    assert not await listed_state("http://127.0.0.1:1/v1", "tiny", "sk-1", True)


@pytest.mark.parametrize(
    ("state", "on_demand", "waits"),
    [("unloaded", True, True), ("starting", True, True), ("starting", False, False), ("ready", True, False)],
)
async def test_a_question_waits_for_a_start_on_demand_alone(state, on_demand, waits):
    class Status(OpenClient):
        async def fleet(self):
            return fleet(deployment(state="starting").model_copy(update={"on_demand": on_demand}))

    assert await _waits_for_start(Status(), "big", state) is waits
    assert not await _waits_for_start(Status(), "alias", "starting")
