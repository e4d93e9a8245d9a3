"""All ranks of a group: diagnoses of failed starts, shortages of memory, ends."""

import asyncio
import pickle
from types import SimpleNamespace

import pytest
from rank_world import World

from sparkfleet.errors import Cause, EngineError, NodeError
from sparkfleet.group.ranks import memory_watch
from sparkfleet.group.ranks import rank_set as module
from sparkfleet.group.ranks.local_rank import LocalRank
from sparkfleet.runtime.exit_codes import TOOL_LOST
from sparkfleet.specs.timeouts import Timeouts

IMPATIENT = Timeouts(memory_s=0.001)

BEGAN = "[sparkfleet] 2026-11-20 18:00:00,123 running: sglang\n"

OF_NEXTN = BEGAN + "TypeError: '>' not supported between instances of 'NoneType' and 'int'\n"


async def test_a_rung_that_never_began_is_not_told_the_cause_of_the_one_before(tmp_path):
    world = World(tmp_path, needs=1 << 60, timeouts=IMPATIENT)
    world.write_log(OF_NEXTN)
    told = await world.refused()
    assert (told.cause, told.rule, told.evidence) == (Cause.MEMORY, "", "")
    assert "predicted to need" in told.summary


async def test_of_what_was_started_the_log_tells(tmp_path):
    world = World(tmp_path)
    await world.take()
    world.write_log(OF_NEXTN)
    told = await world.ranks.diagnose(EngineError("it exited"), None)
    assert (told.cause, told.rule) == (Cause.KNOWN, "sglang-nextn-none-typeerror")
    assert told.began


async def test_of_what_was_adopted_the_log_tells(tmp_path):
    world = World(tmp_path)
    await world.take()
    await world.holders[0]._rank.close()
    again = world.anew()
    assert (await world.take(again))[1], "adopted"
    world.write_log(OF_NEXTN)
    assert (await again.diagnose(EngineError("it exited"), None)).cause is Cause.KNOWN


async def test_memory_that_somebody_else_holds_is_not_held_against_the_candidate(tmp_path):
    told = await World(tmp_path, needs=1 << 60, timeouts=IMPATIENT).refused()
    assert str(told).startswith("out of memory: Each rank is predicted to need")
    assert told.lasts_s == 0


async def test_memory_that_runs_out_while_it_loads_is_held_against_the_candidate(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_watch, "FLOOR_BYTES", {"cuda": 1 << 60})
    world = World(tmp_path)
    await world.take()
    with pytest.raises(EngineError, match=r"this has only [0-9.]+ GiB of memory left") as caught:
        await world.ranks.memory.watch()
    told = await world.ranks.diagnose(caught.value, None)
    assert told.cause is Cause.MEMORY
    assert "of memory left: the group was stopped" in told.summary
    assert told.lasts_s > 0


async def test_memory_that_was_waited_for_does_not_explain_how_the_start_ends(tmp_path, monkeypatch):
    left = [1 << 30, 100 << 30]

    async def memory(rank):
        return left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr(LocalRank, "memory", memory)
    monkeypatch.setattr(module, "ROOM_LOOK_S", 0.0)
    world = World(tmp_path, needs=50 << 30, timeouts=Timeouts(memory_s=60))
    await world.take()
    assert world.waited == ["waiting for memory: this has 1.0 GiB"]
    assert (await world.ranks.diagnose(EngineError("it exited"), None)).cause is Cause.UNKNOWN


async def test_a_start_that_waits_for_its_declared_port_names_it(tmp_path, monkeypatch):
    """`apply` printed "waiting" for a minute, and nothing else."""
    world = World(tmp_path)
    candidate = world.launch.candidate.model_copy(update={"port": 5005})
    world.ranks._launch = world.launch.model_copy(update={"candidate": candidate})
    free = asyncio.Event()
    monkeypatch.setattr(module, "is_taken", lambda port: port == 5005 and not free.is_set())
    monkeypatch.setattr(module, "ROOM_LOOK_S", 0.0)
    start = LocalRank.start

    async def starts(rank, rendezvous):
        """Its container tool is away until the port is free, and for longer."""
        async with asyncio.timeout(10):
            while len(world.waited) < 1:
                await asyncio.sleep(0.01)
            free.set()
            while len(world.waited) < 2:
                await asyncio.sleep(0.01)
        return await start(rank, rendezvous)

    monkeypatch.setattr(LocalRank, "start", starts)
    await world.take()
    words, after = world.waited
    assert words.startswith("waiting for port 5005 of this, which is taken: `ss -ltnp 'sport = :5005'`")
    assert after == "", "what it waits for then is another thing"


