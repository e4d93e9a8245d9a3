"""The watch of a group: memory, counters that stop, nodes that do not answer, and the report of a failure."""

import asyncio
import os
import signal
import socket
from types import SimpleNamespace

import pytest
from group_world import SECRET, TWO, group_launch, never, quick_world, stuck, vanish

from sparkfleet.engines.fake import FakeEngine
from sparkfleet.errors import EngineError, NodeError
from sparkfleet.gateway.access.keys import engine_token
from sparkfleet.group import engine_client, hang_detector, serving_watch
from sparkfleet.group import group as module
from sparkfleet.group.engine_load import Load
from sparkfleet.group.exposed_sockets import Listening
from sparkfleet.group.group import die_with_the_engine
from sparkfleet.group.hang_detector import HangDetector
from sparkfleet.group.probe import Probe
from sparkfleet.group.ranks import answer_watch, rank_set
from sparkfleet.group.ranks import local_rank as rank_module
from sparkfleet.group.ranks.local_rank import LocalRank
from sparkfleet.group.report import GroupPhase
from sparkfleet.group.start import bring_up
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket
from sparkfleet.runtime.base import Phase
from sparkfleet.specs.timeouts import Timeouts

STUCK = Timeouts(stuck_s=0.05)
UNWELL = Timeouts(health_every_s=0.01, unwell_s=0.05)


async def test_any_exit_ends_the_watch_whatever_the_code(world):
    group = world.group()
    await group.start()
    watching = asyncio.create_task(group.watch())
    await asyncio.sleep(0)
    world.runtime.exit(world.rank_id(), 0)
    assert "exited with code 0" in await asyncio.wait_for(watching, 5)
    assert group.ended
    assert world.reports[-1].phase is GroupPhase.FAILED
    await group.stop(drain_s=0)


async def test_it_reports_its_load_while_it_runs(world):
    group = world.group()
    await group.start()
    count = len(world.reports)
    watching = asyncio.create_task(group.watch())
    while len(world.reports) < count + 2:
        await asyncio.sleep(0.01)
    assert world.reports[-1].phase is GroupPhase.READY
    watching.cancel()
    await group.stop(drain_s=0)


async def test_before_the_host_wedges_the_group_is_stopped(world, monkeypatch):
    group = world.group()
    await group.start()
    monkeypatch.setattr(rank_module, "available_memory", lambda: 1 << 20)
    assert "of memory left: the group was stopped" in await asyncio.wait_for(group.watch(), 5)
    assert world.runtime.stopped == [world.rank_id()]
    await group.stop(drain_s=0)


def hiccups(monkeypatch, *answers):
    """Answers of the node to readings of its memory: an error, bytes (the last for ever); all but errors slowly."""
    left = list(answers)

    async def memory(rank):
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        await asyncio.sleep(0.02)
        return answer

    monkeypatch.setattr(LocalRank, "memory", memory)
    return left


async def test_memory_is_watched_on_while_it_starts_when_its_node_did_not_answer(world, monkeypatch):
    """A node that runs out of memory is slow and then silent: that is when the watch is needed."""

    away = NodeError("this: the supervisor is gone")
    left = hiccups(monkeypatch, 100 << 30, away, away, 100 << 30, away, 1 << 20)
    monkeypatch.setattr(bring_up, "wait_healthy", never)
    monkeypatch.setattr(bring_up, "START_PROGRESS_S", 0.01)
    with pytest.raises(EngineError, match=r"this has only [0-9.]+ GiB of memory left"):
        await asyncio.wait_for(world.group().start(), 10)
    assert left == [1 << 20], "it was asked again each time"
    assert world.runtime.stopped == [world.rank_id()]
    assert world.reports[-1].diagnosis.cause == "memory"


async def test_memory_is_watched_on_while_it_serves_when_its_node_did_not_answer(world, monkeypatch):
    group = world.group()
    await group.start()
    away = NodeError("this: the node or its rank's actor is gone")
    left = hiccups(monkeypatch, away, away, 100 << 30, away, 1 << 20)
    assert "of memory left: the group was stopped" in await asyncio.wait_for(group.watch(), 10)
    assert left == [1 << 20]
    assert world.runtime.stopped == [world.rank_id()]
    await group.stop(drain_s=0)


async def test_a_watch_that_died_is_taken_up_by_the_next_actor(world, monkeypatch):
    """An engine without a watch could serve on when it must not: its actor ends, and Serve starts another."""
    killed = []
    system = SimpleNamespace(getpid=os.getpid, kill=lambda *call: killed.append(call))
    monkeypatch.setattr(module, "os", system)

    def fails(detector, *reading):
        raise ZeroDivisionError("a mistake of ours")

    first = world.group()
    await first.start()
    with monkeypatch.context() as patched:
        patched.setattr(HangDetector, "is_suspect", fails)
        await asyncio.wait_for(die_with_the_engine(first), 5)
    assert killed == [(os.getpid(), signal.SIGKILL)]
    assert not first.ended, "the engine is well"
    await vanish(first)
    second = world.group()
    await second.start()
    assert world.reports[-1].adopted
    assert len(world.runtime.started) == 1
    watching = asyncio.create_task(second.watch())
    await asyncio.sleep(0)
    world.runtime.exit(world.rank_id(), 3)
    assert "exited with code 3" in await asyncio.wait_for(watching, 5), "it is watched again"
    await second.stop(drain_s=0)


