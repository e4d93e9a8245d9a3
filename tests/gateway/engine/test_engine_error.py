"""Errors of engines as clients see them, whatever their form."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import anthropic
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from gateway_values import CHAT

from sparkfleet.gateway.engine import engine_error
from sparkfleet.gateway.engine.endpoints import Target
from sparkfleet.gateway.engine.engine_error import in_dialect

if TYPE_CHECKING:
    from conftest import Door, OpenDoor

    Answers = Callable[[web.Request], Awaitable[web.StreamResponse]]
    Failing = Callable[[Answers], Awaitable[Door]]

WORDS = "The input (9000 tokens) is longer than the model's context length (4096 tokens)."
VLLM = json.dumps({"error": {"message": WORDS, "type": "BadRequestError", "param": None, "code": 400}})
SGLANG = json.dumps(
    {"object": "error", "message": WORDS, "type": "BadRequestError", "param": "messages", "code": 400}
)
"""TensorRT-LLM's is the same."""


def told(body: bytes | str, status: int = 400) -> dict[str, object]:
    data = body.encode() if isinstance(body, str) else body
    error: dict[str, object] = json.loads(in_dialect(data, status, "openai"))["error"]
    return error


def test_what_is_in_openais_words_is_not_touched() -> None:
    assert in_dialect(VLLM.encode(), 400, "openai") == VLLM.encode()


def test_fields_side_by_side_are_put_where_clients_look_for_them() -> None:
    assert told(SGLANG) == {
        "message": WORDS,
        "type": "BadRequestError",
        "param": "messages",
        "code": 400,
    }


@pytest.mark.parametrize(
    ("body", "status", "message", "kind"),
    [
        ('{"error": "1 validation error"}', 400, "1 validation error", "invalid_request_error"),
        ('{"error": {"message": "no"}}', 500, "no", "server_error"),
        ('{"detail": "Not Found"}', 404, "Not Found", "invalid_request_error"),
        ('{"detail": [{"msg": "a"}]}', 422, '{"detail": [{"msg": "a"}]}', "invalid_request_error"),
        ("Internal Server Error", 500, "Internal Server Error", "server_error"),
        ("[1]", 429, "[1]", "rate_limit_error"),
        ("[" * 100_000, 500, "[" * engine_error.LONGEST_TEXT, "server_error"),
        (b"\xff\x00", 500, "\ufffd\x00", "server_error"),
        ("", 503, "The engine returned 503 without a reason.", "server_error"),
        ('{"message": 7, "type": 8}', 400, '{"message": 7, "type": 8}', "invalid_request_error"),
    ],
)
def test_whatever_is_said_is_the_message(body: bytes | str, status: int, message: str, kind: str) -> None:
    error = told(body, status)
    assert (error["message"], error["type"], error["code"]) == (message, kind, "engine_error")


def test_anthropics_clients_get_their_own_form() -> None:
    assert json.loads(in_dialect(SGLANG.encode(), 400, "anthropic")) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": WORDS},
    }


@pytest.fixture
async def failing(open_door: OpenDoor) -> AsyncIterator[Failing]:
    """Makes a door before an engine that answers everything in one way."""
    servers: list[TestServer] = []

    async def make(answers: Answers) -> Door:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answers)
        servers.append(TestServer(app))
        await servers[0].start_server()
        door = await open_door(engines=[])
        url = str(servers[0].make_url("")).rstrip("/")
        door.picker.targets = [Target(url=url, token="", group="group-0", app="app-0")]
        return door

    yield make
    for server in servers:
        await server.close()


