"""Defects that public routers had, each with its report: this gateway must not have them.

Others are tested where they belong: the table in docs/gateway.md has all of them.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from sparkfleet.engines.fake import FakeEngine, InjectedFault, Pace
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.policy import circuit
from sparkfleet.gateway.request.requirements import needs_of
from sparkfleet.gateway.routing_table import GroupEntry, GroupSpeed, ModelEntry

if TYPE_CHECKING:
    from conftest import Door, OpenDoor

PACE = Pace(ttft_s=0.02, itl_s=0.002, tokens=8)


async def house(open_door: OpenDoor, *faults: InjectedFault | None) -> Door:
    """A door before an engine with each of these faults, 4 slots each."""
    engines = [FakeEngine(model="tiny", pace=PACE, token="internal-token", fault=fault) for fault in faults]
    groups = tuple(GroupEntry(app=f"app-{number}", concurrency=4) for number in range(len(faults)))
    entry = ModelEntry(name="tiny", groups=groups, deployment="engine", state="ready")
    return await open_door(engines=engines, models=[entry])


def held(door: Door) -> list[int]:
    return [door.gateway.proxy.observed.held(target.app) for target in door.picker.targets]


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429])
async def test_errors_of_clients_leave_a_group_in_use(open_door: OpenDoor, status: int) -> None:
    """sgl-project/sglang#25811, vllm-project/router#60: they opened the circuit of a healthy worker."""
    door = await house(open_door, InjectedFault(kind="status", status=status, times=12))
    assert [(await door.post())[0] for _ in range(12)] == [status] * 12
    assert (await door.post())[0] == 200
    assert len(door.engine.requests) == 13


async def test_errors_of_clients_do_not_make_a_failed_group_good(open_door: OpenDoor) -> None:
    """smg-project/smg#2565: a 400 counted as a success and closed the circuit."""
    door = await house(open_door, InjectedFault(kind="drop", times=1), None)
    assert (await door.post())[0] == 200
    door.engines[1].fault = InjectedFault(kind="status", status=400, times=3)
    assert [(await door.post())[0] for _ in range(3)] == [400] * 3
    assert (await door.post())[0] == 200
    assert len(door.engines[0].requests) == 1


