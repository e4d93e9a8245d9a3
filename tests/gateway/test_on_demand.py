"""A model on demand: its requests wait until it has started, and what the gateway reports of them."""

from __future__ import annotations

import asyncio
import json
from time import perf_counter
from typing import TYPE_CHECKING

import pytest
from gateway_values import CHAT, paced_engine

from sparkfleet.gateway.admission.model_queue import ModelQueues
from sparkfleet.gateway.report import OnDemandUse
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

if TYPE_CHECKING:
    from conftest import Door, OpenDoor


def entry(state: str, **more: object) -> ModelEntry:
    groups = (GroupEntry(app="app-0", ready=state == "ready", concurrency=1, tools=False),)
    return ModelEntry.model_validate(
        {"name": "tiny", "deployment": "engine", "state": state, "on_demand": True, "groups": groups, **more}
    )


def publish(door: Door, state: str, **more: object) -> None:
    table = door.gateway.table
    models = {"tiny": entry(state, **more)}
    door.gateway.table = table.model_copy(update={"version": table.version + 1, "models": models})


async def unloaded(open_door: OpenDoor, **options: object) -> Door:
    return await open_door(engines=[paced_engine()], models=(entry("unloaded"),), **options)


async def until_waiting(door: Door, count: int) -> None:
    async with asyncio.timeout(10):
        while door.gateway.on_demand["tiny"].waiting != count:
            await asyncio.sleep(0.005)


async def test_requests_wait_for_its_start_and_are_all_served(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)
    calls = list[int]()
    door.gateway.proxy.queues.on_start_awaited = lambda: calls.append(1)
    requests = [asyncio.create_task(door.post()) for _ in range(3)]
    await until_waiting(door, 3)
    assert calls == [1], "the controller is to know of the first one at once"
    assert door.gateway.on_demand == {"tiny": OnDemandUse(in_flight=3, waiting=3)}
    publish(door, "starting")
    await asyncio.sleep(0.05)
    assert (door.gateway.on_demand["tiny"].waiting, door.engine.requests) == (3, [])
    publish(door, "ready")
    assert [status for status, _, _ in await asyncio.gather(*requests)] == [200, 200, 200]
    use = door.gateway.on_demand["tiny"]
    assert (use.in_flight, use.waiting) == (0, 0)


async def test_what_waits_for_a_slot_goes_on_waiting_if_it_is_unloaded(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)
    publish(door, "ready")
    first, second = [asyncio.create_task(door.post()) for _ in range(2)]
    async with asyncio.timeout(10):
        while not door.gateway.queued:
            await asyncio.sleep(0.005)
    publish(door, "unloaded")
    await until_waiting(door, 1)
    assert (await first)[0] == 200, "what an engine has goes on"
    publish(door, "ready")
    assert (await second)[0] == 200


async def test_the_time_to_the_first_token_has_no_start_in_it_and_the_caches_of_an_engine_end_with_it(
    open_door: OpenDoor,
) -> None:
    door = await unloaded(open_door)
    request = asyncio.create_task(door.post(stream=True))
    await until_waiting(door, 1)
    await asyncio.sleep(0.3)
    started = perf_counter()
    publish(door, "ready")
    assert (await request)[0] == 200
    assert 0 < door.value("sparkfleet_ttft_seconds_sum", model="tiny") <= perf_counter() - started
    caches = door.gateway.proxy.observed.caches
    caches.add(entry("ready").groups[0], (1, 2))
    assert caches.blocks("app-0", (1, 2)) == 2
    publish(door, "unloaded")
    assert caches.blocks("app-0", (1, 2)) == 0


async def test_a_client_that_leaves_no_longer_waits(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)
    request = asyncio.create_task(door.post())
    await until_waiting(door, 1)
    request.cancel()
    await until_waiting(door, 0)
    use = door.gateway.on_demand["tiny"]
    assert use.in_flight == 0


async def test_a_start_that_fails_refuses_what_waits_with_the_reason(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)
    request = asyncio.create_task(door.post())
    await until_waiting(door, 1)
    publish(door, "failed", detail="its engine did not start; `sparkfleet describe tiny` shows the reason")
    status, headers, body = await request
    error = json.loads(body)["error"]
    assert (status, error["code"], "retry-after" in headers) == (503, "model_not_ready", True)
    assert "`sparkfleet describe tiny` shows the reason" in error["message"]


async def test_a_start_that_takes_too_long_is_a_503_that_clients_try_again(open_door: OpenDoor) -> None:
    door = await unloaded(open_door, queues=ModelQueues(start_s=0.05))
    publish(door, "unloaded", detail="it starts once a ends, which has its memory")
    status, headers, body = await door.post()
    error = json.loads(body)["error"]
    assert (status, error["code"], "retry-after" in headers) == (503, "model_not_ready", True)
    assert 'The model "tiny" is unloaded: it starts once a ends, which has its memory.' in error["message"]


@pytest.mark.parametrize("state", ["starting", "stopped"])
async def test_others_are_refused_while_they_start(open_door: OpenDoor, state: str) -> None:
    door = await open_door(engines=[paced_engine()], models=(entry(state, on_demand=False),))
    assert (await door.post())[0] == 503
    assert door.gateway.on_demand == {}


async def test_what_no_group_can_serve_is_refused_at_once_and_starts_nothing(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)
    status, _, body = await door.post(tools=[{"type": "function", "function": {"name": "f"}}])
    assert (status, json.loads(body)["error"]["code"]) == (400, "unsupported_by_model")
    assert door.gateway.on_demand["tiny"].waiting == 0


async def test_the_reason_alone_says_that_it_would_wait_and_starts_nothing(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)
    async with door.http.post(
        door.url + CHAT, json=door.body(), headers={"x-sparkfleet-explain": "only"}
    ) as answer:
        assert (await answer.json())["why"] == "the model starts on demand: the request waits for that"
    assert door.gateway.on_demand["tiny"].waiting == 0
