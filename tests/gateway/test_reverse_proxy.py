"""Requests on their way to fake engines, over real sockets."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING

import aiohttp
import pytest
from gateway_values import CHAT, model

from sparkfleet.engines.fake import FakeEngine

if TYPE_CHECKING:
    from conftest import Door, OpenDoor


async def test_the_request_arrives_unchanged_but_for_its_headers(open_door: OpenDoor) -> None:
    door = await open_door(models=[model("tiny", endpoints=("/v1/odd/path",))])
    strange = b'{ "model" :"tiny",\n"unknown": 1e400, "x": [1,  2]}'
    headers = {"content-type": "application/json", "x-mine": "1", "cookie": "a=b", "x-api-key": door.key}
    async with door.http.post(door.url + "/v1/odd/path?a=%20b&c", data=strange, headers=headers) as answer:
        seen = await answer.json()
    assert door.engine.bodies == [strange]
    assert (seen["method"], seen["path"]) == ("POST", "/v1/odd/path?a=%20b&c")
    names = [name.lower() for name, _ in seen["headers"]]
    arrived = {name.lower(): value for name, value in seen["headers"]}
    assert len(names) == len(set(names))
    assert arrived["authorization"] == f"Bearer {door.engine.token}"
    assert arrived["x-mine"] == "1"
    assert arrived["accept-encoding"] == "identity"
    assert arrived["x-request-id"] == answer.headers["x-request-id"]
    assert door.key not in json.dumps(seen)
    assert not {"cookie", "x-api-key"} & set(names)


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "PUT", "PATCH"])
@pytest.mark.parametrize("how", ["query", "header"])
async def test_requests_without_a_body_find_their_model(open_door: OpenDoor, method: str, how: str) -> None:
    door = await open_door(models=[model("tiny", endpoints=("/v1/videos/*",))])
    query = "?model=tiny" if how == "query" else ""
    headers = {"x-sparkfleet-model": "tiny"} if how == "header" else {}
    async with door.http.request(method, f"{door.url}/v1/videos/v_1{query}", headers=headers) as answer:
        seen = await answer.json()
    assert (seen["method"], seen["path"], seen["size"]) == (method, f"/v1/videos/v_1{query}", 0)
    assert "x-sparkfleet-model" not in [name.lower() for name, _ in seen["headers"]]


async def test_a_path_that_another_deployment_names_is_not_of_this_one(open_door: OpenDoor) -> None:
    door = await open_door(models=[model("tiny"), model("video", endpoints=("/v1/videos",))])
    status, _, body = await door.post("/v1/videos")
    assert (status, json.loads(body)["error"]["code"]) == (404, "not_found")
    assert not door.engine.requests
    assert (await door.post("/v1/videos", model="video"))[0] == 200


async def test_a_form_finds_its_model_and_arrives_unchanged(door: Door) -> None:
    form = aiohttp.FormData()
    form.add_field("file", b"RIFF\0\xff" * 50_000, filename="speech.wav", content_type="audio/wav")
    form.add_field("model", "tiny")
    async with door.http.post(door.url + "/v1/audio/transcriptions", data=form) as answer:
        assert answer.status == 200
        seen = await answer.json()
    arrived = {name.lower(): value for name, value in seen["headers"]}
    assert arrived["content-type"].startswith("multipart/form-data; boundary=")
    assert door.engine.bodies[0].count(b"RIFF\0\xff") == 50_000


async def test_a_large_prompt_passes(door: Door) -> None:
    body = json.dumps(door.body(prompt="spark " * 1_000_000)).encode()
    async with door.http.post(door.url + CHAT, data=io.BytesIO(body)) as answer:
        assert answer.status == 200
    assert door.engine.bodies == [body]


async def test_an_engine_that_does_not_know_its_own_name_is_believed(open_door: OpenDoor) -> None:
    door = await open_door(engines=[FakeEngine(model="other")])
    status, _, body = await door.post()
    assert (status, json.loads(body)["error"]["code"]) == (404, 404)


async def test_hanging_up_while_the_body_is_sent_asks_nobody(door: Door) -> None:
    _, writer = await asyncio.open_connection(door.server.host, door.server.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {door.key}\r\ncontent-length: 99\r\n\r\n{{".encode()
    )
    await writer.drain()
    while not door.gateway.in_flight:
        await asyncio.sleep(0)
    writer.close()
    async with asyncio.timeout(5):
        await door.gateway.drain(5)
    assert not door.engine.requests
    assert door.value("sparkfleet_errors_total", model="", kind="client_gone") == 1
