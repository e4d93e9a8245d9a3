"""Errors of engines as clients see them, whatever their form."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from clocks import Clock
from gateway_values import CHAT, model

from sparkfleet.gateway.engine import engine_error
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.engine.engine_error import in_dialect, unfitness
from sparkfleet.gateway.policy.circuit import OPEN_S
from sparkfleet.gateway.routing_table import GroupEntry

if TYPE_CHECKING:
    from conftest import Door, OpenDoor

    Answers = Callable[[web.Request], Awaitable[web.StreamResponse]]
    Failing = Callable[[Answers], Awaitable[Door]]
    Unlike = Callable[..., Awaitable["House"]]

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
        door.picker.targets = [EngineEndpoint(url=url, token="", group="group-0", app="app-0")]
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


# Groups that lack something


LONG = "This model's maximum context length is {} tokens. However, your prompt contains 9000 input tokens."


def lacking(status: int, said: object) -> Answers:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response(said, status=status)

    return refuse


def too_long(context: int) -> Answers:
    error = {"message": LONG.format(context), "type": "BadRequestError", "param": "input_tokens", "code": 400}
    return lacking(400, {"error": error})


async def well(request: web.Request) -> web.Response:
    return web.json_response({"id": "chatcmpl-1"})


@dataclass
class House:
    """A door before engines that answer everything in one way, each with the number of its requests."""

    door: Door
    asked: list[int]

    async def post(self, path: str = CHAT, **more: object) -> tuple[int, dict[str, Any]]:
        status, _, body = await self.door.post(path, **more)
        return status, json.loads(body)


@pytest.fixture
async def unlike(open_door: OpenDoor) -> AsyncIterator[Unlike]:
    """Makes a door before unlike groups, from pairs of a group and its engine's answers."""
    servers: list[TestServer] = []

    async def make(*pairs: tuple[GroupEntry, Answers]) -> House:
        asked = [0] * len(pairs)

        def counted(number: int, answers: Answers) -> Answers:
            async def count(request: web.Request) -> web.StreamResponse:
                asked[number] += 1
                return await answers(request)

            return count

        targets = []
        for number, (group, answers) in enumerate(pairs):
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", counted(number, answers))
            servers.append(TestServer(app))
            await servers[-1].start_server()
            url = str(servers[-1].make_url("")).rstrip("/")
            targets.append(EngineEndpoint(url=url, group=group.app, app=group.app))
        groups = tuple(group for group, _ in pairs)
        door = await open_door(engines=[], models=[model("tiny", groups=groups)])
        door.picker.targets = targets
        return House(door, asked)

    yield make
    for server in servers:
        await server.close()


FIRST, SECOND, THIRD = (GroupEntry(app=f"app-{number}", concurrency=4) for number in range(3))
NO_PATH = lacking(404, {"detail": "Not Found"})


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/v1/messages", "/v1/audio/transcriptions", "/v1/embeddings"]
)
async def test_a_group_whose_engine_lacks_the_path_is_left_out(unlike: Unlike, path: str) -> None:
    """One engine serves it, a custom workload of the same deployment does not."""
    house = await unlike((FIRST, NO_PATH), (SECOND, lacking(501, {"error": "no"})), (THIRD, well))
    assert [(await house.post(path))[0] for _ in range(4)] == [200] * 4
    assert house.asked == [1, 1, 4], "their refusals were remembered"
    assert not house.door.gateway.proxy.observed.circuit_line("app-0")
    assert not house.door.value("sparkfleet_retries_total", model="tiny")
    status, _, body = await house.door.post(path, x=1)
    async with house.door.http.post(
        house.door.url + path, json=house.door.body(path), headers={"x-sparkfleet-explain": "only"}
    ) as answer:
        left_out = (await answer.json())["left_out"]
    assert left_out["app-0"] == f"its engine does not serve {path}"
    assert (status, body) == (200, b'{"id": "chatcmpl-1"}')


async def test_what_a_group_lacks_is_forgotten_when_it_starts_again(unlike: Unlike) -> None:
    house = await unlike((FIRST, NO_PATH), (SECOND, well))
    assert (await house.post("/v1/responses"))[0] == 200
    gateway = house.door.gateway
    entry = gateway.table.models["tiny"]
    starting = entry.model_copy(update={"groups": (FIRST.model_copy(update={"ready": False}), SECOND)})
    for version, now in ((2, starting), (3, entry)):
        gateway.table = gateway.table.model_copy(update={"version": version, "models": {"tiny": now}})
    assert (await house.post("/v1/responses"))[0] == 200
    assert house.asked == [2, 2]


