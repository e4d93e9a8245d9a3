"""Attempts of a request, before the first byte of its answer."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from gateway_values import paced_engine

from sparkfleet.engines.fake import InjectedFault
from sparkfleet.gateway.engine import attempts
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.routing_table import ModelEntry

if TYPE_CHECKING:
    from conftest import OpenDoor

FAILING = {
    "killed": InjectedFault(kind="die"),
    "drops": InjectedFault(kind="drop"),
    "500": InjectedFault(kind="status", status=500),
    "502": InjectedFault(kind="status", status=502),
    "503": InjectedFault(kind="status", status=503),
}


@pytest.mark.parametrize("fault", FAILING.values(), ids=FAILING)
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_an_engine_that_fails_before_the_first_byte_is_replaced_unseen(
    open_door: OpenDoor, fault: InjectedFault, streaming: bool
) -> None:
    door = await open_door(engines=[paced_engine(fault), paced_engine()])
    status, headers, body = await door.post(stream=streaming)
    assert status == 200
    assert "retry-after" not in headers
    assert body.endswith(b"data: [DONE]\n\n") if streaming else json.loads(body)["choices"]
    assert len(door.engines[1].requests) == 1
    assert door.picker.excluded == [frozenset(), {door.engines[0].url}]
    assert door.value("sparkfleet_retries_total", model="tiny") == 1
    assert not door.value("sparkfleet_errors_total", model="tiny", kind="engine_lost")


async def test_engines_that_are_not_there_are_passed_over(open_door: OpenDoor) -> None:
    door = await open_door(engines=[paced_engine(), paced_engine(), paced_engine()])
    for gone in door.engines[:2]:
        await gone.aclose()
    status, _, _ = await door.post()
    assert status == 200
    assert door.value("sparkfleet_retries_total", model="tiny") == 2


async def test_without_another_engine_the_failing_one_has_its_say(open_door: OpenDoor) -> None:
    door = await open_door(engines=[paced_engine(FAILING["503"])])
    status, headers, body = await door.post()
    error = {"message": "on demand", "type": "server_error", "param": None, "code": 503}
    assert (status, json.loads(body)) == (503, {"error": error})
    assert headers["x-request-id"].startswith("req-")
    assert door.value("sparkfleet_errors_total", model="tiny", kind="engine_error") == 1


async def test_of_two_failing_engines_the_last_one_has_its_say(open_door: OpenDoor) -> None:
    door = await open_door(
        engines=[paced_engine(FAILING["500"]), paced_engine(FAILING["503"]), paced_engine()]
    )
    status, _, _ = await door.post()
    assert status == 503
    assert not door.engines[2].requests


async def test_a_request_that_kills_engines_does_not_meet_them_all(open_door: OpenDoor) -> None:
    door = await open_door(engines=[paced_engine(InjectedFault(kind="die")) for _ in range(4)])
    status, headers, body = await door.post()
    assert status == 503
    assert json.loads(body)["error"]["code"] == "engine_lost"
    assert headers["retry-after"] == "5"
    assert [len(each.requests) for each in door.engines] == [1, 1, 0, 0]


async def test_nor_does_it_where_the_gateway_has_kept_their_connections(open_door: OpenDoor) -> None:
    door = await open_door(engines=[paced_engine() for _ in range(4)])
    for _ in door.engines:
        assert (await door.post())[0] == 200
    for each in door.engines:
        each.fault = InjectedFault(kind="die")
    assert (await door.post())[0] == 503
    assert sorted(len(each.requests) for each in door.engines) == [1, 1, 2, 2]


async def test_a_second_try_on_the_same_engine_counts(open_door: OpenDoor) -> None:
    """Each drops the request on its kept connection, and again on a new one."""
    door = await open_door(engines=[paced_engine() for _ in range(3)])
    for _ in door.engines:
        assert (await door.post())[0] == 200
    for each in door.engines:
        each.fault = FAILING["drops"]
    assert (await door.post())[0] == 503
    assert sum(len(each.requests) for each in door.engines) == 3 + attempts.DELIVERIES


async def test_a_request_is_retried_twice_and_not_more(open_door: OpenDoor) -> None:
    door = await open_door(engines=[paced_engine() for _ in range(4)])
    for gone in door.engines[:3]:
        await gone.aclose()
    assert (await door.post())[0] == 503
    assert not door.engines[3].requests
    assert door.value("sparkfleet_retries_total", model="tiny") == 2


async def test_at_most_so_many_engines_are_asked(open_door: OpenDoor) -> None:
    door = await open_door(engines=[paced_engine() for _ in range(attempts.ATTEMPTS + 1)])
    for gone in door.engines[:-1]:
        await gone.aclose()
    status, _, _ = await door.post()
    assert status == 503
    assert not door.engines[-1].requests


async def test_an_engine_that_does_not_know_the_gateway_is_passed_over(
    open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    """A 401 of an engine is about the gateway's token, and must not look as if the client's key were wrong."""
    door = await open_door(engines=[paced_engine(), paced_engine()])
    door.engines[0].token = "of another generation"
    assert (await door.post())[0] == 200
    door.engines[1].token = "as well"
    status, _, body = await door.post()
    assert (status, json.loads(body)["error"]["code"]) == (503, "engine_lost")
    assert f"lost group-0 at {door.engines[0].url}: it answered 401" in caplog.text
    assert "internal-token" not in caplog.text


async def test_when_there_is_nobody_to_ask(open_door: OpenDoor) -> None:
    door = await open_door(engines=[])
    status, headers, body = await door.post()
    assert (status, headers["retry-after"]) == (503, "5")
    assert json.loads(body)["error"]["code"] == "no_engine"


async def test_a_picker_that_names_a_failed_engine_again_is_not_believed(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = await open_door(engines=[paced_engine(FAILING["drops"])])

    async def pick(model: ModelEntry, groups: object, *, exclude: object) -> EngineEndpoint | None:
        return door.picker.targets[0]

    monkeypatch.setattr(door.picker, "pick", pick)
    status, _, _ = await door.post()
    assert status == 503
    assert len(door.engine.requests) == 1  # on a fresh connection, and then no more


@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_an_error_of_the_client_is_passed_on_and_no_failure_of_the_engine(
    open_door: OpenDoor, status: int
) -> None:
    door = await open_door(
        engines=[paced_engine(InjectedFault(kind="status", status=status)), paced_engine()]
    )
    seen, _, body = await door.post()
    assert seen == status
    assert json.loads(body)["error"]["code"] == status
    assert not door.engines[1].requests
    assert door.value("sparkfleet_errors_total", model="tiny", kind="engine_refused") == 1


async def test_an_engine_whose_client_left_while_its_error_arrived_is_hung_up_on(open_door: OpenDoor) -> None:
    ended = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Bad\r\ncontent-length: 100\r\n\r\n{")
        while await reader.read(4096):
            pass
        ended.set()
        writer.close()

    door = await open_door()
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as engine:
        port = engine.sockets[0].getsockname()[1]
        door.picker.targets = [EngineEndpoint(url=f"http://127.0.0.1:{port}", app="app-0")]
        asking = asyncio.create_task(door.post())
        await asyncio.sleep(0.1)
        asking.cancel()
        async with asyncio.timeout(5):
            await ended.wait()


async def test_an_answer_that_is_given_up_for_another_engines_is_hung_up_on(open_door: OpenDoor) -> None:
    hung_up = asyncio.Event()

    async def failing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 1000\r\n\r\nI could go on")
        await reader.read()
        hung_up.set()
        writer.close()

    async with await asyncio.start_server(failing, "127.0.0.1", 0) as server:
        door = await open_door(engines=[paced_engine()])
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        door.picker.targets.insert(0, EngineEndpoint(url=url, app="app-0"))
        assert (await door.post())[0] == 200
        async with asyncio.timeout(5):
            await hung_up.wait()
