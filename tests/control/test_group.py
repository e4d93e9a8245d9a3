import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest

from sparkfleet.control import group as module
from sparkfleet.control import rank as rank_module
from sparkfleet.control import ranks, watching
from sparkfleet.control.backoff import Backoff
from sparkfleet.control.canary import Probe, Score
from sparkfleet.control.group import Group, die_with_the_engine
from sparkfleet.control.liveness import Liveness
from sparkfleet.control.load import Load
from sparkfleet.control.order import GroupOrder, Ports, RankSeat
from sparkfleet.control.order import rank_spec as spec_of
from sparkfleet.control.paths import FleetPaths
from sparkfleet.control.rank import LocalRank
from sparkfleet.control.status import GroupPhase
from sparkfleet.errors import EngineError, NodeError
from sparkfleet.nodes.runtime.base import Phase
from sparkfleet.nodes.runtime.fake import FakeRuntime
from sparkfleet.nodes.runtime.ports import free_port
from sparkfleet.planning.plan import Candidate, Shape

SECRET = "s" * 64
ROOT = Path("/nowhere/state/home")
TWO = (RankSeat(node="a"), RankSeat(node="b"))


def order(**fields):
    candidate = Candidate(
        model="/models/tiny",
        shape=Shape(nodes=("this",)),
        engine="vllm",
        engine_version="0.32.0+cpu",
        context=512,
        concurrency=4,
        device="cpu",
    )
    fields = {"generation": 1, "seats": (RankSeat(node="this"),), "candidate": candidate, **fields}
    return GroupOrder(deployment="tiny", **fields)


def rank_spec(order, rank, port, secret):
    return spec_of(FleetPaths(ROOT), order, rank, Ports(http=port), secret)


@pytest.fixture
def engine():
    """A fake engine in a process of its own, asking for the token that the group of replica 0 derives."""
    port = free_port("127.0.0.1")
    spec = rank_spec(order(), 0, port, SECRET)
    arguments = ["--port", str(port), "--model", "tiny", "--itl-ms", "1", "--token-env", "TOKEN"]
    env = {**os.environ, "TOKEN": dict(spec.secret_env)["VLLM_API_KEY"]}
    process = subprocess.Popen([sys.executable, "-m", "sparkfleet.engines.fake", *arguments], env=env)
    yield port
    process.terminate()
    process.wait()


