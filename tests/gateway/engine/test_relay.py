"""The way of an answer to its client, and its end if its engine is lost."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import aiohttp
import pytest
from gateway_values import paced_engine
from openai import APIError, AsyncOpenAI
from openai.types.responses import ResponseErrorEvent

from sparkfleet.engines.fake import InjectedFault, Pace
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.engine.loop_detector import LoopDetector
from sparkfleet.gateway.engine.relay import AnswerFilters, relay
from sparkfleet.gateway.engine.upstream import EngineRequest, Upstream
from sparkfleet.gateway.engine.usage import UsageMeter
from sparkfleet.gateway.routing_table import ModelEntry

if TYPE_CHECKING:
    from conftest import Door, OpenDoor


@pytest.mark.parametrize("kind", ["die", "drop"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_a_stream_that_breaks_ends_with_an_error_and_without_done(
    open_door: OpenDoor, kind: str, path: str
) -> None:
    fault = InjectedFault.model_validate({"kind": kind, "after": 3})
    door = await open_door(engines=[paced_engine(fault), paced_engine()])
    status, _, body = await door.post(path, stream=True)
    events = body.decode().strip().split("\n\n")
    assert status == 200
    last = events[-1].removeprefix("event: error\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_lost"
    assert last.startswith('data: {"error"') is (path != "/v1/responses"), "chat clients know no `type`"
    assert b"[DONE]" not in body
    assert "hums" in events[-2]
    assert not door.engines[1].requests
    assert door.value("sparkfleet_errors_total", model="tiny", kind="engine_lost") == 1
    assert door.value("sparkfleet_requests_total", model="tiny", path=path, status="502") == 1


async def test_a_broken_response_stream_ends_with_a_typed_event_at_which_openais_client_raises(
    open_door: OpenDoor,
) -> None:
    door = await open_door(engines=[paced_engine(InjectedFault(kind="die", after=3)) for _ in range(2)])
    _, _, body = await door.post("/v1/responses", stream=True)
    *before, last = body.decode().strip().split("\n\n")
    name, data = last.split("\n")
    assert name == "event: error"
    event = ResponseErrorEvent.model_validate_json(data.removeprefix("data: "))
    assert (event.type, event.code, event.sequence_number) == ("error", "engine_lost", len(before))
    client = AsyncOpenAI(base_url=f"{door.url}/v1", api_key=door.key, max_retries=0)
    async with client:
        stream = await client.responses.create(model="tiny", input="Say something.", stream=True)
        with pytest.raises(APIError, match="The engine failed while answering") as raised:
            async for _ in stream:
                pass
    assert raised.value.code == "engine_lost"


async def test_a_broken_message_stream_ends_as_anthropics_do(open_door: OpenDoor) -> None:
    door = await open_door(engines=[paced_engine(InjectedFault(kind="die", after=2))])
    _, _, body = await door.post("/v1/messages", stream=True)
    name, data = body.decode().strip().split("\n\n")[-1].split("\n")
    assert name == "event: error"
    error = json.loads(data.removeprefix("data: "))
    assert (error["type"], error["error"]["type"]) == ("error", "api_error")
    assert b"message_stop" not in body


@pytest.mark.parametrize("kind", ["die", "drop"])
async def test_a_whole_answer_that_breaks_is_cut_off_and_not_mended(open_door: OpenDoor, kind: str) -> None:
    door = await open_door(
        engines=[paced_engine(InjectedFault.model_validate({"kind": kind, "after": 1})), paced_engine()]
    )
    with pytest.raises(aiohttp.ClientPayloadError):
        await door.post()
    assert not door.engines[1].requests
    assert door.value("sparkfleet_errors_total", model="tiny", kind="engine_lost") == 1


@pytest.mark.parametrize("encoded", ["length", "chunked"])
async def test_a_broken_answer_breaks_for_the_client_in_the_same_way(
    encoded: str, raw_engine: RawEngine
) -> None:
    frame = (
        b"content-length: 100\r\n\r\n{"
        if encoded == "length"
        else b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
    )
    door = await raw_engine(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + frame)
    with pytest.raises(aiohttp.ClientPayloadError):
        await door.post()


async def test_an_event_that_was_cut_is_closed_before_the_error(raw_engine: RawEngine) -> None:
    part = b'data: {"id": 1}\n\ndata: {"id'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    door = await raw_engine(head + b"%x\r\n" % len(part) + part + b"\r\n")
    _, _, body = await door.post(stream=True)
    assert body.startswith(part + b'\n\ndata: {"error": ')


async def test_an_engine_that_does_not_speak_http_is_a_lost_one(raw_engine: RawEngine) -> None:
    door = await raw_engine(b"SSH-2.0-OpenSSH_9.6\r\n")
    status, _, body = await door.post()
    assert (status, json.loads(body)["error"]["code"]) == (503, "engine_lost")


async def test_an_engine_that_sends_headers_and_then_dies_is_replaced(raw_engine: RawEngine) -> None:
    door = await raw_engine(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    status, _, body = await door.post(stream=True)
    assert (status, json.loads(body)["error"]["code"]) == (503, "engine_lost")


async def test_what_an_engine_compressed_stays_compressed(raw_engine: RawEngine) -> None:
    packed = gzip.compress(b'{"usage": {"prompt_tokens": 1}}')
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    door = await raw_engine(head + packed)
    async with (
        aiohttp.ClientSession(headers=door.http.headers, auto_decompress=False) as http,
        http.post(door.url + "/v1/completions", json=door.body()) as answer,
    ):
        assert answer.headers["content-encoding"] == "gzip"
        assert await answer.read() == packed


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNK = b'data: {"id": "a", "choices": [{"index": 0, "text": "the \\"error\\""}]}\n\n'
DONE = b"data: [DONE]\n\n"
DIED = {
    "/v1/completions": b'data: {"error": {"message": "EngineCore died", "type": "x", "code": 500}}\n\n',
    "/v1/chat/completions": b'data: {"error":{"message":"EngineCore died","type":"x","code":500}}\n\n',
    "/v1/messages": b'event: error\ndata: {"type":"error","error":{"type":"x","message":"died"}}\n\n',
}


@pytest.mark.parametrize("path", DIED)
async def test_an_engine_that_reports_its_own_end_has_not_answered(raw_engine: RawEngine, path: str) -> None:
    """vLLM sends an error and [DONE] when its workers have died: a client that reads to [DONE] took it for the whole."""
    door = await raw_engine(HEAD + CHUNK + DIED[path] + DONE)
    status, _, body = await door.post(path, stream=True, stream_options={"include_usage": True})
    assert (status, body) == (200, CHUNK + DIED[path])
    assert door.value("sparkfleet_errors_total", model="tiny", kind="engine_lost") == 1
    assert door.value("sparkfleet_requests_total", model="tiny", path=path, status="502") == 1
    assert door.gateway.proxy.observed.circuit_is_open("app-0")


@pytest.mark.parametrize(
    "odd", [b"data: {broken\n\n", b"data: \xff\xfe\n\n", b": \n\n", b"\n\n\n", b"retry: 9\n\n"]
)
@pytest.mark.parametrize("usage", [True, False])
async def test_an_event_that_is_no_json_passes_and_the_stream_goes_on(
    raw_engine: RawEngine, odd: bytes, usage: bool
) -> None:
    """BerriAI/litellm#40404: a broken line ended a stream whose other tokens all came."""
    sent = CHUNK + odd + CHUNK + DONE
    door = await raw_engine(HEAD + sent)
    options = {} if usage else {"stream_options": {"include_usage": True}}
    status, _, body = await door.post("/v1/completions", stream=True, **options)
    assert (status, body) == (200, sent)
    assert not door.value("sparkfleet_errors_total", model="tiny", kind="engine_lost")


