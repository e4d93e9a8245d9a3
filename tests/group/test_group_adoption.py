"""Engines that outlive their group's actor, or the holder of a rank, and the next actor that adopts them."""

import asyncio

import pytest
from group_world import TWO, never, stuck

from sparkfleet.group import serving_watch
from sparkfleet.group.ranks import local_rank as rank_module
from sparkfleet.group.report import GroupPhase


async def answer(wanted):
    return wanted


async def test_an_engine_that_is_still_wanted_runs_on_when_its_actor_is_stopped_and_is_adopted(world):
    group = world.group(wanted=lambda: answer(True))
    await group.start()
    await group.stop(drain_s=5)
    assert world.runtime.stopped == []
    last = world.reports[-1]
    assert (last.phase, "the next actor adopts it" in last.detail) == (GroupPhase.STOPPED, True)
    following = world.group(after="it did not run for 8 s and was ended")
    await following.start()
    assert world.reports[-1].adopted
    assert "its last actor" not in world.reports[-1].detail
    words = [report.detail for report in world.reports if report.phase is GroupPhase.STARTING]
    assert "the group's last actor: it did not run for 8 s and was ended" in words
    await following.stop(drain_s=0)
    assert world.runtime.stopped == [world.rank_id()], "nobody wants it now"


async def test_an_engine_that_a_reboot_ended_is_named_as_that_once(world):
    """Its node reports nothing at a loss of power: the engine was only "starting" again, without a reason."""
    group = world.group(wanted=lambda: answer(True))
    await group.start()
    await group.stop(drain_s=0)  # released: the note stays, as after a loss of power
    world.boot = "second"
    world.runtime.exit(world.rank_id(), -9, "")
    following = world.group()
    await following.start()
    words = "a was switched off or restarted while its engine served; the engine is loaded again"
    assert {report.lost for report in world.reports} == {"", words}
    assert (world.reports[-1].phase, world.reports[-1].lost) == (GroupPhase.READY, "")
    await following.stop(drain_s=0)


async def test_an_engine_that_was_stopped_by_intention_was_not_ended_by_the_next_reboot(world):
    group = world.group()
    await group.start()
    await group.stop(drain_s=0)
    world.boot = "second"
    following = world.group()
    await following.start()
    assert {report.lost for report in world.reports} == {""}
    await following.stop(drain_s=0)


async def held_through_actors(world, **fields):
    """A group over two nodes that serves, and the watch over it."""
    group = world.group(placements=TWO, remote=True, **{"wanted": lambda: answer(True), **fields})
    await group.start()
    watching = asyncio.create_task(group.watch())
    await asyncio.sleep(0.05)
    return group, watching


async def test_an_engine_that_generates_after_the_loss_of_a_ranks_holder_is_adopted_on_all_nodes(world):
    """All ranks were stopped and loaded again for the death of a process that none of them needs."""
    group, watching = await held_through_actors(world)
    await world.actors[0].kill()
    words = await asyncio.wait_for(watching, 5)
    assert words.startswith("b: the node or its rank's actor is gone; the engine generates on all ranks")
    last = world.reports[-1]
    assert (last.phase, last.detail, group.ended) == (GroupPhase.STOPPED, words, "")
    assert GroupPhase.FAILED not in world.phases, "it would count against its rung"
    following = world.group(placements=TWO, remote=True)
    await following.start()
    assert world.reports[-1].adopted
    assert [len(runtime.started) for runtime in world.runtimes] == [1, 1]
    assert [runtime.stopped for runtime in world.runtimes] == [[], []]
    await following.stop(drain_s=0)


async def test_a_rank_that_ends_without_a_holder_ends_the_others_with_the_next_actor(world):
    _, watching = await held_through_actors(world)
    await world.actors[0].kill()
    await asyncio.wait_for(watching, 5)
    world.runtimes[1].crash(world.rank_id(1))
    following = world.group(placements=TWO, remote=True)
    await following.start()
    assert not world.reports[-1].adopted
    assert world.runtimes[0].stopped == [world.rank_id(0)], "none runs alone"
    assert any("rank 1 on b: its supervisor was killed" in one.lost for one in world.reports)
    await following.stop(drain_s=0)


@pytest.mark.parametrize("why", ["no token", "not wanted", "it exited"])
async def test_the_loss_of_a_holder_ends_an_engine_that_is_dead_or_not_wanted(world, monkeypatch, why):
    """A node without power: nothing may hold the memory of the others until a lease is over."""
    monkeypatch.setattr(serving_watch, "ALIVE_S", 0.2)
    wanted = {"wanted": lambda: answer(False)} if why == "not wanted" else {}
    group, watching = await held_through_actors(world, **wanted)
    if why == "no token":
        stuck(monkeypatch, never)
    if why == "it exited":
        world.runtimes[1].exit(world.rank_id(1), 3)
    else:
        await world.actors[0].kill()
    words = await asyncio.wait_for(watching, 5)
    end = "the engine exited with code 3" if why == "it exited" else "b: the node or its rank's actor is gone"
    assert words.startswith(f"The engine exited on b (rank 1): {end}")
    assert world.reports[-1].phase is GroupPhase.FAILED
    assert world.runtimes[0].stopped == [world.rank_id(0)]
    await group.stop(drain_s=0)


async def test_one_that_failed_is_stopped_although_it_is_wanted(world, monkeypatch):
    group = world.group(wanted=lambda: answer(True))
    await group.start()
    monkeypatch.setattr(rank_module, "available_memory", lambda: 1 << 20)
    await asyncio.wait_for(group.watch(), 5)
    await group.stop(drain_s=0)
    assert world.reports[-1].phase is GroupPhase.FAILED
    assert world.runtime.stopped == [world.rank_id()]