@pytest.fixture
def world(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(rank_module, "free_port", lambda host: engine)
    monkeypatch.setattr(watching, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(watching, "AGAIN_S", 0.01)
    monkeypatch.setattr(ranks, "MEMORY_S", 0.01)
    return World(tmp_path)


class World:
    """A runtime per node, of which the first is where the engine listens."""

    def __init__(self, tmp_path):
        self.backoff = Backoff(tmp_path / "begun")
        self.paths = FleetPaths(tmp_path)
        self.runtimes = [FakeRuntime(), FakeRuntime()]
        self.runtime = self.runtimes[0]
        self.reports = []

    def group(self, **fields):
        wanted = order(**fields)
        ranks = [
            LocalRank(FleetPaths(ROOT), self.runtimes[rank], wanted, rank, SECRET)
            for rank in range(len(wanted.seats))
        ]
        return Group(wanted, ranks, SECRET, self.reports.append, self.backoff)

    @property
    def phases(self):
        return list(dict.fromkeys(report.phase for report in self.reports))

    def rank_id(self, rank=0):
        return order().rank_id(FleetPaths(ROOT).label, rank)


async def test_it_starts_proves_itself_and_says_how_fast_it_is(world):
    group = world.group()
    await group.start()
    assert world.phases == [GroupPhase.STARTING, GroupPhase.PROBING, GroupPhase.READY]
    ready = world.reports[-1]
    assert ready.measured["ttft_ms"] > 0
    assert ready.measured["decode_tps"] > 0
    assert ready.started_s > 0
    assert not ready.adopted
    await group.stop(drain_s=1)
    assert world.runtime.stopped == [world.rank_id()]
    assert world.phases[-2:] == [GroupPhase.DRAINING, GroupPhase.STOPPED]


async def test_it_says_that_it_starts_before_anything_is_started(world, engine):
    """A start that takes the node down is told by nobody afterwards."""
    said = []
    start = world.runtime.start

    async def watched(spec):
        said.extend(world.phases)
        return await start(spec)

    world.runtime.start = watched
    group = world.group()
    await group.start()
    assert said == [GroupPhase.STARTING]
    await group.stop(drain_s=0)


async def test_a_rank_that_runs_already_is_adopted(world, engine):
    await world.runtime.start(rank_spec(order(), 0, engine, SECRET))
    group = world.group()
    await group.start()
    assert len(world.runtime.started) == 1
    assert world.reports[-1].adopted
    await group.stop(drain_s=0)


async def test_a_rank_with_another_command_is_stopped_and_started_anew(world, engine):
    spec = rank_spec(order(), 0, engine, SECRET)
    await world.runtime.start(spec.model_copy(update={"argv": ("something", "else")}))
    group = world.group()
    await group.start()
    assert world.runtime.stopped == [world.rank_id()]
    assert not world.reports[-1].adopted
    await group.stop(drain_s=0)


async def test_a_rank_that_is_held_by_another_group_is_waited_for(world, monkeypatch):
    monkeypatch.setattr(rank_module, "OWNED_S", 0.3)
    first, second = world.group(), world.group()
    await first.start()
    with pytest.raises(EngineError, match="held by somebody else"):
        await second.start()
    await first.stop(drain_s=0)


async def vanish(group):
    """As if the group's process had died: its leases are free, its ranks go on."""
    for rank in group._ranks.holders:
        await rank._rank.close()
    await group._session.close()


async def test_every_rank_of_a_group_is_started_with_one_rendezvous(world):
    group = world.group(seats=TWO)
    await group.start()
    first, second = (runtime.started[0] for runtime in world.runtimes)
    assert first.rendezvous_port == second.rendezvous_port != 0
    assert [report.rank for report in world.reports[-1].ranks] == [0, 1]
    assert [report.node for report in world.reports[-1].ranks] == ["a", "b"]
    await group.stop(drain_s=0)
    assert world.runtimes[1].stopped == [world.rank_id(1)]


async def test_no_rank_survives_alone(world):
    group = world.group(seats=TWO)
    await group.start()
    watching = asyncio.create_task(group.watch())
    await asyncio.sleep(0)
    world.runtimes[1].exit(world.rank_id(1), 0)
    await asyncio.wait_for(watching, 5)
    assert world.runtimes[0].stopped == [world.rank_id(0)]
    assert "on b (rank 1)" in world.reports[-1].detail
    await group.stop(drain_s=0)


async def test_a_group_of_which_one_rank_is_gone_is_started_anew_as_a_whole(world, engine):
    before = world.group(seats=TWO)
    await before.start()
    await vanish(before)
    world.runtimes[1].exit(world.rank_id(1), 1)
    after = world.group(seats=TWO)
    await after.start()
    assert not world.reports[-1].adopted
    assert [len(runtime.started) for runtime in world.runtimes] == [2, 2]
    await after.stop(drain_s=0)


async def test_a_whole_group_that_runs_already_is_adopted(world):
    before = world.group(seats=TWO)
    await before.start()
    await vanish(before)
    after = world.group(seats=TWO)
    await after.start()
    assert world.reports[-1].adopted
    assert [len(runtime.started) for runtime in world.runtimes] == [1, 1]
    await after.stop(drain_s=0)


async def test_an_engine_that_exits_while_it_starts_is_told_with_its_reason(world, monkeypatch):
    async def never(probe, path):
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "wait_healthy", never)
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


async def test_an_engine_that_is_up_and_cannot_generate_is_stopped(world, monkeypatch):
    async def refuses(probe, timeout_s=0):
        raise EngineError("no token")

    monkeypatch.setattr(Probe, "one_token", refuses)
    with pytest.raises(EngineError, match="no token"):
        await world.group().start()
    assert world.runtime.stopped == [world.rank_id()]


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


async def test_a_stop_waits_for_what_is_still_answered(world, engine):
    group = world.group()
    await group.start()
    token = dict(rank_spec(order(), 0, engine, SECRET).secret_env)["VLLM_API_KEY"]
    body = {"model": "tiny", "prompt": "x", "max_tokens": 300, "stream": True}
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {token}"}) as session,
        session.post(f"http://127.0.0.1:{engine}/v1/completions", json=body) as response,
    ):
        await response.content.readany()
        stopping = asyncio.create_task(group.stop(drain_s=30))
        text = await response.text()
    assert "[DONE]" in text
    await stopping
    assert world.runtime.stopped == [world.rank_id()]


async def test_what_still_loads_answers_nobody_and_is_stopped_at_once(world, monkeypatch):
    async def never(probe, path):
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "wait_healthy", never)
    group = world.group()
    starting = asyncio.create_task(group.start())
    while not any(report.ranks for report in world.reports):
        await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await group.stop(drain_s=30)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


async def test_the_token_is_not_in_the_command(world, engine):
    spec = rank_spec(order(), 0, engine, SECRET)
    token = dict(spec.secret_env)["VLLM_API_KEY"]
    assert token not in " ".join(spec.argv)
    assert token not in str(spec.env)
    assert SECRET not in spec.model_dump_json()