async def test_clients_read_the_reason_of_a_flat_error(failing: Failing) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(
            text=SGLANG, status=400, content_type="application/json", headers={"x-engine": "sglang"}
        )

    door = await failing(refuse)
    status, headers, body = await door.post(CHAT, stream=True)
    assert (status, json.loads(body)["error"]["message"]) == (400, WORDS)
    assert (headers["content-type"], headers["x-engine"]) == ("application/json", "sglang")
    assert headers["content-length"] == str(len(body))
    question = [{"role": "user", "content": "one"}]
    async with openai.AsyncOpenAI(base_url=door.url + "/v1", api_key=door.key, max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="is longer than the model's context") as caught:
            await client.chat.completions.create(model="tiny", messages=question)  # type: ignore[arg-type]
        assert (caught.value.type, caught.value.param) == ("BadRequestError", "messages")
    async with anthropic.AsyncAnthropic(base_url=door.url, api_key=door.key, max_retries=0) as other:
        with pytest.raises(anthropic.BadRequestError, match="is longer than the model's context"):
            await other.messages.create(model="tiny", messages=question, max_tokens=5)  # type: ignore[arg-type]


async def test_an_error_in_openais_words_passes_byte_for_byte(failing: Failing) -> None:
    odd = VLLM.replace(": ", ":  ")

    async def refuse(request: web.Request) -> web.Response:
        return web.Response(text=odd, status=400, content_type="application/json")

    door = await failing(refuse)
    status, _, body = await door.post()
    assert (status, body) == (400, odd.encode())
    assert door.value("sparkfleet_errors_total", model="tiny", kind="engine_refused") == 1


async def test_an_engine_that_goes_away_in_its_error_is_told_with_what_it_has_said(failing: Failing) -> None:
    async def begin(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(status=500, headers={"content-length": "1000"})
        await answer.prepare(request)
        await answer.write(b"Traceback")
        assert request.transport is not None
        request.transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        return answer

    door = await failing(begin)
    status, _, body = await door.post()
    assert (status, json.loads(body)["error"]["message"]) == (500, "Traceback")


async def test_an_error_that_does_not_end_is_told_all_the_same(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(status=500)
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 1000)

    monkeypatch.setattr(engine_error, "LONGEST", 10_000)
    door = await failing(drip)
    status, _, body = await door.post()
    assert (status, json.loads(body)["error"]["message"]) == (500, "x" * engine_error.LONGEST_TEXT)


STARLETTE = json.dumps({"detail": "Not Found"})
VLLMS = json.dumps({"error": {"message": "Not Found", "type": "Not Found", "param": None, "code": 404}})
"""As vLLM's handler words an HTTPException of its router."""
SCORES = json.dumps({"error": {"message": "The model does not support Score API", "type": "x", "code": 501}})


@pytest.mark.parametrize(
    ("body", "status", "path", "says"),
    [
        (STARLETTE, 404, "/v1/embeddings", "makes no embeddings"),
        (VLLMS, 404, "/v1/embeddings", "makes no embeddings"),
        (VLLMS, 404, "/v1/audio/transcriptions", "transcribes no speech"),
        (SCORES, 501, "/v1/score", "compares no texts"),
        (json.dumps({"detail": "Method Not Allowed"}), 405, "/v1/rerank", "ranks no documents"),
    ],
)
async def test_a_path_that_the_engine_lacks_is_refused_in_words_about_the_model(
    failing: Failing, body: str, status: int, path: str, says: str
) -> None:
    """Clients read "Not Found"."""

    async def refuse(request: web.Request) -> web.Response:
        return web.Response(text=body, status=status, content_type="application/json")

    door = await failing(refuse)
    answered, _, shown = await door.post(path)
    error = json.loads(shown)["error"]
    assert (answered, error["code"]) == (404, "unsupported_by_model"), "SDKs would repeat a 501"
    assert error["message"].startswith(f'The model "tiny" {says}: its engine does not serve {path}.')
    assert door.value("sparkfleet_errors_total", model="tiny", kind="unsupported") == 1


async def test_what_an_engine_does_not_find_itself_is_its_own_to_tell(failing: Failing) -> None:
    words = json.dumps({"error": {"message": "Response resp_1 not found.", "type": "x", "code": 404}})

    async def refuse(request: web.Request) -> web.Response:
        return web.Response(text=words, status=404, content_type="application/json")

    door = await failing(refuse)
    assert (await door.post())[2] == words.encode()
