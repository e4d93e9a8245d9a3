"""A model on demand: its requests wait until it has started, and what the gateway reports of them."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import anthropic
import openai
import pytest
from gateway_values import CHAT, paced_engine

from sparkfleet.engines.fake import FakeEngine, InjectedFault
from sparkfleet.gateway import reverse_proxy
from sparkfleet.gateway.admission.model_queue import ModelQueues
from sparkfleet.gateway.body.body_budget import KEY_SHARE, WAITING_SHARE
from sparkfleet.gateway.early_stream import EarlyStream
from sparkfleet.gateway.report import OnDemandUse
from sparkfleet.gateway.routing_table import GroupEntry, KeyLimits, ModelEntry

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


# What waits takes nothing from others


def limit_key(door: Door, **limits: int) -> None:
    table = door.gateway.table
    key = table.keys[0].model_copy(update={"limits": KeyLimits.model_validate(limits)})
    door.gateway.table = table.model_copy(update={"version": table.version + 1, "keys": (key,)})


async def beside_another(open_door: OpenDoor, **options: object) -> Door:
    """A door with an unloaded model and one that serves."""
    groups = (GroupEntry(app="app-1", concurrency=1),)
    other = entry("ready", name="other", on_demand=False, groups=groups)
    engines = [paced_engine(), FakeEngine(model="other", token="internal-token")]
    return await open_door(engines=engines, models=(entry("unloaded"), other), **options)


async def test_a_request_that_waits_holds_no_place_of_its_key_and_as_many_may_wait_as_may_run(
    open_door: OpenDoor,
) -> None:
    door = await beside_another(open_door)
    limit_key(door, concurrent=1)
    waiting = asyncio.create_task(door.post())
    await until_waiting(door, 1)
    assert (await door.post(model="other"))[0] == 200
    status, headers, body = await door.post()
    assert (status, "retry-after" in headers) == (429, True)
    assert "1 requests at once, and as many wait for models to start" in json.loads(body)["error"]["message"]
    models = {**door.gateway.table.models, "tiny": entry("ready")}
    door.gateway.table = door.gateway.table.model_copy(update={"version": 9, "models": models})
    assert (await waiting)[0] == 200
    assert (await door.post())[0] == 200, "its place is given back"


async def test_one_that_began_to_wait_for_a_slot_holds_none_either_once_its_model_is_unloaded(
    open_door: OpenDoor,
) -> None:
    door = await unloaded(open_door)
    publish(door, "ready")
    limit_key(door, concurrent=2)
    first, second = [asyncio.create_task(door.post()) for _ in range(2)]
    async with asyncio.timeout(10):
        while not door.gateway.queued:
            await asyncio.sleep(0.005)
    publish(door, "unloaded")
    limit_key(door, concurrent=2)
    assert (await first)[0] == 200
    third = asyncio.create_task(door.post())
    await until_waiting(door, 2)
    publish(door, "ready")
    assert [(await one)[0] for one in (second, third)] == [200, 200]


async def test_bodies_of_what_waits_leave_room_for_the_others(open_door: OpenDoor) -> None:
    door = await beside_another(open_door, budget_bytes=40_000)
    prompt = [{"role": "user", "content": "x" * int(40_000 * WAITING_SHARE * KEY_SHARE * 0.6)}]
    waiting = asyncio.create_task(door.post(messages=prompt))
    await until_waiting(door, 1)
    status, headers, body = await door.post(messages=prompt)
    assert (status, json.loads(body)["error"]["code"]) == (503, "gateway_busy")
    assert "retry-after" in headers
    assert (await door.post(model="other", messages=prompt))[0] == 200
    waiting.cancel()
    await until_waiting(door, 0)
    assert door.gateway.proxy.bodies.held == 0
    again = asyncio.create_task(door.post(messages=prompt))
    await until_waiting(door, 1)
    again.cancel()
    await until_waiting(door, 0)


async def test_a_gateway_that_stops_lets_what_waits_go_to_the_next_one(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)
    request = asyncio.create_task(door.post())
    await until_waiting(door, 1)
    assert await door.gateway.drain(5)
    status, headers, body = await request
    assert (status, json.loads(body)["error"]["code"], headers["retry-after"]) == (503, "draining", "1")


# Streams that live while they wait


@pytest.fixture
def lively(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams begin at once, and have a comment every 10 ms."""
    monkeypatch.setattr(reverse_proxy, "EarlyStream", partial(EarlyStream, begins_s=0.0, every_s=0.01))


async def until_begun(door: Door) -> None:
    await until_waiting(door, 1)
    await asyncio.sleep(0.05)


@pytest.mark.usefixtures("lively")
async def test_a_stream_has_comments_while_it_waits_and_then_its_answer(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)
    async with door.http.post(door.url + CHAT, json=door.body(stream=True)) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        assert answer.headers["x-request-id"].startswith("req-")
        assert await answer.content.readline() == b": waiting for the start of tiny\n"
        publish(door, "ready")
        lines = (await answer.content.read()).split(b"\n\n")
    events = [line for line in lines if line.startswith(b"data: ")]
    assert len(events) > 2
    assert events[-1] == b"data: [DONE]"
    assert all(one.strip().startswith((b":", b"data: ")) for one in lines if one.strip())
    assert door.value("sparkfleet_requests_total", model="tiny", path=CHAT, status="200") == 1


@pytest.mark.usefixtures("lively")
async def test_what_is_no_stream_waits_without_a_byte(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)
    request = asyncio.create_task(door.post())
    await until_begun(door)
    publish(door, "failed", detail="its engine did not start")
    assert (await request)[0] == 503


