"""Copies of the store on other nodes: the newest sound one, on each node that answers, and named if it is not there."""

import asyncio
import hashlib

import pytest
from control_values import deployment, plan
from controller_fakes import FakeNodes

from sparkfleet.controlplane.state.store_copies import KeptCopy
from sparkfleet.controlplane.store_safety import copy_distribution as module
from sparkfleet.controlplane.store_safety.copies import take_copy
from sparkfleet.controlplane.store_safety.copy_distribution import (
    AGAIN_S,
    LONG_S,
    SEEN_S,
    CopyDistribution,
)
from sparkfleet.controlplane.store_safety.opening import open_store

OTHERS = ("spark2", "spark3")


@pytest.fixture
def store(paths):
    store = open_store(paths, "home")
    yield store
    store.close()


@pytest.fixture
def nodes():
    return FakeNodes(dict.fromkeys(OTHERS, 1))


class Distribution:
    """A distribution whose nodes are read before each look, as the controller does."""

    def __init__(self, paths, store, nodes, clock):
        self.nodes, self.reports = nodes, ()
        self.itself = CopyDistribution(
            paths, lambda: store.identity().id, nodes=nodes, reports=lambda: self.reports, steady=clock
        )

    async def look(self):
        self.reports = await self.nodes.look()
        await self.itself.look()
        return {name: kept.name for name, kept in self.nodes.kept.items()}


@pytest.fixture
def distribution(paths, store, nodes, clock):
    return Distribution(paths, store, nodes, clock)


async def test_each_node_gets_the_newest_copy_once(paths, store, nodes, distribution):
    take_copy(paths, "change", now=2000.0)
    store.deployments.put(deployment(), plan(), "me")
    newest = take_copy(paths, "change", now=1000.0)  # the clock was set back: it has more changes
    for _ in range(3):
        assert await distribution.look() == dict.fromkeys(OTHERS, newest.name)
    (sent,) = nodes.sent
    assert sent[0] == OTHERS
    assert sent[1] == (newest.name, newest.read_bytes(), hashlib.sha256(newest.read_bytes()).hexdigest())
    assert (distribution.itself.uncopied(), distribution.itself.warnings()) == ({}, ())


async def test_a_new_copy_follows_at_the_next_look(paths, nodes, distribution):
    take_copy(paths, "change", now=1000.0)
    await distribution.look()
    newest = take_copy(paths, "hourly", now=2000.0)
    assert await distribution.look() == dict.fromkeys(OTHERS, newest.name)


async def test_a_node_that_was_away_gets_it_when_it_answers(paths, nodes, distribution):
    newest = take_copy(paths, "change")
    nodes.away = {"spark3"}
    assert await distribution.look() == {"spark2": newest.name}
    assert distribution.itself.uncopied() == {"spark3": "it has not joined the fleet"}
    nodes.away, nodes.boots["spark3"] = set(), ""
    await distribution.look()
    assert distribution.itself.uncopied() == {"spark3": "it does not answer"}
    nodes.boots["spark3"] = "first"
    assert await distribution.look() == dict.fromkeys(OTHERS, newest.name)


async def test_a_node_that_lost_it_gets_it_again_at_once_after_another_boot(paths, nodes, distribution):
    newest = take_copy(paths, "change")
    await distribution.look()
    nodes.kept.clear()
    nodes.boots["spark2"] = "second"
    assert await distribution.look() == {"spark2": newest.name}


async def test_a_file_that_went_away_or_was_shortened_is_sent_again(paths, nodes, distribution, clock):
    newest = take_copy(paths, "change")
    await distribution.look()
    nodes.kept["spark2"] = KeptCopy(name=newest.name, bytes=0, since_s=1.0)
    del nodes.kept["spark3"]
    await distribution.look()
    assert len(nodes.sent) == 1, "the reading may be older than the sending"
    assert distribution.itself.uncopied() == {}
    clock.now += SEEN_S
    assert distribution.itself.uncopied() == dict.fromkeys(OTHERS, "it is about to be sent")
    assert await distribution.look() == dict.fromkeys(OTHERS, newest.name)
    assert nodes.kept["spark2"].bytes == newest.stat().st_size


async def test_a_node_that_refuses_it_is_sent_it_again_later_and_named_at_once(
    paths, nodes, distribution, clock
):
    take_copy(paths, "change")
    nodes.refuses["spark2"] = "its disk is full"
    for _ in range(3):
        await distribution.look()
    del nodes.kept["spark3"]
    assert len(nodes.sent) == 1
    assert distribution.itself.uncopied() == {"spark2": "its disk is full"}
    clock.now += AGAIN_S
    nodes.refuses.clear()
    await distribution.look()
    assert (len(nodes.sent), distribution.itself.uncopied()) == (2, {})


