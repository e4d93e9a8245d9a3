"""The page cache is dropped while an engine loads, if little memory is free."""

import asyncio

import pytest

from sparkfleet.errors import NodeError
from sparkfleet.group.ranks import load_guard
from sparkfleet.group.ranks.load_guard import FLOOR, LEAST_CACHE, LoadGuard, memory_here
from sparkfleet.hostfacts.memory import MemoryMap
from sparkfleet.units import GIB


@pytest.fixture
def node(monkeypatch):
    """A node whose memory a test sets, and the drops of its cache."""

    class Node:
        free, cache, drops = 4 * GIB, 30 * GIB, 0
        fails = None

        def read(self):
            return MemoryMap(
                total=128 * GIB, free=self.free, available=self.free + self.cache, page_cache=self.cache,
                swap_total=0, swap_used=0, named=100 * GIB,
            )  # fmt: skip

        async def drop(self):
            await asyncio.sleep(0)
            self.drops += 1
            if self.fails:
                raise self.fails

    monkeypatch.setattr(load_guard, "EVERY_S", 0.0)
    return Node()


async def looks(node, times=1):
    guard = LoadGuard(node.drop, node.read)
    for _ in range(times):
        guard.look()
        for _ in range(4):
            await asyncio.sleep(0)
    return node.drops


async def test_the_cache_is_dropped_while_little_is_free(node):
    assert await looks(node, 3) == 3


@pytest.mark.parametrize(("free", "cache"), [(FLOOR, 30 * GIB), (0, LEAST_CACHE)])
async def test_not_if_enough_is_free_or_the_cache_holds_little(node, free, cache):
    node.free, node.cache = free, cache
    assert await looks(node) == 0


async def test_one_drop_at_a_time(node):
    guard = LoadGuard(node.drop, node.read)
    for _ in range(5):
        guard.look()
    await asyncio.sleep(0.01)
    assert node.drops == 1


async def test_a_look_between_two_that_are_due_reads_nothing(node, monkeypatch):
    monkeypatch.setattr(load_guard, "EVERY_S", 60.0)
    assert await looks(node, 3) == 0


@pytest.mark.parametrize("error", [OSError("no sudo"), NodeError("no answer")])
async def test_a_drop_that_fails_is_tried_again_and_ends_nothing(node, error):
    node.fails = error
    assert await looks(node, 2) == 2


def test_the_memory_of_this_machine_is_read():
    assert 0 < memory_here().free < memory_here().total