async def test_what_fails_before_the_stream_begins_has_its_status(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)
    request = asyncio.create_task(door.post(stream=True))
    await until_begun(door)
    publish(door, "failed", detail="its engine did not start")
    assert (await request)[0] == 503


@pytest.mark.usefixtures("lively")
async def test_a_failed_start_ends_the_stream_with_an_error_event_and_is_counted_as_that(
    open_door: OpenDoor,
) -> None:
    door = await unloaded(open_door)
    request = asyncio.create_task(door.post(stream=True))
    await until_begun(door)
    publish(door, "failed", detail="its engine did not start")
    status, _, body = await request
    (event,) = [line for line in body.split(b"\n\n") if line.startswith(b"data: ")]
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (status, error["code"]) == (200, "model_not_ready")
    assert "its engine did not start" in error["message"]
    assert door.value("sparkfleet_requests_total", model="tiny", path=CHAT, status="503") == 1
    assert door.value("sparkfleet_errors_total", model="tiny", kind="not_ready") == 1


@pytest.mark.usefixtures("lively")
async def test_an_error_of_the_engine_is_an_event_of_the_stream(open_door: OpenDoor) -> None:
    fault = InjectedFault(kind="status", status=422)
    door = await open_door(engines=[paced_engine(fault)], models=(entry("unloaded"),))
    request = asyncio.create_task(door.post(stream=True))
    await until_begun(door)
    publish(door, "ready")
    status, _, body = await request
    *_, event, end = body.split(b"\n\n")
    assert (status, end) == (200, b"")
    assert "error" in json.loads(event.removeprefix(b"data: "))
    assert door.value("sparkfleet_requests_total", model="tiny", path=CHAT, status="422") == 1


@pytest.mark.usefixtures("lively")
async def test_a_client_that_leaves_its_stream_no_longer_waits(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)
    async with door.http.post(door.url + CHAT, json=door.body(stream=True)) as answer:
        await answer.content.readline()
        answer.close()
    await until_waiting(door, 0)


@pytest.mark.usefixtures("lively")
async def test_openais_client_skips_the_comments_and_raises_the_error(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)
    asked = [{"role": "user", "content": "one two three"}]
    async with openai.AsyncOpenAI(base_url=door.url + "/v1", api_key=door.key, max_retries=0) as client:
        stream = await client.chat.completions.create(model="tiny", messages=asked, stream=True)  # type: ignore[call-overload]
        await asyncio.sleep(0.05)
        publish(door, "ready")
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        assert text.strip()
        publish(door, "unloaded")
        events = await client.responses.create(model="tiny", input="one two three", stream=True)
        await asyncio.sleep(0.05)
        publish(door, "ready")
        assert [event.type async for event in events][-1] == "response.completed"
        publish(door, "unloaded")
        stream = await client.chat.completions.create(model="tiny", messages=asked, stream=True)  # type: ignore[call-overload]
        publish(door, "failed", detail="its engine did not start")
        with pytest.raises(openai.APIError, match="its engine did not start"):
            [chunk async for chunk in stream]


@pytest.mark.usefixtures("lively")
async def test_anthropics_client_skips_the_comments_and_raises_the_error(open_door: OpenDoor) -> None:
    door = await unloaded(open_door)

    async with anthropic.AsyncAnthropic(base_url=door.url, api_key=door.key, max_retries=0) as client:

        async def ask(state: str) -> str:
            publish(door, "unloaded")
            async with client.messages.stream(
                model="tiny", max_tokens=9, messages=[{"role": "user", "content": "one two three"}]
            ) as stream:
                await asyncio.sleep(0.05)
                publish(door, state, detail="its engine did not start")
                return "".join([text async for text in stream.text_stream])

        assert (await ask("ready")).strip()
        with pytest.raises(anthropic.APIStatusError, match="its engine did not start"):
            await ask("failed")


async def test_each_wait_for_a_start_is_measured_from_0_on_also_of_what_is_refused(
    open_door: OpenDoor,
) -> None:
    door = await unloaded(open_door)

    def waits(part: str) -> float | None:
        registry = door.gateway.metrics.registry
        return registry.get_sample_value(f"sparkfleet_start_wait_seconds_{part}", {"model": "tiny"})

    assert waits("count") == 0
    requests = [asyncio.create_task(door.post()) for _ in range(2)]
    await until_waiting(door, 2)
    await asyncio.sleep(0.2)
    publish(door, "ready")
    assert [(await one)[0] for one in requests] == [200, 200]
    assert waits("count") == 2
    assert 0.4 <= (waits("sum") or 0) < 10
    await door.post()
    assert waits("count") == 2, "it did not wait"
    publish(door, "unloaded")
    refused = asyncio.create_task(door.post())
    await until_waiting(door, 1)
    publish(door, "failed")
    assert (await refused)[0] == 503
    assert waits("count") == 3


async def test_the_waits_of_one_that_is_applied_later_begin_at_0_too(open_door: OpenDoor) -> None:
    """Its first wait was the first sample of its series, which Prometheus counts as no increase."""
    door = await unloaded(open_door)
    table = door.gateway.table
    models = {**table.models, "eyes": entry("unloaded").model_copy(update={"name": "eyes"})}
    door.gateway.table = table.model_copy(update={"version": table.version + 1, "models": models})
    waits = door.gateway.metrics.registry.get_sample_value(
        "sparkfleet_start_wait_seconds_count", {"model": "eyes"}
    )
    assert waits == 0
