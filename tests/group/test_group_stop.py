"""Stops of a group: what is still answered, and what still loads."""

import asyncio
import socket

import aiohttp
import pytest
from group_world import SECRET, group_launch, never, rank_spec

from sparkfleet.errors import EngineError
from sparkfleet.group.report import GroupPhase
from sparkfleet.group.start import bring_up
from sparkfleet.specs.timeouts import Timeouts


@pytest.mark.parametrize("kind", ["vllm", "custom"])
async def test_a_stop_waits_for_what_is_still_answered(world, engine, kind):
    own = {"engine": "custom", "command": ("serve",), "port": engine, "health": "/health"}
    candidate = group_launch().candidate.model_copy(update=own if kind == "custom" else {})
    group = world.group(candidate=candidate)
    await group.start()
    token = dict(rank_spec(group_launch(), 0, engine, SECRET).secret_env)["VLLM_API_KEY"]
    body = {"model": "tiny", "prompt": "x", "max_tokens": 300, "stream": True}
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {token}"}) as session,
        session.post(f"http://127.0.0.1:{engine}/v1/completions", json=body) as response,
    ):
        await response.content.readany()
        stopping = asyncio.create_task(group.stop(drain_s=30))
        text = await response.text()
        assert "[DONE]" in text
        assert kind == "vllm" or world.runtime.stopped == [], "the client has not closed its connection yet"
    await stopping
    assert world.runtime.stopped == [world.rank_id()]


async def test_checks_of_a_custom_workload_go_on_while_its_stop_waits_for_a_client(world, engine):
    own = {"engine": "custom", "command": ("serve",), "port": engine, "health": "/health"}
    group = world.group(
        candidate=group_launch().candidate.model_copy(update=own),
        timeouts=Timeouts(health_every_s=0.01),
        probed=True,
    )
    await group.start()
    watching = asyncio.create_task(group.watch())
    client = socket.create_connection(("127.0.0.1", engine))
    stopping = asyncio.create_task(group.stop(drain_s=30))
    await asyncio.wait({watching, stopping}, timeout=1)
    assert not watching.done()
    assert not stopping.done()
    client.close()
    await stopping
    assert world.runtime.stopped == [world.rank_id()]
    await watching


async def test_what_still_loads_answers_nobody_and_is_stopped_at_once(world, monkeypatch):
    monkeypatch.setattr(bring_up, "wait_healthy", never)
    group = world.group()
    starting = asyncio.create_task(group.start())
    while not any(report.ranks for report in world.reports):
        await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await group.stop(drain_s=30)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


@pytest.mark.parametrize("wanted", [False, True])
async def test_a_start_that_is_stopped_is_no_failed_one(world, engine, monkeypatch, wanted):
    """`delete` of what still loaded showed `failed`, with a defect of sparkfleet as the reason."""

    async def answer():
        return wanted

    monkeypatch.setattr(bring_up, "wait_healthy", never)
    group = world.group(wanted=answer)
    starting = asyncio.create_task(group.start())
    while not any(report.ranks for report in world.reports):
        await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await group.stop(drain_s=30)
        with pytest.raises((EngineError, asyncio.CancelledError)):
            await starting
    assert GroupPhase.FAILED not in [report.phase for report in world.reports]
    assert world.reports[-1].phase is GroupPhase.STOPPED
    assert world.runtime.stopped == ([] if wanted else [world.rank_id()])