async def test_a_failed_start_is_diagnosed_from_the_log(world, tmp_path, monkeypatch):
    async def never(probe, path):
        await asyncio.Event().wait()

    async def tail(rank):
        return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

    monkeypatch.setattr(module, "wait_healthy", never)
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
        return (Score(own=-11.0, best=-1.0),) * 20

    monkeypatch.setattr(Probe, "scores", noise)
    with pytest.raises(EngineError, match="plain English is noise"):
        await world.group().start()
    assert "noise" in world.reports[-1].diagnosis.says
    assert world.runtime.stopped == [world.rank_id()]


async def test_without_the_memory_it_needs_nothing_is_started(world, monkeypatch):
    monkeypatch.setattr(ranks, "ROOM_S", 0.0)
    with pytest.raises(EngineError, match="predicted to need"):
        await world.group(needs=1 << 60).start()
    assert world.runtime.started == []


async def test_a_start_that_says_nothing_hangs(world, monkeypatch):
    async def never(probe, path):
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "wait_healthy", never)
    monkeypatch.setattr(module, "START_PROGRESS_S", 0.02)
    with pytest.raises(EngineError, match="said nothing"):
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
    monkeypatch.setattr(module, "START_PROGRESS_S", 0.01)
    monkeypatch.setattr(module, "longest_s", lambda needs, silence_s: 0.3)
    with pytest.raises(EngineError, match="is not healthy after 0 minutes, and has not ended") as caught:
        await world.group(silence_s=30).start()
    assert "to reach the master" in caught.value.what
    assert "`silence`" in caught.value.do
    assert world.runtime.stopped == [world.rank_id()]
    assert world.reports[-1].phase is GroupPhase.FAILED
    assert "is not healthy" in world.reports[-1].diagnosis.says


async def test_a_start_of_which_its_node_tells_nothing_ends_too(world, monkeypatch):
    async def unhealthy(probe, path):
        return False

    async def gone(rank):
        raise NodeError("the supervisor is gone")

    monkeypatch.setattr(Probe, "healthy", unhealthy)
    monkeypatch.setattr(LocalRank, "status", gone)
    monkeypatch.setattr(module, "START_PROGRESS_S", 0.01)
    monkeypatch.setattr(module, "longest_s", lambda needs, silence_s: 0.1)
    with pytest.raises(EngineError, match="is not healthy"):
        await world.group().start()


async def test_before_the_host_wedges_the_group_is_stopped(world, monkeypatch):
    group = world.group()
    await group.start()
    monkeypatch.setattr(rank_module, "available_memory", lambda: 1 << 20)
    assert "memory are left on this" in await asyncio.wait_for(group.watch(), 5)
    assert world.runtime.stopped == [world.rank_id()]
    await group.stop(drain_s=0)


def hiccups(monkeypatch, *answers):
    """What the node answers when it is asked for its memory: an error, bytes (the last for ever); all but errors slowly."""
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

    async def never(probe, path):
        await asyncio.Event().wait()

    away = NodeError("this: the supervisor is gone")
    left = hiccups(monkeypatch, 100 << 30, away, away, 100 << 30, away, 1 << 20)
    monkeypatch.setattr(module, "wait_healthy", never)
    monkeypatch.setattr(module, "START_PROGRESS_S", 0.01)
    with pytest.raises(EngineError, match="memory are left on this"):
        await asyncio.wait_for(world.group().start(), 10)
    assert left == [1 << 20], "it was asked again each time"
    assert world.runtime.stopped == [world.rank_id()]
    assert world.reports[-1].diagnosis.cause == "memory"


async def test_memory_is_watched_on_while_it_serves_when_its_node_did_not_answer(world, monkeypatch):
    group = world.group()
    await group.start()
    away = NodeError("this: the node or its rank's actor is gone")
    left = hiccups(monkeypatch, away, away, 100 << 30, away, 1 << 20)
    assert "memory are left on this" in await asyncio.wait_for(group.watch(), 10)
    assert left == [1 << 20]
    assert world.runtime.stopped == [world.rank_id()]
    await group.stop(drain_s=0)


async def test_a_watch_that_died_is_taken_up_by_the_next_actor(world, monkeypatch):
    """An engine that nobody watches would serve on when it must not: its actor ends, and Serve makes another."""
    killed = []
    system = SimpleNamespace(getpid=os.getpid, kill=lambda *call: killed.append(call))
    monkeypatch.setattr(module, "os", system)

    def fails(liveness, *reading):
        raise ZeroDivisionError("a mistake of ours")

    first = world.group()
    await first.start()
    with monkeypatch.context() as patched:
        patched.setattr(Liveness, "is_suspect", fails)
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