async def test_an_image_that_is_not_there_is_missing_and_no_fault_of_the_candidate(tmp_path):
    """One rank fails; the other has started, and its log does not explain it."""
    world = World(tmp_path, nodes=("this", "that"))

    async def start(spec):
        raise NodeError("the image x is not on this node", because=Cause.MISSING)

    world.runtimes[1].start = start
    told = await world.refused()
    assert (told.cause, told.summary) == (Cause.MISSING, "the image x is not on this node")
    assert told.lasts_s == 0
    assert len(world.runtimes[0].started) == 1


async def test_a_container_tool_that_does_not_work_is_the_cause_with_its_node(tmp_path):
    world = World(tmp_path, nodes=("this", "that"))

    async def start(spec):
        raise NodeError("docker did not answer in 15 s", because=Cause.TOOL)

    world.runtimes[1].start = start
    told = await world.refused()
    assert (told.cause, told.nodes) == (Cause.TOOL, ("that",))
    assert told.lasts_s == 0


async def test_a_container_tool_that_ends_its_container_is_the_cause_whatever_the_log_has(tmp_path):
    world = World(tmp_path, nodes=("this", "that"))
    statuses, _ = await world.take()
    world.write_log(OF_NEXTN, rank=1)
    words = f"docker {TOOL_LOST}"
    exited = statuses[1].model_copy(update={"exit_code": 1, "reason": f"{words}\nlast lines"})
    told = await world.ranks.diagnose(EngineError("it exited"), exited, served=True)
    assert (told.cause, told.nodes, told.summary) == (Cause.TOOL, ("that",), f"that: {words}")
    assert told.lasts_s == 0


async def test_a_checkpoint_that_is_not_there_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    world = World(tmp_path)
    candidate = world.launch.candidate.model_copy(update={"model": "org/nowhere"})
    world.holders[0]._launch = world.launch.model_copy(update={"candidate": candidate})
    told = await world.refused()
    assert told.cause is Cause.MISSING
    assert "org/nowhere" in told.summary


async def test_what_somebody_else_holds_is_told_as_it_was_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("sparkfleet.group.ranks.local_rank.OWNED_S", 0.0)
    world = World(tmp_path)
    world.write_log(OF_NEXTN)
    told = await world.refused()
    assert told.cause is Cause.UNKNOWN
    assert "still held by another process" in told.summary
    assert told.lasts_s == 0