async def test_an_engine_of_which_nothing_moves_is_replaced(world, monkeypatch):
    async def silent(probe, timeout_s=0):
        raise EngineError("no token in 30 s")

    monkeypatch.setattr(hang_detector, "NAMED_S", 0.02)
    group = world.group(timeouts=STUCK)
    await group.start()
    stuck(monkeypatch, silent)
    assert "generates no tokens" in await asyncio.wait_for(group.watch(), 5)
    named = [one.detail for one in world.reports if one.phase is GroupPhase.READY and one.detail]
    assert "the engine's counters have not moved for 0 s" in named[0]
    assert named[0].endswith("`sparkfleet logs tiny/g1/0` shows its output")
    assert world.runtime.stopped == [world.rank_id()]
    assert not world.reports[-1].was_starting
    await group.stop(drain_s=0)


@pytest.mark.parametrize("probed", [True, False])
async def test_a_custom_workload_that_hangs_is_replaced_where_its_deployment_says_how_it_is_seen(
    world, monkeypatch, probed
):
    fields = {"engine": "custom", "command": ("serve",), "port": None, "health": "/health"}
    group = world.group(
        candidate=group_launch().candidate.model_copy(update=fields), probed=probed, timeouts=UNWELL
    )
    await group.start()
    asked = []

    async def hangs(probe, path):
        asked.append(path)
        return False

    monkeypatch.setattr(Probe, "healthy", hangs)
    watched = asyncio.create_task(group.watch())
    done, _ = await asyncio.wait({watched}, timeout=5 if probed else 0.5)
    if probed:
        assert watched.result().startswith("It runs but is not healthy: /health did not return 200")
        assert world.runtime.stopped == [world.rank_id()]
        assert world.reports[-1].phase is GroupPhase.FAILED
        assert not world.reports[-1].was_starting
    else:
        assert not done
        assert asked == []
        watched.cancel()
    await group.stop(drain_s=0)


async def test_a_custom_workload_without_a_health_path_whose_process_is_stopped_is_replaced(
    world, monkeypatch
):
    """Its requests waited for ever, and `status` showed it as ready."""
    socket = ListeningSocket(address="127.0.0.1", port=5005, pids=(4242,))

    async def sockets(rank):
        return Listening(address="127.0.0.1", port=5005, sockets=(socket,))

    group = world.group(
        candidate=group_launch().candidate.model_copy(update={"engine": "custom", "command": ("serve",)}),
        timeouts=UNWELL,
    )
    await group.start()
    monkeypatch.setattr(LocalRank, "sockets", sockets)
    monkeypatch.setattr(serving_watch, "is_stopped", lambda pid: pid == 4242)
    ended = await asyncio.wait_for(group.watch(), 5)
    assert ended.startswith(
        "It runs but is not healthy: process 4242, which listens on port 5005, was stopped by a signal"
    )
    assert world.runtime.stopped == [world.rank_id()]
    await group.stop(drain_s=0)


async def test_a_custom_workload_reports_its_open_connections_as_what_runs(world, engine, monkeypatch):
    """It reported 0, and a drain of it ended at once, whatever it was answering."""
    monkeypatch.setattr(serving_watch, "HEARTBEAT_S", 0.01)
    fields = {"engine": "custom", "command": ("serve",), "port": engine}
    group = world.group(candidate=group_launch().candidate.model_copy(update=fields))
    await group.start()
    watched = asyncio.create_task(group.watch())
    with socket.create_connection(("127.0.0.1", engine)):
        async with asyncio.timeout(5):
            while world.reports[-1].running != 1:
                await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        while world.reports[-1].running:
            await asyncio.sleep(0.01)
    watched.cancel()
    await group.stop(drain_s=0)


async def test_it_is_heard_of_while_it_has_to_prove_that_it_lives_and_memory_does_not_answer(
    world, monkeypatch
):
    """The controller takes groups whose reports stop for some seconds out of the gateways' table."""
    asked = []

    async def slow(probe, timeout_s=0):
        asked.append(timeout_s)
        await asyncio.Event().wait()

    group = world.group(patience_s=321, timeouts=STUCK)
    await group.start()
    monkeypatch.setattr(LocalRank, "memory", never)
    stuck(monkeypatch, slow)
    watched = asyncio.create_task(group.watch())
    while not asked:
        await asyncio.sleep(0.01)
    count = len(world.reports)
    async with asyncio.timeout(5):
        while len(world.reports) < count + 5:
            await asyncio.sleep(0.01)
    assert asked == [321]
    assert {report.phase for report in world.reports[count:]} == {GroupPhase.READY}
    watched.cancel()
    await group.stop(drain_s=0)