async def test_a_group_that_failed_is_used_again(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sgl-project/sglang#31206: a circuit that was half open never closed."""
    monkeypatch.setattr(circuit, "OPEN_S", 0.05)
    door = await house(open_door, InjectedFault(kind="drop", times=1), None)
    await door.post()
    await asyncio.sleep(0.1)
    for _ in range(4):
        assert (await door.post())[0] == 200
    assert len(door.engines[0].requests) == 3


async def test_those_that_wait_are_not_sent_through_a_dead_group_to_a_full_one(open_door: OpenDoor) -> None:
    """A dead group has free slots, so that the queue in front of the others emptied itself through it."""
    door = await house(open_door, None, None)
    await door.engines[1].aclose()
    posting = [asyncio.create_task(door.post()) for _ in range(30)]
    most = 0
    while not all(task.done() for task in posting):
        most = max(most, door.engine.running)
        await asyncio.sleep(0.002)
    assert [task.result()[0] for task in posting] == [200] * 30
    assert most <= 8, "its own slots, and the four that were sent to the dead group before that was known"


async def test_one_request_tries_a_group_after_its_pause(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that comes back gets one request, not all that wait; its answer opens the way for the others."""
    monkeypatch.setattr(circuit, "OPEN_S", 0.05)
    door = await house(open_door, InjectedFault(kind="drop", times=1), None)
    assert (await door.post())[0] == 200
    await asyncio.sleep(0.1)
    monkeypatch.setattr(circuit, "OPEN_S", 60.0)
    door.engines[0].pace = Pace(ttft_s=3600)
    probe = asyncio.create_task(door.post())
    await door.engines[0].until(lambda engine: engine.running == 1)
    assert [(await door.post())[0] for _ in range(4)] == [200] * 4
    explain = {"x-sparkfleet-explain": "1"}
    async with door.http.post(door.url + "/v1/chat/completions", json=door.body(), headers=explain) as answer:
        why = json.loads(answer.headers["x-sparkfleet-explain"])
    assert {one["group"]: one.get("circuit") for one in why["groups"]} == {
        "app-0": "half-open: failed, a request tries it",
        "app-1": None,
    }
    assert len(door.engines[0].requests) == 2
    probe.cancel()
    door.engines[0].pace = PACE
    await door.engines[0].until(lambda engine: engine.running == 0)
    assert [(await door.post())[0] for _ in range(4)] == [200] * 4
    assert len(door.engines[0].requests) == 4
    assert not door.gateway.proxy.observed.circuit_line("app-0")


async def test_when_all_engines_were_lost_and_return_requests_are_served_again(open_door: OpenDoor) -> None:
    """sgl-project/sglang#7028: the router did not recover after all of its workers had died."""
    door = await house(open_door, *[InjectedFault(kind="drop", times=2)] * 2)
    assert (await door.post())[0] == 503
    for engine in door.engines:
        engine.fault = None
    assert [(await door.post())[0] for _ in range(4)] == [200] * 4
    assert held(door) == [0, 0]


async def test_checks_and_new_tables_do_not_touch_what_is_in_flight(open_door: OpenDoor) -> None:
    """vllm-project/router#197: a health check set the load of busy workers to zero."""
    door = await house(open_door, None, None)
    for engine in door.engines:
        engine.pace = Pace(ttft_s=0.0, itl_s=0.01, tokens=1000)
    async with door.http.post(door.url + "/v1/completions", json=door.body(stream=True)) as stream:
        await stream.content.readany()
        before = held(door)
        assert sum(before) == 1
        for version in range(2, 12):
            async with door.http.get(door.url + "/health") as health:
                assert health.status == 200
            door.gateway.table = door.gateway.table.model_copy(update={"version": version})
            assert held(door) == before
    await door.gateway.drain(5)
    assert held(door) == [0, 0]


async def test_clients_that_leave_at_any_moment_leave_no_load(open_door: OpenDoor) -> None:
    """vllm-project/router#215: each client that left before the engine's head kept its place for ever."""
    door = await house(open_door, None, None)

    async def leave(after_s: float) -> None:
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(after_s):
                await door.post(stream=True, max_tokens=500)

    for _ in range(3):
        await asyncio.gather(*(leave(number / 1000) for number in range(1, 40, 2)))
    assert await door.gateway.drain(5)
    assert held(door) == [0, 0]
    assert [door.gateway.proxy.observed.pending(target.app) for target in door.picker.targets] == [0, 0]
    assert door.gateway.proxy.bodies.held == 0
    async with asyncio.timeout(5):
        while any(engine.running for engine in door.engines):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["die", "drop"])
async def test_an_engine_that_is_lost_in_the_middle_leaves_no_load(open_door: OpenDoor, kind: str) -> None:
    """sgl-project/sglang-omni#931: the end of a broken connection raised, and the count stayed."""
    door = await house(open_door, InjectedFault.model_validate({"kind": kind, "after": 3}))
    await asyncio.gather(*(door.post(stream=True) for _ in range(4)), return_exceptions=True)
    assert held(door) == [0]


async def test_a_request_that_kills_its_engine_is_delivered_twice_at_most(open_door: OpenDoor) -> None:
    """BerriAI/litellm#2620: retries at two layers multiply."""
    door = await house(open_door, *[InjectedFault(kind="drop")] * 4)
    assert (await door.post())[0] == 503
    assert sum(len(engine.requests) for engine in door.engines) == 2


async def test_a_stream_is_never_sent_to_a_second_engine(open_door: OpenDoor) -> None:
    """A retry after the first byte would answer twice."""
    door = await house(open_door, InjectedFault(kind="drop", after=1), None)
    status, _, body = await door.post(stream=True)
    assert (status, b"[DONE]" in body) == (200, False)
    assert not door.engines[1].requests


def test_a_prompt_that_nobody_has_cached_goes_to_the_idle_group_whatever_its_cache_has() -> None:
    """sgl-project/sglang#14305, #14532: it went to the worker with the smallest tree, although that one was overloaded."""
    speed = GroupSpeed(prefill_tps=2000, alone_tps=40, together_tps=160, concurrency=8)
    busy, idle = (GroupEntry(app=app, concurrency=8, context=65536, speed=speed) for app in ("busy", "idle"))
    observed = ObservedGroups()
    system = needs_of({"messages": [{"role": "system", "content": "You are careful. " * 2000}]})
    observed.caches.add(idle, system.prefix)
    for _ in range(6):
        observed.begin("busy", 1000)
    unique = needs_of({"messages": [{"role": "user", "content": "Something else. " * 2000}]})
    assert observed.caches.blocks("idle", unique.prefix) == 0
    assert observed.forecasts([busy, idle], unique)[0].group.app == "idle"


async def test_of_streams_that_are_open_at_once_none_is_sent_to_the_busier_group(open_door: OpenDoor) -> None:
    """sgl-project/sglang#15473: observed were not counted on one path, so that the first worker got everything."""
    door = await house(open_door, None, None)
    for engine in door.engines:
        engine.pace = Pace(ttft_s=0.05, itl_s=0.002, tokens=8)
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"):
        before = [len(engine.requests) for engine in door.engines]
        await asyncio.gather(*(door.post(path, stream=number % 2 == 0, input="a") for number in range(8)))
        assert [len(engine.requests) - was for engine, was in zip(door.engines, before, strict=True)] == [
            4,
            4,
        ]


async def test_a_group_that_fails_is_not_tried_by_each_request(open_door: OpenDoor) -> None:
    """AMD-AGI/Infera#82: what had failed was forgotten with each request, so that all paid for it again."""
    door = await house(open_door, InjectedFault(kind="drop"), None)
    assert [(await door.post())[0] for _ in range(12)] == [200] * 12
    assert len(door.engines[0].requests) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_if_all_fail_before_the_first_byte_the_status_is_an_errors(
    open_door: OpenDoor, stream: bool
) -> None:
    """BerriAI/litellm#38610, #36768: the stream of a failed fallback began with 200."""
    for kind in ("drop", "status"):
        fault = InjectedFault.model_validate({"kind": kind, "status": 503})
        door = await house(open_door, fault, fault)
        status, headers, body = await door.post("/v1/messages", stream=stream)
        assert (status, headers["content-type"]) == (503, "application/json")
        assert json.loads(body)["error"]["message"]


async def test_nothing_is_sent_again_for_a_client_that_has_left(open_door: OpenDoor) -> None:
    """maximhq/bifrost#7035, musistudio/claude-code-router#1605: retries went on after the client had left."""
    door = await house(open_door, InjectedFault(kind="hang"), InjectedFault(kind="hang"))
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await door.post()
    for engine in door.engines:
        await engine.until(lambda one: one.running == 0)
        await engine.aclose()  # a connection that breaks now would be tried again for a client that is there
    assert await door.gateway.drain(5)
    assert sum(len(engine.requests) for engine in door.engines) == 1
    assert held(door) == [0, 0]


def test_prompts_with_another_salt_share_nothing() -> None:
    """smg-project/smg#2420: a prompt was held to a worker for a prefix that the engine keeps apart."""
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "Some long question. " * 500}]}
    plain, salted, same, other = (
        needs_of({**prompt, **salt}).prefix
        for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "a"}, {"extra_key": "b"})
    )
    assert salted == same
    assert not {*plain} & {*salted}
    assert not {*salted} & {*other}
    assert needs_of({**prompt, "cache_salt": 7}).prefix == plain


# The list in the documents

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| .*?`(tests/[a-z_/]+\.py)`: `(test_[a-z_]+)`")


def test_each_bug_of_the_table_has_its_test() -> None:
    page = (ROOT / "docs" / "gateway.md").read_text().partition("## Defects of public routers")[2]
    lines = [
        line for line in page.partition("\n## ")[0].splitlines() if line.startswith("| ") and "#" in line
    ]
    rows = [ROW.search(line) for line in lines]
    assert len(lines) >= 20
    assert None not in rows
    for row in rows:
        assert row is not None
        tree = ast.parse((ROOT / row[1]).read_text())
        assert row[2] in {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }, row[0]
