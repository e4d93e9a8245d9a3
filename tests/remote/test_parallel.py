from __future__ import annotations

import asyncio

import pytest
from fake_channel import FakeChannel

from sparkfleet.errors import FactError, NodeError
from sparkfleet.remote.parallel import fan_out
from sparkfleet.remote.unreachable import Suspected


def fleet(count: int) -> dict[str, FakeChannel]:
    return {f"spark{i}": FakeChannel(f"spark{i}") for i in range(count)}


async def test_each_node_has_its_value_or_its_error():
    async def work(channel):
        if channel.node == "spark1":
            raise NodeError("no")
        if channel.node == "spark2":
            raise FactError("odd")
        return channel.node.upper()

    done = await fan_out(fleet(4), work)
    assert list(done) == ["spark0", "spark1", "spark2", "spark3"]
    assert (done["spark0"], done["spark3"]) == ("SPARK0", "SPARK3")
    assert isinstance(done["spark1"], NodeError)
    assert isinstance(done["spark2"], FactError)


async def test_a_node_that_never_answers_delays_no_other():
    finished = []

    async def work(channel):
        if channel.node == "spark0":
            await asyncio.Event().wait()
        finished.append(channel.node)
        return 1

    done = await fan_out(fleet(20), work, limit=2, timeout_s=0.1)
    assert isinstance(done["spark0"], Suspected)
    assert len(finished) == 19


async def test_no_more_than_the_limit_at_a_time():
    now = most = 0

    async def work(channel):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    await fan_out(fleet(50), work, limit=7)
    assert most == 7


async def test_a_mistake_of_ours_is_raised_and_ends_the_rest():
    cancelled = []

    async def work(channel):
        if channel.node == "spark0":
            raise ZeroDivisionError
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(channel.node)
            raise

    with pytest.raises(ZeroDivisionError):
        await fan_out(fleet(3), work)
    assert sorted(cancelled) == ["spark1", "spark2"]


async def test_the_works_own_time_outs_are_its_own():
    async def work(channel):
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await fan_out(fleet(1), work)


async def test_no_nodes_are_no_work():
    assert await fan_out({}, lambda channel: asyncio.sleep(0)) == {}
