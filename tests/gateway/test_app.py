"""The gateway over real sockets, before fake engines."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from gateway_values import CHAT, PACED, model
from static_picker import StaticPicker

from sparkfleet.engines.fake import Pace
from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.access.limits import RequestLimits
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.routing_table import GroupEntry, KeyLimits, RoutingTable

if TYPE_CHECKING:
    from conftest import Door, OpenDoor


# Refusals

GOOD = b'{"model": "tiny", "messages": []}'
JSON = {"content-type": "application/json"}

REFUSALS = {
    "no json": ("POST", CHAT, b"{", 400, "invalid_json"),
    "an array": ("POST", CHAT, b"[]", 400, "invalid_json"),
    "no utf-8": ("POST", CHAT, b'{"model": "\xff"}', 400, "invalid_json"),
    "too deep": ("POST", CHAT, b"[" * 4_000, 400, "invalid_json"),
    "far too deep": ("POST", CHAT, b"[" * 40_000, 400, "too_complex"),
    "no model": ("POST", CHAT, b"{}", 400, "missing_model"),
    "no body": ("POST", CHAT, b"", 400, "missing_model"),
    "a response that nobody made": ("GET", "/v1/responses/resp_1", b"", 404, "response_not_found"),
    "the same of a model": ("DELETE", "/v1/responses/resp_1?model=tiny", b"", 404, "response_not_found"),
    "unknown model": ("POST", CHAT, b'{"model": "huge"}', 404, "model_not_found"),
    "unknown model in the query": ("POST", f"{CHAT}?model=huge", b"", 404, "model_not_found"),
    "not for this key": ("POST", CHAT, b'{"model": "private"}', 403, "model_not_allowed"),
    "starting": ("POST", CHAT, b'{"model": "starting"}', 503, "model_not_ready"),
    "failed": ("POST", CHAT, b'{"model": "failed"}', 503, "model_not_ready"),
    "too large": ("POST", CHAT, b" " * 60_000, 413, "request_too_large"),
    "no such path": ("GET", "/", b"", 404, "not_found"),
    "engine's own path": ("GET", "/metrics", b"", 404, "not_found"),
    "docs": ("GET", "/docs", b"", 404, "not_found"),
    "posted to v1": ("POST", "/v1", GOOD, 404, "not_found"),
    "around the corner": ("POST", "/v1/%2e%2e/metrics", GOOD, 404, "not_found"),
    "an adapter": ("POST", "/v1/load_lora_adapter", GOOD, 404, "not_found"),
    "files of a server": ("GET", "/v1/files", b"", 404, "not_found"),
    "what the next release adds": ("POST", "/v1/update_weights", GOOD, 404, "not_found"),
    "an answer that is made by reading it": ("GET", CHAT, b"", 405, "method_not_allowed"),
    "no such method": ("PROPFIND", CHAT, GOOD, 405, "method_not_allowed"),
    "head": ("HEAD", CHAT, b"", 405, None),
    "models are read": ("POST", "/v1/models", GOOD, 405, "method_not_allowed"),
    "unknown model by id": ("GET", "/v1/models/huge", b"", 404, "model_not_found"),
}


@pytest.fixture
async def house(open_door: OpenDoor) -> Door:
    """A door with models in every state, and a small limit for bodies."""
    return await open_door(
        models=[
            model("tiny"),
            model("private", keys=("bob",)),
            model("starting", state="starting", detail="loading weights", retry_after_s=42),
            model("failed", state="failed", detail="out of memory"),
        ],
        limits=RequestLimits(body_bytes=50_000),
    )


@pytest.mark.parametrize(("method", "path", "body", "status", "code"), REFUSALS.values(), ids=REFUSALS)
async def test_what_is_refused(
    house: Door, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    async with house.http.request(method, house.url + path, data=body, headers=JSON) as answer:
        shown = await answer.read()
        assert answer.status == status
        assert answer.content_type == "application/json"
        assert re.fullmatch(r"req-[0-9a-f]{24}", answer.headers["x-request-id"])
        assert ("retry-after" in answer.headers) == (status == 503)
    if method == "HEAD":
        assert shown == b""
    else:
        error = json.loads(shown)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == code
    assert not house.engine.requests


async def test_what_is_wrong_is_said(house: Door) -> None:
    async def message(**body: Any) -> str:
        _, _, shown = await house.post(**body)
        return str(json.loads(shown)["error"]["message"])

    assert await message(model="huge") == 'There is no model "huge". Available: failed, starting, tiny.'
    assert (
        await message(model="starting")
        == 'The model "starting" is starting: loading weights. Try again in 42 s.'
    )
    assert '"failed" has failed to start: out of memory' in await message(model="failed")
    assert 'The key "alice" may not use the model "private"' in await message(model="private")


async def test_messages_are_refused_in_anthropics_words(house: Door) -> None:
    status, _, body = await house.post("/v1/messages", model="huge")
    assert status == 404
    assert json.loads(body)["type"] == "error"
    assert json.loads(body)["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", CHAT, "/v1/messages", "/v1/anything"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer sk-sf-wrong"},
        {"authorization": "Basic c2Vj"},
        {"x-api-key": ""},
    ],
    ids=["none", "wrong", "basic", "empty"],
)
async def test_nobody_gets_in_without_a_key(door: Door, path: str, headers: dict[str, str]) -> None:
    async with aiohttp.request("POST", door.url + path, data=GOOD, headers=headers) as answer:
        error = (await answer.json())["error"]
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert ("has no API key" in error["message"]) == (not headers)
    assert not door.engine.requests
    assert door.value("sparkfleet_errors_total", model="", kind="unauthorised") == 1


async def test_nobody_learns_which_models_there_are_without_a_key(door: Door) -> None:
    async with aiohttp.request("POST", door.url + CHAT, json={"model": "huge"}) as answer:
        assert b"tiny" not in await answer.read()


async def test_a_key_that_is_taken_away_ends(door: Door) -> None:
    assert (await door.post())[0] == 200
    door.gateway.table = RoutingTable(version=2, models=door.gateway.table.models)
    assert (await door.post())[0] == 401


async def test_a_body_that_is_announced_too_long_is_refused_before_it_comes(house: Door) -> None:
    reader, writer = await asyncio.open_connection(house.server.host, house.server.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {house.key}\r\n"
        "expect: 100-continue\r\ncontent-length: 1000000000000\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    writer.close()


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_a_client_that_sends_everything_before_it_reads_gets_its_refusal(
    house: Door, key: str | None
) -> None:
    """With a right key the body is too long, without one it is not wanted: either way the answer arrives."""
    reader, writer = await asyncio.open_connection(house.server.host, house.server.port)
    body = b"x" * 8_000_000
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key or house.key}\r\n"
        f"content-length: {len(body)}\r\n\r\n".encode()
    )
    for start in range(0, len(body), 100_000):
        writer.write(body[start : start + 100_000])
        await writer.drain()
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 401 " if key else b"HTTP/1.1 413 ")
    assert answer.endswith(b"}")
    writer.close()


async def test_a_body_without_end_is_cut_at_the_limit(house: Door) -> None:
    reader, writer = await asyncio.open_connection(house.server.host, house.server.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {house.key}\r\n"
        "transfer-encoding: chunked\r\n\r\n".encode()
    )
    for _ in range(51):
        writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_a_body_that_trickles_is_given_up(open_door: OpenDoor) -> None:
    door = await open_door(limits=RequestLimits(body_s=0.05))
    reader, writer = await asyncio.open_connection(door.server.host, door.server.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {door.key}\r\ncontent-length: 20\r\n\r\n{{".encode()
    )
    shown = await reader.read()  # to the end: the connection is closed
    assert shown.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in shown
    writer.close()


@pytest.mark.parametrize(
    ("header", "value"),
    [(f"x-{i}", "v" * 400) for i in (1,)] + [("x-big", "v" * 20_000)],
    ids=["many", "big"],
)
async def test_too_many_headers_are_refused(door: Door, header: str, value: str) -> None:
    headers = [(f"{header}-{i}", value) for i in range(101 if len(value) < 1000 else 2)]
    async with door.http.post(door.url + CHAT, data=GOOD, headers=headers) as answer:
        assert answer.status == 431
        assert (await answer.json())["error"]["code"] == "headers_too_large"


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/embeddings"])
async def test_a_key_for_administration_only_gets_no_answer_of_a_model(
    open_door: OpenDoor, path: str
) -> None:
    boss, entry = generate("boss", KeyLimits(admin=True, inference=False))
    door = await open_door(extra_keys=[entry])
    headers = {"authorization": f"Bearer {boss}"}
    async with aiohttp.request("POST", door.url + path, json=door.body(path), headers=headers) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["type"]) == (403, "permission_error")
        assert error["message"].startswith('The key "boss" is for administration only')
    async with aiohttp.request("GET", door.url + "/v1/models", headers=headers) as answer:
        assert answer.status == 200
    assert not door.engine.requests
    assert (await door.post())[0] == 200


# Paths and names


async def test_a_clients_own_id_comes_back_beside_ours(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"x-request-id": "trace:42", "authorization": f"Bearer {door.key}"}
    with caplog.at_level(logging.INFO, "sparkfleet.gateway.access"):
        for body in (door.body(), door.body(model="huge")):
            async with aiohttp.request("POST", door.url + CHAT, json=body, headers=headers) as answer:
                assert answer.headers["x-client-request-id"] == "trace:42"
                assert answer.headers["x-request-id"].startswith("req-")
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "sparkfleet.gateway.access"]
    assert [line["client_id"] for line in lines] == ["trace:42", "trace:42"]
    async with door.http.post(door.url + CHAT, json=door.body(), headers={"x-request-id": "a b"}) as answer:
        assert "x-client-request-id" not in answer.headers


async def test_the_root_of_the_api_names_its_paths(door: Door) -> None:
    for path in ("/v1", "/v1/"):
        async with aiohttp.request("GET", door.url + path) as answer:
            assert answer.status == 200
            assert "/v1/chat/completions" in (await answer.json())["openai"]
    async with aiohttp.request("HEAD", door.url + "/v1") as answer:
        assert (answer.status, await answer.read()) == (200, b"")


async def test_anthropics_clients_read_their_own_form_on_shared_paths(door: Door) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    async with door.http.get(door.url + "/v1/models/huge", headers=headers) as answer:
        assert (await answer.json())["error"]["type"] == "not_found_error"


# Methods and health


async def test_head_and_options(door: Door) -> None:
    async with door.http.head(door.url + "/v1/models") as answer:
        assert (answer.status, await answer.read()) == (200, b"")
        assert int(answer.headers["content-length"]) > 0
    async with aiohttp.request("OPTIONS", door.url + CHAT) as answer:
        assert answer.status == 204
        assert answer.headers["allow"] == "POST"
    async with aiohttp.request("OPTIONS", door.url + "/v1/made/up") as answer:
        assert answer.status == 401


async def test_health_needs_no_key_but_a_table(open_door: OpenDoor) -> None:
    door = await open_door(table=RoutingTable())

    async def health(method: str = "GET") -> tuple[int, bytes]:
        answers = []
        for path in ("/healthz", "/health", "/v1/health"):
            async with aiohttp.request(method, door.url + path) as answer:
                answers.append((answer.status, await answer.read()))
        assert len(set(answers)) == 1
        return answers[0]

    assert await health() == (503, b'{"status": "starting"}')
    status, headers, body = await door.post()
    assert (status, headers["retry-after"], json.loads(body)["error"]["code"]) == (503, "1", "starting")
    door.gateway.table = RoutingTable(version=1)
    assert await health() == (200, b'{"status": "ok"}')
    assert await health("HEAD") == (200, b"")
    assert await door.gateway.drain(1)
    assert await health() == (503, b'{"status": "draining"}')


def test_a_table_that_says_nothing_replaces_none_that_does() -> None:
    """A controller that has just been restarted has one; what is served goes on."""
    gateway = GatewayApp(StaticPicker([]), table=RoutingTable(version=9))
    gateway.table = RoutingTable()
    assert gateway.table.version == 9
    gateway.table = RoutingTable(version=1)
    assert gateway.table.version == 1


# Draining


async def test_draining_ends_what_is_in_flight_and_takes_nothing_new(open_door: OpenDoor) -> None:
    door = await open_door(pace=PACED)
    asking = asyncio.create_task(door.post(stream=True))
    async with asyncio.timeout(5):
        await door.engine.until(lambda engine: engine.running == 1)
        draining = asyncio.create_task(door.gateway.drain(5))
        await asyncio.sleep(0)
        status, headers, body = await door.post()
        assert (status, json.loads(body)["error"]["code"]) == (503, "draining")
        assert headers["connection"] == "close"
        assert headers["retry-after"] == "1"
        assert await draining
    _, _, body = await asking
    assert body.endswith(b"data: [DONE]\n\n")


async def test_draining_does_not_wait_for_ever(open_door: OpenDoor) -> None:
    door = await open_door(pace=Pace(ttft_s=3600))
    asking = asyncio.create_task(door.post())
    await door.engine.until(lambda engine: engine.running == 1)
    assert not await door.gateway.drain(0.01)
    asking.cancel()


# Trouble of its own


async def test_a_defect_is_an_answer_and_a_line_in_the_log(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def pick(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a secret of the picker")

    monkeypatch.setattr(door.picker, "pick", pick)
    status, headers, body = await door.post()
    assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")
    assert b"secret" not in body
    assert headers["x-request-id"] in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_a_websocket_is_refused(door: Door) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await door.gateway({"type": "websocket", "path": "/v1/realtime"}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_a_websocket_over_the_wire_is_refused(door: Door) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await door.http.ws_connect(door.url + "/v1/realtime?model=huge")
    assert caught.value.status == 404


# What is seen


async def test_the_metrics_tell_what_happened(open_door: OpenDoor) -> None:
    door = await open_door(pace=PACED, models=[model("tiny", endpoints=("/v1/made/up",))])
    await door.post(stream=True, stream_options={"include_usage": True})
    await door.post("/v1/messages", stream=True)
    await door.post("/v1/embeddings", input=["a b", "c"])
    await door.post("/v1/made/up")
    await door.post(model="made-up")
    count = door.value
    assert count("sparkfleet_requests_total", model="tiny", path=CHAT, status="200") == 1
    assert count("sparkfleet_requests_total", model="tiny", path="/v1/messages", status="200") == 1
    assert count("sparkfleet_requests_total", model="tiny", path="/v1/embeddings", status="200") == 1
    assert count("sparkfleet_requests_total", model="tiny", path="other", status="200") == 1
    assert count("sparkfleet_requests_total", model="", path=CHAT, status="404") == 1
    assert count("sparkfleet_errors_total", model="", kind="unknown_model") == 1
    assert count("sparkfleet_tokens_total", model="tiny", kind="input") == 3 + 3 + 3
    assert count("sparkfleet_tokens_total", model="tiny", kind="output") == 10 + 10
    assert count("sparkfleet_ttft_seconds_count", model="tiny") == 2
    assert count("sparkfleet_ttft_seconds_sum", model="tiny") >= 2 * PACED.ttft_s
    chunks = count("sparkfleet_stream_chunks_total", model="tiny")
    assert chunks >= 2
    assert count("sparkfleet_itl_seconds_count", model="tiny") == chunks - 2
    assert count("sparkfleet_request_seconds_count", model="tiny") == 4
    assert count("sparkfleet_requests_in_flight", model="tiny") == 0


async def test_what_is_in_flight_is_seen(open_door: OpenDoor) -> None:
    door = await open_door(pace=Pace(ttft_s=3600))
    asking = asyncio.create_task(door.post())
    await door.engine.until(lambda engine: engine.running == 1)
    assert door.value("sparkfleet_requests_in_flight", model="tiny") == 1
    assert door.gateway.in_flight == 1
    asking.cancel()


async def test_requests_that_wait_for_a_slot_are_seen(open_door: OpenDoor) -> None:
    one = GroupEntry(app="app-0", concurrency=1, context=4096)
    table = [model("tiny", groups=(one,)), model("idle")]
    door = await open_door(pace=Pace(ttft_s=3600), models=table)
    asking = [asyncio.create_task(door.post()) for _ in range(3)]

    async def waiting(count: int) -> None:
        async with asyncio.timeout(5):
            while door.registry.get_sample_value("sparkfleet_requests_waiting", {"model": "tiny"}) != count:
                await asyncio.sleep(0.001)

    await waiting(2)
    assert door.gateway.queued == {"tiny": 2}
    assert door.registry.get_sample_value("sparkfleet_requests_waiting", {"model": "idle"}) == 0
    assert door.value("sparkfleet_requests_in_flight", model="tiny") == 3
    for task in asking:
        task.cancel()
    await waiting(0)


async def test_clients_cannot_make_up_labels(open_door: OpenDoor) -> None:
    door = await open_door(models=[model("tiny", endpoints=("/v1/x/*",))])
    for i in range(20):
        await door.post(f"/v1/x/{i}", model=f"m{i}")
        await door.post(f"/v1/x/{i}")
    samples = [
        s
        for metric in door.registry.collect()
        for s in metric.samples
        if s.name == "sparkfleet_requests_total"
    ]
    assert sorted((s.labels["model"], s.labels["path"], s.value) for s in samples) == [
        ("", "other", 20),
        ("tiny", "other", 20),
    ]


async def test_the_access_log_has_a_line_per_request_and_no_secrets(
    open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    door = await open_door(pace=PACED)
    with caplog.at_level(logging.INFO, "sparkfleet.gateway.access"):
        _, headers, _ = await door.post(
            stream=True, stream_options={"include_usage": True}, prompt="my secret diary"
        )
        await door.post("/v1/responses/" + "x" * 1000 + "/cancel", model="huge\r\nforged line")
        await door.post(model="huge\r\nforged line")
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "sparkfleet.gateway.access"]
    good, long, bad = lines
    assert good["id"] == headers["x-request-id"]
    assert {
        k: good[k] for k in ("key", "model", "group", "method", "path", "status", "error", "retries")
    } == {
        "key": "alice",
        "model": "tiny",
        "group": "group-0",
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "error": None,
        "retries": 0,
    }
    assert (good["input_tokens"], good["output_tokens"], good["events"]) == (3, 10, 14)
    assert good["ms"] >= good["first_byte_ms"] >= 20
    assert (bad["model"], bad["status"], bad["error"]) == (None, 404, "unknown_model")
    assert (len(long["path"]), long["model"]) == (200, None)
    for secret in (door.key, door.key[-20:], door.engine.token, "diary", "hums", "forged"):
        assert secret not in caplog.text