async def test_a_group_that_ended_a_moment_ago_waits_before_it_starts_again(tmp_path, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    world = World(tmp_path)
    for _ in range(3):
        await world.take(world.anew())
        await world.ranks.stop()
    assert slept == [1, 2]
    assert world.waited == [
        f"{seconds} s before the restart: its last run has just ended" for seconds in (1, 2)
    ]


async def test_what_is_adopted_waits_for_nothing(tmp_path):
    world = World(tmp_path)
    for _ in range(3):
        await world.take(world.anew())
        await world.holders[0]._rank.close()
    assert world.waited == []


def test_an_error_keeps_its_cause_on_its_way_through_ray():
    error = NodeError("gone", means="so", do="that", because=Cause.MISSING)
    wrapped = pytest.importorskip("ray.exceptions").RayTaskError("start", "trace", error)
    raised = pickle.loads(pickle.dumps(wrapped)).as_instanceof_cause()
    assert isinstance(raised, NodeError)
    assert (raised.because, raised.what, raised.do) == (Cause.MISSING, "gone", "that")


def shortages(monkeypatch, *left):
    """Bytes that the node has left at each reading (the last for ever); the readings are counted."""
    looks, readings = [], list(left)

    async def memory(rank):
        looks.append(rank)
        return readings.pop(0) if len(readings) > 1 else readings[0]

    monkeypatch.setattr(memory_watch, "MEMORY_S", 0.001)
    monkeypatch.setattr(LocalRank, "memory", memory)
    return looks


async def two_groups(tmp_path, monkeypatch, memory_s=2.0):
    """On one node, with a floor of 300 bytes; the second was started later."""
    monkeypatch.setattr(memory_watch, "FLOOR_BYTES", {"cuda": 300})
    timeouts = Timeouts(memory_s=memory_s)
    first, second = World(tmp_path, timeouts=timeouts), World(tmp_path, timeouts=timeouts)
    second.launch = second.launch.model_copy(update={"deployment": "later"})
    second.holders = [LocalRank(second.paths, first.runtimes[0], second.launch, 0, "s" * 64)]
    for world in (first, second):
        world.ranks = world.anew()
        await world.take()
    return first, second


async def watch(ranks):
    async with asyncio.timeout(5):
        await ranks.memory.watch()


async def looked(looks, times):
    async with asyncio.timeout(5):
        while len(looks) < times:
            await asyncio.sleep(0.001)


async def test_of_two_groups_the_one_that_was_started_last_ends_a_shortage(tmp_path, monkeypatch):
    first, second = await two_groups(tmp_path, monkeypatch)
    looks = shortages(monkeypatch, 250)
    watched = asyncio.create_task(watch(first.ranks))
    with pytest.raises(EngineError, match=r"this has only [0-9.]+ GiB of memory left"):
        await watch(second.ranks)
    await second.ranks.stop()
    await looked(looks, 20)
    assert not watched.done(), "what the other gave back takes its time"
    with pytest.raises(EngineError, match=r"this has only [0-9.]+ GiB of memory left"):
        await watched


async def test_a_group_that_ended_before_it_was_asked_for_is_waited_for_too(tmp_path, monkeypatch):
    """Both look once a second: the one that goes may have looked first, and what it held comes back slowly."""
    first, second = await two_groups(tmp_path, monkeypatch)
    await second.ranks.stop()
    looks = shortages(monkeypatch, 250)
    watched = asyncio.create_task(watch(first.ranks))
    await looked(looks, 10)
    assert not watched.done()
    watched.cancel()


async def test_a_shortage_that_ended_with_the_other_group_costs_no_more(tmp_path, monkeypatch):
    first, _ = await two_groups(tmp_path, monkeypatch, memory_s=0.01)
    looks = shortages(monkeypatch, 250, *[400] * 30, 250, 400)
    watched = asyncio.create_task(watch(first.ranks))
    await looked(looks, 50)
    assert not watched.done(), "the second shortage is another one, which is waited for as long"
    assert first.ranks.memory.low == {0: 400}
    watched.cancel()


@pytest.mark.parametrize("why", ["wedges", "is gone", "is slow"])
async def test_a_node_that_wedges_or_does_not_say_who_is_there_waits_for_nobody(tmp_path, monkeypatch, why):
    first, _ = await two_groups(tmp_path, monkeypatch)
    looks = shortages(monkeypatch, 150 if why == "wedges" else 250)
    monkeypatch.setattr(memory_watch, "FOLLOWED_S", 0.01)

    async def asked():
        if why == "is gone":
            raise NodeError("the node is gone")
        await asyncio.Event().wait()

    if why != "wedges":
        monkeypatch.setattr(first.holders[0], "is_followed", asked)
    with pytest.raises(EngineError, match=r"this has only [0-9.]+ GiB of memory left"):
        await watch(first.ranks)
    assert len(looks) == 1


async def test_a_rank_that_is_still_being_adopted_is_stopped_with_the_others(tmp_path):
    """Its node's answer came after the failure of the other one: it was adopted later, alone, and ran on."""
    world = World(tmp_path, nodes=("this", "other"))
    await world.take()
    for holder in world.holders:
        await holder.release()
    lost, adopt = asyncio.Event(), world.holders[0].adopt

    async def gone():
        lost.set()
        raise NodeError("other: the node is gone")

    async def late():
        await lost.wait()
        await asyncio.sleep(0.01)
        return await adopt()

    world.holders[0].adopt, world.holders[1].adopt = late, gone
    ranks = world.anew()
    with pytest.raises(NodeError, match="gone"):
        await ranks.adopt()
    await ranks.stop()
    assert world.runtimes[0].stopped == [world.launch.rank_id(world.paths.label, 0)]


async def released(tmp_path):
    """Two ranks that run without a holder."""
    world = World(tmp_path, nodes=("this", "that"))
    await world.take()
    for holder in world.holders:
        await holder.release()
    return world, [world.launch.rank_id(world.paths.label, rank) for rank in (0, 1)]


async def test_ranks_that_nobody_held_for_too_long_are_named(tmp_path):
    """An engine was loaded again after a stop of Ray, and nothing named the reason."""
    world, ids = await released(tmp_path)
    for runtime, id_ in zip(world.runtimes, ids, strict=True):
        runtime.expire(id_)
    ranks = world.anew()
    assert await ranks.adopt() == []
    assert ranks.lost == (
        "its engine ended while no actor of the group held it, and has to be loaded again:"
        " rank 0 on this: stopped: no owner for 120 s; rank 1 on that: stopped: no owner for 120 s"
    )


async def test_the_rank_that_ended_alone_is_named(tmp_path):
    world, ids = await released(tmp_path)
    world.runtimes[1].crash(ids[1])
    ranks = world.anew()
    assert await ranks.adopt() == []
    assert "again: rank 1 on that: its supervisor was killed, and the engine with it; the other" in ranks.lost
    assert world.runtimes[0].stopped == [ids[0]]


async def test_the_end_of_a_rank_that_its_actor_could_not_reach_is_no_news(tmp_path):
    """A node was away: the actor stopped the other rank and reported that, and the next one named a loss of both."""
    world, ids = await released(tmp_path)
    world.runtimes[0].stop(ids[0])
    world.runtimes[1].expire(ids[1])
    ranks = world.anew()
    assert await ranks.adopt() == []
    assert ranks.lost == ""


@pytest.mark.parametrize("end", ["exit", "stop"])
async def test_an_end_that_an_actor_saw_is_named_by_nobody_else(tmp_path, end):
    world = World(tmp_path, nodes=("this", "that"))
    assert await world.ranks.adopt() == []
    assert world.ranks.lost == "", "they never ran"
    await world.take()
    for runtime in world.runtimes:
        (running,) = await runtime.list()
        runtime.exit(running.id, 1) if end == "exit" else runtime.stop(running.id)
    for holder in world.holders:
        await holder.release()
    ranks = world.anew()
    assert await ranks.adopt() == []
    assert ranks.lost == ""


class Ending:
    """A rank that exits with a code after a time."""

    def __init__(self, code, after_s):
        self._code, self._after_s = code, after_s

    async def wait(self):
        await asyncio.sleep(self._after_s)
        return SimpleNamespace(exit_code=self._code, reason="")


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ([(1, 0.0), (-9, 0.02)], 1),
        ([(0, 0.0), (1, 0.02), (1, 0.04)], 1),
        ([(1, 0.02), (1, 0.0)], 1),
        ([(-9, 0.0), (1, 0.02)], 0),
        ([(1, 0.0), (-9, 60.0)], 0),
        ([(-6, 0.0), (None, 0.02)], 1),
    ],
    ids=[
        "killed elsewhere",
        "SGLang's end",
        "the first",
        "killed here",
        "a peer that hangs",
        "a node that is gone",
    ],
)
async def test_of_the_ranks_that_end_the_one_that_ended_the_others_is_named(
    tmp_path, monkeypatch, ends, first
):
    """A rank that the kernel killed for memory on the other node was reported as an engine that failed on rank 0's."""
    monkeypatch.setattr(module, "PEERS_S", 0.2)
    ranks = module.Ranks(World(tmp_path).launch, [Ending(*one) for one in ends], None)
    rank, status = await ranks.fatal_exit()
    assert (rank, status.exit_code) == (first, ends[first][0])
