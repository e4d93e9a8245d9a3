"""The wait for an engine's last requests."""

import asyncio
import itertools

import pytest
from group_world import order

from sparkfleet.group import engine_client
from sparkfleet.group.engine_load import Load
from sparkfleet.group.group_launch import CUSTOM_DRAIN_S
from sparkfleet.specs.timeouts import Timeouts


@pytest.fixture
async def client(world, monkeypatch):
    """The client of a group that serves; its engine is taken for one that hangs after 0.2 s."""
    monkeypatch.setattr(engine_client, "BUSY_LOOK_S", 0.01)
    group = world.group()
    await group.start()
    group._client._still_s = 0.2
    yield group._client
    await group.stop(drain_s=0)


def reading(client, monkeypatch, loads):
    """Loads that the client reads, one after the other."""
    found = iter(loads)

    async def read_load():
        client.load = next(found)
        return client.load

    monkeypatch.setattr(client, "read_load", read_load)


@pytest.mark.parametrize("figures", [(5.0,), None], ids=["counters do not move", "metrics do not answer"])
async def test_an_engine_that_works_on_nothing_is_waited_for_no_longer(client, monkeypatch, figures):
    reading(client, monkeypatch, itertools.repeat(Load(running=1, waiting=0, figures=figures)))
    async with asyncio.timeout(30):
        await client.until_idle()
    assert client.load.running == 1


async def test_a_long_answer_is_waited_for_as_long_as_it_goes_on(client, monkeypatch):
    working = [Load(running=1, waiting=0, figures=(float(tokens),)) for tokens in range(60)]
    idle = Load(running=0, waiting=0, figures=(60.0,))
    reading(client, monkeypatch, [*working, idle])
    async with asyncio.timeout(30):
        await client.until_idle()
    assert client.load == idle


def test_a_custom_workload_has_less_time():
    launch = order(timeouts=Timeouts(drain_s=900))
    custom = launch.candidate.model_copy(update={"engine": "custom"})
    assert launch.drain_s == 900
    assert launch.model_copy(update={"candidate": custom}).drain_s == CUSTOM_DRAIN_S
