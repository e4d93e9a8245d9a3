"""Answers of fake engines on their way to clients, over real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import aiohttp
import pytest
from gateway_values import CHAT, ENDLESS, PACED

from sparkfleet.engines.fake import APIS, FakeEngine, InjectedFault, Pace
from sparkfleet.gateway.policy import circuit
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

if TYPE_CHECKING:
    from conftest import OpenDoor


@pytest.mark.parametrize("path", sorted(APIS))
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_an_answer_arrives_byte_for_byte(open_door: OpenDoor, path: str, streaming: bool) -> None:
    door = await open_door(pace=PACED)
    body = door.body(path, stream=streaming, stream_options={"include_usage": True})
    direct = {"authorization": f"Bearer {door.engine.token}"}
    async with aiohttp.request("POST", door.engine.url + path, json=body, headers=direct) as answer:
        bare, content_type = await answer.read(), answer.headers["content-type"]
    status, headers, through = await door.post(path, **{k: v for k, v in body.items() if k != "model"})
    assert status == 200
    assert through.replace(b"fake-1", b"fake-0") == bare
    assert headers["content-type"] == content_type
    assert headers["x-request-id"].startswith("req-")
    assert "server" not in headers


async def test_every_chunk_arrives_when_it_is_made(open_door: OpenDoor) -> None:
    """The engine makes its next token only when the client has seen the one before, but for the one that ends the text:

    it waits for the usage that is hidden from this client.
    """
    door = await open_door(pace=Pace(tokens=5))
    gates = [asyncio.Event() for _ in range(5)]
    waiting = iter(gates)

    async def gate(**changes: int) -> None:
        if changes.get("generated"):
            await next(waiting).wait()

    door.engine._tick = gate  # type: ignore[method-assign]
    async with door.http.post(
        door.url + "/v1/completions", json=door.body("/v1/completions", stream=True)
    ) as answer:
        for event in gates[:-1]:
            assert b"data: " in await answer.content.readany()
            event.set()
        gates[-1].set()
        assert (await answer.content.read()).endswith(b"[DONE]\n\n")


async def test_many_streams_at_once(open_door: OpenDoor) -> None:
    door = await open_door(engines=[FakeEngine(model="tiny", pace=PACED) for _ in range(2)])
    answers = await asyncio.gather(*(door.post(stream=True) for _ in range(64)))
    assert all(status == 200 and body.endswith(b"data: [DONE]\n\n") for status, _, body in answers)
    assert all(body.count(b'"content": ') == 11 for _, _, body in answers)
    assert [len(engine.requests) for engine in door.engines] == [32, 32]
    assert len({headers["x-request-id"] for _, headers, _ in answers}) == 64
    assert door.gateway.in_flight == 0


async def test_a_failure_in_one_stream_leaves_the_others_alone(open_door: OpenDoor) -> None:
    door = await open_door(
        engines=[FakeEngine(model="tiny", pace=PACED, fault=InjectedFault(kind="drop", after=3, times=1))]
    )
    answers = await asyncio.gather(*(door.post(stream=True) for _ in range(8)))
    whole = [body for _, _, body in answers if body.endswith(b"data: [DONE]\n\n")]
    assert len(whole) == 7


async def test_hanging_up_in_a_stream_stops_the_generation(open_door: OpenDoor) -> None:
    door = await open_door(pace=ENDLESS)
    async with door.http.post(door.url + CHAT, json=door.body(stream=True)) as answer:
        await answer.content.readany()
        assert door.engine.running == 1
        answer.close()
    async with asyncio.timeout(5):
        await door.engine.until(lambda engine: engine.aborted == 1 and engine.running == 0)
        await door.gateway.drain(5)
    assert door.value("sparkfleet_errors_total", model="tiny", kind="client_gone") == 1
    assert door.value("sparkfleet_requests_total", model="tiny", path=CHAT, status="499") == 1
    assert door.value("sparkfleet_requests_in_flight", model="tiny") == 0


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_hanging_up_before_the_first_byte_stops_the_generation(
    open_door: OpenDoor, streaming: bool
) -> None:
    door = await open_door(pace=Pace(ttft_s=3600))
    asking = asyncio.create_task(door.post(stream=streaming))
    async with asyncio.timeout(5):
        await door.engine.until(lambda engine: engine.running == 1)
        asking.cancel()
        await door.engine.until(lambda engine: engine.aborted == 1 and engine.running == 0)
        await door.gateway.drain(5)
    assert door.value("sparkfleet_errors_total", model="tiny", kind="client_gone") == 1
    assert not door.value("sparkfleet_retries_total", model="tiny")


async def test_a_client_that_does_not_read_does_not_fill_the_gateway(open_door: OpenDoor) -> None:
    """Its reading sets the pace, back to the engine; nothing is collected in between."""
    door = await open_door(pace=Pace(tokens=200_000))
    reader, writer = await asyncio.open_connection(door.server.host, door.server.port, limit=1024)
    body = json.dumps(door.body(stream=True)).encode()
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {door.key}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    )
    writer.write(body)
    await reader.readline()
    before = -1
    async with asyncio.timeout(20):
        while door.engine.generated != before:  # until nothing moves any more
            before = door.engine.generated
            await asyncio.sleep(0.05)
    assert 0 < before < 200_000
    writer.transport.abort()
    async with asyncio.timeout(5):
        await door.engine.until(lambda engine: engine.aborted == 1)


async def test_a_request_that_waits_tries_a_group_that_failed_once_its_pause_is_over(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request ends at that moment: it waited for the next one of the other group, which may take minutes."""
    monkeypatch.setattr(circuit, "OPEN_S", 0.3)
    groups = tuple(GroupEntry(app=f"app-{number}", concurrency=1) for number in range(2))
    tiny = ModelEntry(name="tiny", groups=groups, deployment="engine", state="ready")
    engines = [FakeEngine(model="tiny", token="internal-token") for _ in groups]
    door = await open_door(engines=engines, models=[tiny])
    observed = door.gateway.proxy.observed
    observed.begin("app-1")  # for ever
    observed.end("app-0", observed.begin("app-0"))
    observed.fail("app-0")
    posted = asyncio.create_task(door.post())
    # A machine that is stalled for the pause sends the request at once, without a wait.
    while not (door.gateway.proxy.queues.waiting("tiny") or posted.done()):
        await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        status, _, _ = await posted
    assert status == 200
