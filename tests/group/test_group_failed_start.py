"""Starts of a group that end: with their reason, and nothing left."""

import asyncio
import itertools

import aiohttp
import pytest
from group_world import group_launch, never

from sparkfleet.engines.token_api import Scored
from sparkfleet.engines.token_scores import Score
from sparkfleet.errors import Cause, EngineError, NodeError
from sparkfleet.group import exit_watch
from sparkfleet.group.exposed_sockets import Listening
from sparkfleet.group.probe import Probe
from sparkfleet.group.ranks.local_rank import LocalRank
from sparkfleet.group.report import GroupPhase
from sparkfleet.group.start import bring_up
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket
from sparkfleet.specs.timeouts import Timeouts


async def test_an_engine_that_exits_while_it_starts_is_told_with_its_reason(world, monkeypatch):
    monkeypatch.setattr(bring_up, "wait_healthy", never)
    group = world.group()
    starting = asyncio.create_task(group.start())
    while not world.runtime.started:
        await asyncio.sleep(0)
    world.runtime.exit(world.rank_id(), 1, "unrecognized arguments: --nope")
    with pytest.raises(EngineError, match="exit code 1") as caught:
        await starting
    assert "--nope" in caught.value.means
    assert world.reports[-1].phase is GroupPhase.FAILED
    assert "--nope" in world.reports[-1].detail


async def test_a_start_that_fails_for_an_unknown_reason_is_named_and_leaves_nothing(world, monkeypatch):
    """It had no diagnosis, and the engine ran on, with its memory, until its lease was over."""

    async def full(probe, path, names):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bring_up, "drafts_of", full)
    with pytest.raises(EngineError, match="No space left on device"):
        await world.group().start()
    assert world.runtime.stopped == [world.rank_id()]
    failed = world.reports[-1]
    assert (failed.phase, failed.was_starting) == (GroupPhase.FAILED, True)
    assert "No space left on device" in failed.detail
    assert "No space left on device" in failed.diagnosis.summary


async def test_an_engine_that_is_up_and_cannot_generate_is_stopped(world, monkeypatch):
    async def refuses(probe, timeout_s=0):
        raise EngineError("no token")

    monkeypatch.setattr(Probe, "one_token", refuses)
    with pytest.raises(EngineError, match="no token"):
        await world.group().start()
    assert world.runtime.stopped == [world.rank_id()]


async def test_a_failed_start_is_diagnosed_from_the_log(world, tmp_path, monkeypatch):
    async def tail(rank):
        return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

    monkeypatch.setattr(bring_up, "wait_healthy", never)
    monkeypatch.setattr(LocalRank, "tail", tail)
    starting = asyncio.create_task(world.group().start())
    while not world.runtime.started:
        await asyncio.sleep(0)
    world.runtime.exit(world.rank_id(), 1)
    with pytest.raises(EngineError):
        await starting
    diagnosis = world.reports[-1].diagnosis
    assert diagnosis.cause == "memory"
    assert "out of memory" in diagnosis.evidence


async def test_output_that_is_wrong_is_no_start(world, monkeypatch):
    async def noise(probe, text, timeout_s=0):
        return Scored(ids=tuple(range(21)), scores=(Score(own=-11.0, best=-1.0),) * 20)

    monkeypatch.setattr(Probe, "scores", noise)
    with pytest.raises(EngineError, match="the perplexity of plain English is"):
        await world.group().start()
    assert "the perplexity of plain English" in world.reports[-1].diagnosis.summary
    assert world.runtime.stopped == [world.rank_id()]


async def test_without_the_memory_it_needs_nothing_is_started(world, monkeypatch):
    with pytest.raises(EngineError, match="predicted to need"):
        await world.group(needs=1 << 60, timeouts=Timeouts(memory_s=0.001)).start()
    assert world.runtime.started == []


async def test_a_start_that_says_nothing_hangs(world, monkeypatch):
    monkeypatch.setattr(bring_up, "wait_healthy", never)
    monkeypatch.setattr(bring_up, "START_PROGRESS_S", 0.02)
    with pytest.raises(EngineError, match="printed no log line"):
        await world.group(silence_s=0.05).start()
    assert world.runtime.stopped == [world.rank_id()]