async def test_memory_is_watched_while_the_canary_asks(world, monkeypatch):
    """The first token compiles kernels: no moment takes more memory."""
    asked = []

    async def compiles(probe, timeout_s=0):
        asked.append(timeout_s)
        monkeypatch.setattr(rank_module, "available_memory", lambda: 1 << 20)
        await asyncio.Event().wait()

    monkeypatch.setattr(Probe, "one_token", compiles)
    with pytest.raises(EngineError, match=r"this has only [0-9.]+ GiB of memory left"):
        await asyncio.wait_for(world.group().start(), 10)
    assert asked
    assert world.runtime.stopped == [world.rank_id()]
    assert world.reports[-1].diagnosis.cause == "memory"
    assert world.reports[-1].was_starting


async def test_one_node_that_does_not_answer_hides_no_other_that_runs_out_of_memory(world, monkeypatch):
    group = world.group(placements=TWO)
    await group.start()

    async def memory(rank):
        if rank.node == "a":
            await asyncio.Event().wait()
        return 1 << 20

    monkeypatch.setattr(LocalRank, "memory", memory)
    assert "b has only" in await asyncio.wait_for(group.watch(), 5)
    await group.stop(drain_s=0)


async def test_memory_is_watched_while_it_drains(world, monkeypatch):
    group = world.group()
    await group.start()

    async def busy(probe, engine, draft_tokens):
        monkeypatch.setattr(rank_module, "available_memory", lambda: 1 << 20)
        return Load(running=1, waiting=0, figures=(7.0,))

    monkeypatch.setattr(engine_client, "read_load", busy)
    await asyncio.wait_for(group.stop(drain_s=60), 5)
    assert world.runtime.stopped == [world.rank_id()]


async def test_why_it_fell_while_it_served_is_told(world, monkeypatch):
    async def tail(rank):
        return (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
            if rank.node == "b"
            else ""
        )

    monkeypatch.setattr(LocalRank, "tail", tail)
    group = world.group(placements=TWO)
    await group.start()
    watched = asyncio.create_task(group.watch())
    await asyncio.sleep(0)
    world.runtimes[1].exit(world.rank_id(1), -9, "ended by signal 9")
    words = await asyncio.wait_for(watched, 5)
    assert words.startswith("The engine exited on b (rank 1): ended by signal 9 (out of memory: ")
    told = world.reports[-1]
    assert told.detail == words
    assert told.diagnosis.cause == "memory"
    assert not told.was_starting
    await group.stop(drain_s=0)


async def test_a_node_that_is_gone_is_told_as_it_was_seen(world, monkeypatch):
    async def gone(rank):
        status = await rank.status()
        return status.model_copy(update={"phase": Phase.EXITED, "reason": "this: the node is gone"})

    group = world.group()
    await group.start()
    monkeypatch.setattr(LocalRank, "wait", gone)
    assert await asyncio.wait_for(group.watch(), 5) == "The engine exited: this: the node is gone"
    await group.stop(drain_s=0)


async def test_a_fall_is_told_although_a_node_does_not_tell_its_log(world, monkeypatch):
    group = world.group()
    await group.start()
    monkeypatch.setattr(LocalRank, "tail", never)
    monkeypatch.setattr(rank_set, "TAIL_S", 0.05)
    watched = asyncio.create_task(group.watch())
    await asyncio.sleep(0)
    world.runtime.exit(world.rank_id(), -9, "ended by signal 9")
    assert "ended by signal 9 (" in await asyncio.wait_for(watched, 5)
    await group.stop(drain_s=0)


async def test_a_rank_that_does_not_answer_is_named_and_its_engine_goes_on(world, monkeypatch):
    monkeypatch.setattr(answer_watch, "ANSWER_S", 0.02)
    group = world.group()
    await group.start()
    watching = asyncio.create_task(group.watch())
    answers = LocalRank.status

    async def until(condition):
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.01)

    monkeypatch.setattr(LocalRank, "status", never)
    await until(lambda: "rank 0 on this has not answered for" in world.reports[-1].detail)
    assert world.reports[-1].phase is GroupPhase.READY
    monkeypatch.setattr(LocalRank, "status", answers)
    await until(lambda: world.reports[-1].detail == "")
    assert not watching.done()
    watching.cancel()
    await group.stop(drain_s=0)


async def test_an_engine_that_answers_without_its_token_does_not_serve(monkeypatch, tmp_path):
    """Its image may have ignored the flag: any machine that reaches its address could use it."""
    async with FakeEngine(model="tiny") as open_to_all:
        world = quick_world(int(open_to_all.url.rpartition(":")[2]), monkeypatch, tmp_path)
        group = world.group()
        with pytest.raises(EngineError, match="answers without its token: GET /health returned 200"):
            await group.start()
    assert world.phases[-1] is GroupPhase.FAILED
    assert world.runtime.stopped == [world.rank_id()]


async def test_metrics_are_read_with_the_token(monkeypatch, tmp_path):
    token = engine_token(SECRET.encode(), group_launch().name)
    async with FakeEngine(model="tiny", token=token) as engine:
        world = quick_world(int(engine.url.rpartition(":")[2]), monkeypatch, tmp_path)
        group = world.group()
        await group.start()
        assert (await group._client.read_load()).figures is not None
        await group.stop(drain_s=0)