async def test_an_error_of_a_limit_in_the_stream_passes_once_and_the_stream_ends(
    raw_engine: RawEngine,
) -> None:
    """BerriAI/litellm#26015: a 429 in the middle made an endless loop."""
    event = b'data: {"error": {"message": "slow down", "type": "rate_limit_error", "code": 429}}\n\n'
    door = await raw_engine(HEAD + CHUNK + event + DONE)
    async with asyncio.timeout(5):
        status, _, body = await door.post("/v1/completions", stream=True)
    assert (status, body) == (200, CHUNK + event + DONE)


async def test_such_a_report_ends_a_stream_whose_usage_is_hidden_too(raw_engine: RawEngine) -> None:
    died = DIED["/v1/completions"]
    door = await raw_engine(HEAD + CHUNK + died + DONE)
    _, _, body = await door.post("/v1/completions", stream=True)
    assert body == CHUNK + died


@pytest.mark.parametrize("error", [{"code": 400}, {"type": "invalid_request_error"}])
async def test_a_fault_of_the_request_is_no_failure_of_the_engine(
    raw_engine: RawEngine, error: dict[str, object]
) -> None:
    refused = b"data: " + json.dumps({"error": {"message": "no", **error}}).encode() + b"\n\n"
    door = await raw_engine(HEAD + CHUNK + refused + DONE)
    _, _, body = await door.post("/v1/completions", stream=True)
    assert body == CHUNK + refused + DONE
    assert not door.value("sparkfleet_errors_total", model="tiny", kind="engine_lost")
    assert not door.gateway.proxy.observed.circuit_is_open("app-0")


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_answer_that_is_cut_counts_for_the_circuit_of_its_group(
    open_door: OpenDoor, streaming: bool
) -> None:
    door = await open_door(engines=[paced_engine(InjectedFault(kind="die", after=1))])
    with contextlib.suppress(aiohttp.ClientPayloadError):
        await door.post(stream=streaming)
    assert door.gateway.proxy.observed.circuit_is_open("app-0")