async def test_a_start_that_goes_on_printing_ends_too(world, monkeypatch):
    """An engine that tries the same again and again is never silent, and never healthy."""

    async def unhealthy(probe, path):
        return False

    lines = itertools.count()

    async def tail(rank):
        return f"attempt {next(lines)} to reach the master"

    monkeypatch.setattr(Probe, "healthy", unhealthy)
    monkeypatch.setattr(LocalRank, "tail", tail)
    monkeypatch.setattr(bring_up, "START_PROGRESS_S", 0.01)
    monkeypatch.setattr(bring_up, "longest_s", lambda needs, silence_s: 0.3)
    with pytest.raises(EngineError, match="is not healthy after 0 minutes, and has not ended") as caught:
        await world.group(silence_s=30).start()
    assert "to reach the master" in caught.value.what
    assert "`silence`" in caught.value.do
    assert world.runtime.stopped == [world.rank_id()]
    assert world.reports[-1].phase is GroupPhase.FAILED
    assert "is not healthy" in world.reports[-1].diagnosis.summary


async def test_a_start_of_which_its_node_tells_nothing_ends_too(world, monkeypatch):
    async def unhealthy(probe, path):
        return False

    async def gone(rank):
        raise NodeError("the supervisor is gone")

    monkeypatch.setattr(Probe, "healthy", unhealthy)
    monkeypatch.setattr(LocalRank, "status", gone)
    monkeypatch.setattr(bring_up, "START_PROGRESS_S", 0.01)
    monkeypatch.setattr(bring_up, "longest_s", lambda needs, silence_s: 0.1)
    with pytest.raises(EngineError, match="is not healthy"):
        await world.group().start()


async def test_of_a_workload_of_its_own_only_the_health_is_asked(world, monkeypatch):
    async def never(probe, timeout_s=0):
        raise AssertionError("a custom workload was asked for tokens")

    monkeypatch.setattr(Probe, "one_token", never)
    fields = {"engine": "custom", "command": ("serve",), "port": None, "health": "/health"}
    candidate = group_launch().candidate.model_copy(update=fields)
    group = world.group(candidate=candidate)
    await group.start()
    assert world.reports[-1].phase is GroupPhase.READY
    watching = asyncio.create_task(group.watch())
    await asyncio.sleep(0.05)
    assert not watching.done()
    watching.cancel()
    await group.stop(drain_s=1)


async def test_a_workload_of_its_own_that_serves_every_address_is_stopped_before_it_counts_as_ready(
    world, monkeypatch
):
    async def everywhere(rank):
        found = (ListeningSocket(address="*", port=5005),)
        return Listening(address="127.0.0.1", port=5005, sockets=found)

    monkeypatch.setattr(LocalRank, "sockets", everywhere)
    fields = {"engine": "custom", "command": ("serve",), "port": None, "health": "/health"}
    group = world.group(candidate=group_launch().candidate.model_copy(update=fields))
    with pytest.raises(
        EngineError, match=r"It listens on \*:5005 .*its requests arrive at 127\.0\.0\.1:5005"
    ):
        await group.start()
    assert GroupPhase.READY not in world.phases
    assert world.runtime.stopped == [world.rank_id()]


def breaks(monkeypatch, then):
    """The connection of the request for a first token breaks, and `then` happens a moment later."""

    async def one_token(probe, timeout_s=0.0):
        asyncio.get_running_loop().call_later(0.05, then)
        raise EngineError("no token: disconnected") from aiohttp.ServerDisconnectedError()

    monkeypatch.setattr(Probe, "one_token", one_token)


async def test_an_engine_that_ends_at_its_first_request_is_reported_with_its_exit(world, monkeypatch):
    killed = "the engine ended by SIGKILL (the kernel killed 1 for lack of memory in its last seconds)"
    breaks(monkeypatch, lambda: world.runtime.exit(world.rank_id(), -9, killed))
    with pytest.raises(EngineError, match=r"The engine exited while it was starting \(signal 9\)") as raised:
        await world.group().start()
    assert raised.value.do == "Read the whole log: `sparkfleet logs tiny/g1/0`."
    assert world.reports[-1].diagnosis.cause is Cause.MEMORY


async def test_a_connection_that_breaks_without_an_exit_is_reported_as_such(world, monkeypatch):
    monkeypatch.setattr(exit_watch, "EXIT_S", 0.01)
    breaks(monkeypatch, lambda: None)
    with pytest.raises(EngineError, match="no token: disconnected"):
        await world.group().start()


async def test_the_answer_of_a_health_path_is_shown_while_it_is_none(world, monkeypatch):
    monkeypatch.setattr(bring_up, "START_PROGRESS_S", 0.01)

    async def healthy(probe, path):
        probe.unhealthy = f"GET {path} returns 404"
        return False

    monkeypatch.setattr(Probe, "healthy", healthy)
    starting = asyncio.create_task(world.group().start())
    async with asyncio.timeout(60):
        while not any("GET /health returns 404" in one.detail for one in world.reports):
            await asyncio.sleep(0.01)
    world.runtime.exit(world.rank_id(), 1)
    with pytest.raises(EngineError, match="exited while it was starting"):
        await starting