async def test_a_node_without_the_newest_copy_for_long_is_a_warning_with_its_meaning(
    paths, store, nodes, distribution, clock
):
    older = take_copy(paths, "change", now=1000.0)
    nodes.kept["spark3"] = KeptCopy(name=older.name, bytes=older.stat().st_size, since_s=1.0)
    store.deployments.put(deployment(), plan(), "me")
    take_copy(paths, "change", now=8200.0)
    nodes.refuses = dict.fromkeys(OTHERS, "its disk is full")
    await distribution.look()
    clock.now += LONG_S - 1
    await distribution.look()
    assert distribution.itself.warnings() == ()
    clock.now += 1
    await distribution.look()
    assert distribution.itself.warnings() == (
        "spark2 has been without the newest copy of the head's store for 10 min: its disk is full. If the head is lost,"
        " spark2 has no deployment and no key to go on with. `sparkfleet backup --to FILE` brings a copy to your machine.",
        "spark3 has been without the newest copy of the head's store for 10 min: its disk is full. If the head is lost,"
        " spark3 has only a copy that is 2 h older. `sparkfleet backup --to FILE` brings a copy to your machine.",
    )
    nodes.boots["spark2"] = ""
    nodes.away = {"spark3"}
    await distribution.look()
    assert distribution.itself.warnings() == (), "other lines name a node that is away or silent"
    nodes.away, nodes.refuses = set(), {}
    clock.now += AGAIN_S
    nodes.boots["spark2"] = "second"
    await distribution.look()
    assert distribution.itself.warnings() == ()


async def test_copies_of_another_store_damaged_ones_and_those_of_people_are_not_sent(
    paths, store, nodes, distribution
):
    await distribution.look()
    assert distribution.itself.uncopied() == dict.fromkeys(OTHERS, "the head has no sound copy of its store")
    sound = take_copy(paths, "change", now=1000.0)
    identity = store.identity()
    store.identify(identity.model_copy(update={"id": "another", "changes": 9}))
    take_copy(paths, "change", now=1001.0)
    store.identify(identity)
    take_copy(paths, "asked", now=1002.0).write_bytes(b"garbage" * 1000)
    take_copy(paths, "hourly", now=1003.0).rename(paths.backups / "kept.db")
    assert await distribution.look() == dict.fromkeys(OTHERS, sound.name)


async def test_one_that_is_too_large_is_named_and_not_sent(paths, nodes, distribution, clock, monkeypatch):
    monkeypatch.setattr(module, "LARGEST_BYTES", 4096)
    take_copy(paths, "change")
    assert await distribution.look() == {}
    assert "and at most 4.1 kB are sent" in distribution.itself.uncopied()["spark2"]
    clock.now += LONG_S
    assert len(distribution.itself.warnings()) == 2


async def test_a_copy_that_is_dropped_before_it_is_read_is_no_failure(
    paths, nodes, distribution, monkeypatch
):
    taken = take_copy(paths, "change", now=1000.0)
    find = module.newest_copy

    def drops(*found):
        newest = find(*found)
        taken.unlink(missing_ok=True)
        return newest

    monkeypatch.setattr(module, "newest_copy", drops)
    assert await distribution.look() == {}
    newest = take_copy(paths, "change", now=1001.0)
    assert await distribution.look() == dict.fromkeys(OTHERS, newest.name)


async def test_a_fleet_of_one_node_copies_nothing_elsewhere(paths, nodes, distribution):
    take_copy(paths, "change")
    nodes.available.clear()
    await distribution.look()
    assert (nodes.sent, distribution.itself.uncopied()) == ([], {})


async def test_it_goes_on_after_a_failure(paths, nodes, distribution, monkeypatch):
    calls = []

    async def fails(*_):
        calls.append(1)
        raise RuntimeError("Ray is away")

    newest = take_copy(paths, "change")
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    distribution.reports = await nodes.look()
    with monkeypatch.context() as patched:
        patched.setattr(nodes, "keep_copy", fails)
        running = asyncio.create_task(distribution.itself.run())
        while len(calls) < 2:
            await asyncio.sleep(0.001)
    async with asyncio.timeout(60):
        while not nodes.kept:
            await asyncio.sleep(0.001)
    running.cancel()
    assert nodes.kept["spark2"].name == newest.name
