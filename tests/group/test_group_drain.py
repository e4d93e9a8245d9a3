"""The last requests of a group that is stopped."""

import asyncio

from group_world import stuck

from sparkfleet.errors import EngineError
from sparkfleet.group import engine_client
from sparkfleet.group.engine_load import Load
from sparkfleet.group.probe import Probe
from sparkfleet.group.report import GroupPhase
from sparkfleet.specs.timeouts import Timeouts

STUCK = Timeouts(stuck_s=0.05)
LONG_S = 600.0


async def test_an_engine_that_hangs_is_not_waited_for(world, monkeypatch):
    async def silent(probe, timeout_s=0):
        raise EngineError("no token in 30 s")

    group = world.group(timeouts=STUCK)
    await group.start()
    stuck(monkeypatch, silent)
    async with asyncio.timeout(30):
        await group.stop(LONG_S)
    assert world.runtime.stopped == [world.rank_id()]


async def test_a_long_answer_is_waited_for_although_no_counter_moves_before_its_end(world, monkeypatch):
    """TensorRT-LLM counts tokens with the end of an answer; a probe for a token tells it from one that hangs."""
    probes = []

    async def token(probe, timeout_s=0):
        probes.append(timeout_s)

    async def still(probe, engine, draft_tokens):
        return Load(running=1 if len(probes) < 3 else 0, waiting=0, figures=(7.0,))

    monkeypatch.setattr(engine_client, "BUSY_LOOK_S", 0.01)
    group = world.group(timeouts=STUCK)
    await group.start()
    monkeypatch.setattr(engine_client, "read_load", still)
    monkeypatch.setattr(Probe, "one_token", token)
    async with asyncio.timeout(30):
        await group.stop(LONG_S)
    assert len(probes) >= 3
    assert 1 in {one.running for one in world.reports if one.phase is GroupPhase.DRAINING}


async def test_an_engine_that_exits_is_not_waited_for(world, monkeypatch):
    group = world.group()
    await group.start()
    stuck(monkeypatch, Probe.one_token)
    stopping = asyncio.create_task(group.stop(LONG_S))
    while world.reports[-1].phase is not GroupPhase.DRAINING:
        await asyncio.sleep(0)
    world.runtime.exit(world.rank_id(), 3)
    async with asyncio.timeout(30):
        await stopping