def stuck(monkeypatch, answer):
    """From now on nothing of the engine moves; `answer` is what becomes of a request for one token."""

    async def still(probe, engine, draft_tokens):
        return Load(running=1, waiting=0, figures=(7.0,))

    monkeypatch.setattr(module, "read_load", still)
    monkeypatch.setattr(Probe, "one_token", answer)
    monkeypatch.setattr(watching, "Liveness", lambda: Liveness(stuck_s=0.05))


async def test_an_engine_of_which_nothing_moves_is_replaced(world, monkeypatch):
    async def silent(probe, timeout_s=0):
        raise EngineError("no token in 30 s")

    group = world.group()
    await group.start()
    stuck(monkeypatch, silent)
    assert "generates nothing" in await asyncio.wait_for(group.watch(), 5)
    assert world.runtime.stopped == [world.rank_id()]
    assert not world.reports[-1].was_starting
    await group.stop(drain_s=0)


async def test_it_is_heard_of_while_it_has_to_prove_that_it_lives_and_memory_does_not_answer(
    world, monkeypatch
):
    """The controller takes groups that say nothing for some seconds out of the gateways' table."""
    asked = []

    async def slow(probe, timeout_s=0):
        asked.append(timeout_s)
        await asyncio.Event().wait()

    async def hangs(rank):
        await asyncio.Event().wait()

    group = world.group(patience_s=321)
    await group.start()
    monkeypatch.setattr(LocalRank, "memory", hangs)
    stuck(monkeypatch, slow)
    watched = asyncio.create_task(group.watch())
    while not asked:
        await asyncio.sleep(0.01)
    count = len(world.reports)
    await asyncio.sleep(0.3)
    assert asked == [321]
    assert len(world.reports) >= count + 5
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
    with pytest.raises(EngineError, match="memory are left on this"):
        await asyncio.wait_for(world.group().start(), 10)
    assert asked
    assert world.runtime.stopped == [world.rank_id()]
    assert world.reports[-1].diagnosis.cause == "memory"
    assert world.reports[-1].was_starting


async def test_one_node_that_does_not_answer_hides_no_other_that_runs_out_of_memory(world, monkeypatch):
    group = world.group(seats=TWO)
    await group.start()

    async def memory(rank):
        if rank.node == "a":
            await asyncio.Event().wait()
        return 1 << 20

    monkeypatch.setattr(LocalRank, "memory", memory)
    assert "memory are left on b" in await asyncio.wait_for(group.watch(), 5)
    await group.stop(drain_s=0)


async def test_memory_is_watched_while_it_drains(world, monkeypatch):
    group = world.group()
    await group.start()

    async def busy(probe, engine, draft_tokens):
        monkeypatch.setattr(rank_module, "available_memory", lambda: 1 << 20)
        return Load(running=1, waiting=0, figures=(7.0,))

    monkeypatch.setattr(module, "read_load", busy)
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
    group = world.group(seats=TWO)
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
    async def hangs(rank):
        await asyncio.Event().wait()

    group = world.group()
    await group.start()
    monkeypatch.setattr(LocalRank, "tail", hangs)
    monkeypatch.setattr(ranks, "TAIL_S", 0.05)
    watched = asyncio.create_task(group.watch())
    await asyncio.sleep(0)
    world.runtime.exit(world.rank_id(), -9, "ended by signal 9")
    assert "ended by signal 9 (" in await asyncio.wait_for(watched, 5)
    await group.stop(drain_s=0)


async def test_of_a_workload_of_its_own_only_the_health_is_asked(world, monkeypatch):
    async def never(probe, timeout_s=0):
        raise AssertionError("a custom workload was asked for tokens")

    monkeypatch.setattr(Probe, "one_token", never)
    fields = {"engine": "custom", "command": ("serve",), "port": None, "health": "/health"}
    candidate = order().candidate.model_copy(update=fields)
    group = world.group(candidate=candidate)
    await group.start()
    assert world.reports[-1].phase is GroupPhase.READY
    watching = asyncio.create_task(group.watch())
    await asyncio.sleep(0.05)
    assert not watching.done()
    watching.cancel()
    await group.stop(drain_s=1)


async def test_a_log_of_an_earlier_start_says_nothing_of_this_one(tmp_path):
    path = tmp_path / "rank.log"
    path.write_text(
        "[sparkfleet] 2026-11-20 18:00:00,123 running: vllm serve x\nApplication startup complete.\n"
        "[sparkfleet] 2026-11-20 18:01:00,123 stopped: it was asked to stop\n"
        "[sparkfleet] 2026-11-20 18:02:00,123 preparing: build\nbuilt\n"
        "[sparkfleet] 2026-11-20 18:02:01,123 running: vllm serve x\nfirst line\n"
    )
    assert rank_module._tail(path) == "first line\n"
    path.write_text("an engine's own line\n")
    assert rank_module._tail(path) == "an engine's own line\n"