class RawEngine:
    """Makes doors before an "engine" that answers every request with the same bytes and hangs up."""

    def __init__(self, open_door: OpenDoor) -> None:
        self._open_door = open_door
        self._servers: list[asyncio.Server] = []

    async def __call__(self, answer: bytes) -> Door:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        door = await self._open_door(engines=[])
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        door.picker.targets = [EngineEndpoint(url=url, app="app-0")]
        return door

    def close(self) -> None:
        for server in self._servers:
            server.close()


@pytest.fixture
def raw_engine(open_door: OpenDoor):  # type: ignore[no-untyped-def]
    made = RawEngine(open_door)
    yield made
    made.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
async def test_an_answer_that_repeats_itself_is_ended_where_the_deployment_has_a_limit(
    open_door: OpenDoor, path: str
) -> None:
    """The fake engine's twelve words come again and again."""
    endless = Pace(ttft_s=0.0, itl_s=0.001, tokens=2000)
    model = ModelEntry(name="tiny", deployment="engine", state="ready", loop_tokens=64)
    door = await open_door(engines=[paced_engine(pace=endless)], models=[model])
    status, _, body = await door.post(path, stream=True, max_tokens=2000)
    events = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    assert (status, "[DONE]" in body.decode()) == (200, False)
    assert "about 64 tokens" in events[-1]["error"]["message"]
    assert len(events) < 400
    assert door.value("sparkfleet_errors_total", model="tiny", kind="loop") == 1
    async with asyncio.timeout(5), door.engine.changed:
        await door.engine.changed.wait_for(lambda: door.engine.running == 0)
    assert door.engine.aborted == 1
    whole, _, answer = await door.post(path, max_tokens=2000)
    assert (whole, "error" in json.loads(answer)) == (200, False), "an answer that is no stream stays whole"


async def test_an_answer_that_repeats_itself_goes_on_without_a_limit(open_door: OpenDoor) -> None:
    door = await open_door(engines=[paced_engine(pace=Pace(ttft_s=0.0, itl_s=0.0001, tokens=600))])
    _, _, body = await door.post(stream=True, max_tokens=600)
    assert body.endswith(b"data: [DONE]\n\n")


class SlowClient:
    """A direct writer whose client takes nothing until `takes` is set."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.takes = asyncio.Event()

    def arrived(self) -> bytes | None:
        return None

    def write(self, chunk: bytes) -> bool:
        self.got.append(chunk)
        return False

    async def drained(self) -> None:
        await self.takes.wait()

    def watch(self, gone: Callable[[], None]) -> bool:
        return True

    def unwatch(self, gone: Callable[[], None]) -> None: ...


async def test_no_other_answer_comes_on_the_connection_of_one_that_was_ended() -> None:
    """The whole answer has arrived when its loop is found, so that its connection could be kept."""
    answers = [
        b'data: {"choices": [{"index": 0, "text": "again "}]}\n\n' * 200,
        b"data: of another client\n\n",
    ]
    goes_on, serving = asyncio.Event(), asyncio.TaskGroup()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                body = answers.pop(0)
                head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
                size = len(body) if answers else 10
                writer.write(head % len(body) + body[:size])
                if size < len(body):
                    await goes_on.wait()
                    writer.write(body[10:])
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.create_task(serve(reader, writer))

    upstream, client = Upstream(), SlowClient()
    filters = AnswerFilters(UsageMeter(0.0), LoopDetector(16))
    async with asyncio.timeout(5), await asyncio.start_server(begin, "127.0.0.1", 0) as server, serving:
        target = EngineEndpoint(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        request = EngineRequest(id="1", method="GET", target="/v1/x", headers=(), body=RequestBody())
        looping = await upstream.open(target, request)
        assert looping.connection.is_free, "nothing of it is still to come"
        relayed = asyncio.create_task(relay(looping, nothing_is_sent, client, filters))
        await asyncio.sleep(0)
        other = await upstream.open(target, request)
        client.takes.set()
        await asyncio.sleep(0)
        goes_on.set()
        assert other.first + await other.readany() == b"data: of another client\n\n"
        await relayed
        assert filters.loops is not None
        assert filters.loops.found
        assert len(client.got) == 1
        for answer in (looping, other):
            answer.close()
        await upstream.aclose()


async def nothing_is_sent(message: object) -> None:
    raise AssertionError(message)