async def test_a_path_that_all_engines_lack_is_refused_each_time_by_one(unlike: Unlike) -> None:
    house = await unlike((FIRST, NO_PATH), (SECOND, NO_PATH))
    for _ in range(2):
        status, body = await house.post("/v1/embeddings")
        assert (status, body["error"]["code"]) == (404, "unsupported_by_model")


async def test_a_method_that_an_engine_lacks_leaves_its_path_in_use(unlike: Unlike) -> None:
    async def makes_only(request: web.Request) -> web.Response:
        if request.method == "DELETE":
            return web.json_response({"detail": "Method Not Allowed"}, status=405)
        return web.json_response({"id": "resp_1"})

    house = await unlike((FIRST, makes_only), (SECOND, NO_PATH))
    assert (await house.post("/v1/responses"))[0] == 200
    async with house.door.http.delete(house.door.url + "/v1/responses/resp_1") as answer:
        assert answer.status == 404
    assert (await house.post("/v1/responses"))[0] == 200
    assert house.asked[0] == 3


SOUND = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}]


OTHER_NAME = lacking(404, {"error": {"message": "The model `tiny` does not exist.", "code": 404}})
NOT_OURS = lacking(404, {"error": {"message": "The model `gpt-4` does not exist.", "code": 404}})


async def test_an_engine_that_does_not_know_the_models_name_is_left_and_named(unlike: Unlike) -> None:
    clock = Clock(100.0)
    house = await unlike((FIRST, OTHER_NAME), (SECOND, well))
    house.door.gateway.proxy.observed._clock = clock
    for _ in range(4):
        assert (await house.post())[0] == 200, "the other group serves it"
        clock.now += OPEN_S
    (words,) = house.door.gateway.failing_groups
    assert words.startswith(
        "app-0 counts as ready, and requests fail there: it answered 404, as it does not know the model tiny,"
    )
    assert "serve the model as tiny, the name of the deployment" in words


async def test_a_clients_wrong_name_of_a_model_counts_for_no_group(unlike: Unlike) -> None:
    """One in the body of a request that names its model in a header; any other is refused by the gateway."""
    clock = Clock(100.0)
    house = await unlike((FIRST, NOT_OURS))
    house.door.gateway.proxy.observed._clock = clock
    for _ in range(3):
        assert (await house.post())[0] == 404
        clock.now += OPEN_S
    assert house.door.gateway.failing_groups == ()


async def test_an_engine_that_answers_the_api_with_web_pages_is_named_until_it_answers_well(
    unlike: Unlike,
) -> None:
    clock, pages = Clock(100.0), [True]

    async def page(request: web.Request) -> web.StreamResponse:
        if not pages:
            return await well(request)
        return web.Response(text="<html></html>", content_type="text/html")

    house = await unlike((FIRST, page))
    house.door.gateway.proxy.observed._clock = clock
    for _ in range(2):
        assert (await house.door.post())[0] == 200
        clock.now += OPEN_S
    (words,) = house.door.gateway.failing_groups
    assert f"it answered 200 with a web page to {CHAT}, 2 times in a row. Its command has to" in words
    pages.clear()
    assert (await house.post())[0] == 200
    assert house.door.gateway.failing_groups == ()


async def test_a_redirect_of_an_engine_has_no_address_of_the_fleet(unlike: Unlike) -> None:
    async def elsewhere(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"location": f"{request.url.origin()}{CHAT}/"})

    house = await unlike((FIRST, elsewhere))
    async with house.door.http.post(
        house.door.url + CHAT, json=house.door.body(CHAT), allow_redirects=False
    ) as answer:
        assert (answer.status, answer.headers["location"]) == (307, f"{CHAT}/")


@pytest.mark.parametrize(
    "said", ["At most 0 audio(s) may be provided in one prompt.", "tiny is not a multimodal model"]
)
async def test_sound_goes_to_the_group_whose_engine_hears(unlike: Unlike, said: str) -> None:
    deaf = lacking(400, {"error": {"message": said, "type": "BadRequestError", "param": None, "code": 400}})
    house = await unlike((FIRST, deaf), (SECOND, well))
    assert [(await house.post(messages=SOUND))[0] for _ in range(3)] == [200] * 3
    assert house.asked == [1, 3]
    house.asked[0] = 0
    assert {(await house.post())[0] for _ in range(2)} == {400, 200}, "it takes part in what it can do"


async def test_a_prompt_that_is_too_long_for_one_engine_goes_to_a_larger_group(unlike: Unlike) -> None:
    """The gateway's estimate was below the engine's count: nothing of it reaches the client."""
    small, equal, large = (
        one.model_copy(update={"context": size})
        for one, size in ((FIRST, 4096), (SECOND, 4096), (THIRD, 8192))
    )
    house = await unlike((small, too_long(4096)), (equal, too_long(4096)), (large, well))
    assert [(await house.post())[0] for _ in range(4)] == [200] * 4
    assert house.asked[0] + house.asked[1] <= 4, "at most one of the small ones for each"
    assert house.asked[2] == 4
    assert not house.door.gateway.proxy.observed.circuit_line("app-0")


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_a_prompt_that_is_too_long_for_all_names_the_largest_context(unlike: Unlike, path: str) -> None:
    small, large = (one.model_copy(update={"context": size}) for one, size in ((FIRST, 4096), (SECOND, 8192)))
    house = await unlike((small, too_long(4096)), (large, too_long(8192)))
    for _ in range(2):
        status, body = await house.post(path)
        assert status == 400
        assert body["error"]["message"].endswith(
            '9000 input tokens. The largest context of "tiny" is 8192 tokens, on app-1.'
        )
        assert (body["error"]["param"], body["error"]["code"]) == ("input_tokens", 400), "the engine's own"
        assert body["error"]["message"].startswith("The prompt is too long. ") == (path != CHAT)


@pytest.mark.parametrize(
    "said",
    [
        {"type": "error", "error": {"type": "BadRequestError", "message": LONG.format(4096)}},
        json.loads(SGLANG),
        {"type": "error", "error": {"type": "x", "message": "prompt is too long: 9 tokens > 8 maximum"}},
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_claude_code_recognises_a_prompt_that_is_too_long(
    unlike: Unlike, path: str, said: object
) -> None:
    """By these words alone it compacts its conversation; after another 400 each further request fails as well."""
    house = await unlike((FIRST, lacking(400, said)))
    status, body = await house.post(path, messages=[{"role": "user", "content": "hi"}])
    assert (status, body["type"]) == (400, "error")
    assert body["error"]["message"].lower().count("prompt is too long") == 1


async def test_a_prompt_that_the_gateway_finds_too_long_is_recognised_as_well(unlike: Unlike) -> None:
    house = await unlike((FIRST.model_copy(update={"context": 4096}), well))
    for path in (CHAT, "/v1/messages"):
        _, body = await house.post(path, messages=[{"role": "user", "content": "word " * 20_000}])
        assert body["error"]["message"].startswith("The prompt is too long: ")
        assert "This model's maximum context length is 4096 tokens" in body["error"]["message"]
    assert house.asked == [0]


async def test_a_prompt_that_needs_a_group_that_starts_is_later(unlike: Unlike) -> None:
    small = FIRST.model_copy(update={"context": 4096})
    starts = SECOND.model_copy(update={"context": 8192, "ready": False})
    house = await unlike((small, too_long(4096)), (starts, well))
    status, headers, body = await house.door.post()
    assert (status, json.loads(body)["error"]["code"]) == (503, "model_not_ready")
    assert "app-1, with a context of 8192 tokens" in json.loads(body)["error"]["message"]
    assert int(headers["retry-after"]) > 0
    certain = [{"role": "user", "content": "x" * 12 * 5000}]
    status, body = await house.post(messages=certain)
    assert (status, house.asked) == (503, [1, 0]), "nobody was asked"


async def test_a_fault_of_the_client_is_told_by_the_first_engine(unlike: Unlike) -> None:
    """A 400 is only repeated if the engine refuses for its own limits."""
    wrong = lacking(400, {"error": {"message": "temperature must be non-negative", "type": "x", "code": 400}})
    house = await unlike((FIRST, wrong), (SECOND, wrong))
    status, body = await house.post()
    assert (status, body["error"]["message"]) == (400, "temperature must be non-negative")
    assert sum(house.asked) == 1


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"error": {"message": LONG.format(1), "code": 400}}, "context"),
        ({"message": WORDS, "code": 400}, "context"),
        ({"error": "The sum of prompt length (9351), query length (0) should not exceed max_num_tokens (8192)"}, "context"),
        ({"error": {"message": "exceeds the available context size", "type": "exceed_context_size_error"}}, "context"),
        ({"error": {"message": "too long", "code": "context_length_exceeded"}}, "context"),
        ({"error": {"message": "max_tokens must be at least 1", "code": 400}}, None),
        ({"error": {"message": "At most 0 audio(s) may be provided in one prompt."}}, None),
        ([1], None),
    ],
)  # fmt: skip
def test_the_lack_in_an_engines_words(said: object, why: str | None) -> None:
    """vLLM, SGLang, TensorRT-LLM (NVIDIA/TensorRT-LLM#9277), llama.cpp, OpenAI."""
    assert unfitness(json.dumps(said).encode(), 400, has_audio=False) == why
    assert unfitness(json.dumps(said).encode(), 429, has_audio=False) is None
