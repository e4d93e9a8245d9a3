import asyncio
import itertools
import socket
import time

import aiohttp
import pytest
from group_world import SECRET, TWO, never, order, quick_world, rank_spec, vanish

from sparkfleet.engines.token_api import Scored
from sparkfleet.engines.token_scores import Score
from sparkfleet.errors import Cause, EngineError, NodeError
from sparkfleet.group import exit_watch
from sparkfleet.group import group as module
from sparkfleet.group.engine_load import Load
from sparkfleet.group.misplaced import Listening
from sparkfleet.group.probe import Probe
from sparkfleet.group.ranks import local_rank as rank_module
from sparkfleet.group.ranks.local_rank import LocalRank
from sparkfleet.group.report import GroupPhase
from sparkfleet.group.speed import QuietBox
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket
from sparkfleet.planner.types.plan import GroupShape
from sparkfleet.specs.timeouts import Timeouts


@pytest.fixture
def world(engine, monkeypatch, tmp_path):
    return quick_world(engine, monkeypatch, tmp_path)


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
    """No process can report a start that takes the node down."""
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


async def test_on_a_drained_node_it_waits_and_starts_nothing_until_the_node_may_be_used(world, monkeypatch):
    monkeypatch.setattr(module, "BARRED_LOOK_S", 0.001)
    answers = ["this is drained"] * 3

    async def barred():
        assert world.runtime.started == []
        return answers.pop() if answers else ""

    group = world.group(barred=barred)
    await group.start()
    assert answers == []
    barred_reports = [one for one in world.reports if one.phase is GroupPhase.BARRED]
    assert len(barred_reports) >= 3, "a silent group counts as gone"
    assert {one.detail for one in barred_reports} == {"this is drained"}
    assert world.phases == [GroupPhase.STARTING, GroupPhase.BARRED, GroupPhase.PROBING, GroupPhase.READY]
    assert len(world.runtime.started) == 1
    await group.stop(drain_s=0)


@pytest.mark.parametrize("phase", [GroupPhase.STARTING, GroupPhase.PROBING, GroupPhase.DRAINING])
async def test_it_is_heard_while_it_waits(world, monkeypatch, phase):
    """A group was called silent, and alerted on, in a pause before its restart, at a first token that compiled, and in a
    drain."""
    waits, until = asyncio.Event(), asyncio.Event()

    async def slow(*_, **__):
        waits.set()
        await until.wait()

    group = world.group()
    if phase is GroupPhase.DRAINING:
        await group.start()
        monkeypatch.setattr(group, "_idle", slow)
        work = asyncio.create_task(group.stop(drain_s=30))
    else:
        place = (group._ranks, "adopt") if phase is GroupPhase.STARTING else (Probe, "one_token")
        monkeypatch.setattr(*place, slow)
        work = asyncio.create_task(group.start())
    await waits.wait()
    before = len(world.reports)
    async with asyncio.timeout(60):
        while len(world.reports) < before + 3:
            await asyncio.sleep(0.01)
    assert {one.phase for one in world.reports[before:]} == {phase}
    if phase is GroupPhase.STARTING:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return
    until.set()
    await work
    if phase is GroupPhase.PROBING:
        await group.stop(drain_s=0)


async def test_one_that_waits_for_a_drained_node_does_not_keep_others_of_its_box_from_being_measured(world):
    async def barred():
        return "this is drained"

    waiting = asyncio.create_task(world.group(barred=barred).start())
    while not any(one.phase is GroupPhase.BARRED for one in world.reports):
        await asyncio.sleep(0.001)
    async with QuietBox(world.paths.run / "measuring").alone(0) as quiet:
        assert quiet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_engine_that_runs_on_a_drained_node_is_adopted(world, engine):
    async def barred():
        raise AssertionError("nothing is started")

    await world.runtime.start(rank_spec(order(), 0, engine, SECRET))
    group = world.group(barred=barred)
    await group.start()
    assert world.reports[-1].adopted
    await group.stop(drain_s=0)


async def test_a_rank_that_runs_already_is_adopted(world, engine):
    await world.runtime.start(rank_spec(order(), 0, engine, SECRET))
    group = world.group()
    await group.start()
    assert len(world.runtime.started) == 1
    assert world.reports[-1].adopted
    await group.stop(drain_s=0)


@pytest.mark.parametrize(
    ("tokens", "running", "measured"), [(1.0, 0, True), (500.0, 0, False), (1.0, 2, False)]
)
async def test_an_adopted_engine_is_measured_at_once_if_it_has_served_nobody(
    world, engine, monkeypatch, tokens, running, measured
):
    """The command starts engines while Ray starts; the first line that an owner sees of one had no speed."""

    async def loaded(*_):
        return Load(running=running, waiting=0, figures=(tokens,))

    await world.runtime.start(rank_spec(order(), 0, engine, SECRET))
    monkeypatch.setattr("sparkfleet.group.group.read_load", loaded)
    group = world.group()
    await group.start()
    assert world.reports[-1].adopted
    assert ("decode_tps" in world.reports[-1].measured) is measured
    assert world.reports[-1].unused is measured
    await group.stop(drain_s=0)


async def test_a_rank_of_another_plan_is_stopped_and_started_anew(world, engine):
    spec = rank_spec(order(), 0, engine, SECRET)
    await world.runtime.start(spec.model_copy(update={"digest": "another"}))
    group = world.group()
    await group.start()
    assert world.runtime.stopped == [world.rank_id()]
    assert not world.reports[-1].adopted
    await group.stop(drain_s=0)


async def test_a_rank_that_is_held_by_another_group_is_waited_for(world, monkeypatch):
    monkeypatch.setattr(rank_module, "OWNED_S", 0.3)
    first, second = world.group(), world.group()
    await first.start()
    with pytest.raises(EngineError, match="still held by another process"):
        await second.start()
    await first.stop(drain_s=0)


def _after(flag, argv):
    return argv[argv.index(flag) + 1]


async def test_every_rank_of_a_group_is_started_with_one_rendezvous(world):
    shape = GroupShape(nodes=("a", "b"), tp=2)
    candidate = order().candidate.model_copy(update={"shape": shape})
    group = world.group(placements=TWO, candidate=candidate)
    await group.start()
    first, second = (_after("--master-port", runtime.started[0].argv) for runtime in world.runtimes)
    assert int(first) == int(second) != 0
    assert [report.rank for report in world.reports[-1].ranks] == [0, 1]
    assert [report.node for report in world.reports[-1].ranks] == ["a", "b"]
    await group.stop(drain_s=0)
    assert world.runtimes[1].stopped == [world.rank_id(1)]


async def test_no_rank_survives_alone(world):
    group = world.group(placements=TWO)
    await group.start()
    watching = asyncio.create_task(group.watch())
    await asyncio.sleep(0)
    world.runtimes[1].exit(world.rank_id(1), 0)
    await asyncio.wait_for(watching, 5)
    assert world.runtimes[0].stopped == [world.rank_id(0)]
    assert "on b (rank 1)" in world.reports[-1].detail
    await group.stop(drain_s=0)


async def test_the_next_actor_reports_the_end_that_the_last_one_could_not(world):
    """Ray's head was away, and so the controller: the engine was loaded again, and no event named the reason."""
    group = world.group(placements=TWO)
    await group.start()
    watching = asyncio.create_task(group.watch())
    await asyncio.sleep(0)
    world.runtimes[1].exit(world.rank_id(1), 3)
    ended = await asyncio.wait_for(watching, 5)
    await group.stop(drain_s=0)
    after = world.group(placements=TWO)
    await after.start()
    assert "on b (rank 1)" in ended
    assert ended in {report.lost for report in world.reports}
    await after.stop(drain_s=0)
    again = world.group(placements=TWO)
    world.reports.clear()
    await again.start()
    assert {report.lost for report in world.reports} == {""}, "it is reported once"
    await again.stop(drain_s=0)


async def test_a_group_of_which_one_rank_is_gone_is_started_anew_as_a_whole(world, engine):
    before = world.group(placements=TWO)
    await before.start()
    await vanish(before)
    world.runtimes[1].exit(world.rank_id(1), 1)
    after = world.group(placements=TWO)
    await after.start()
    assert not world.reports[-1].adopted
    assert [len(runtime.started) for runtime in world.runtimes] == [2, 2]
    await after.stop(drain_s=0)


async def test_a_whole_group_that_runs_already_is_adopted(world):
    before = world.group(placements=TWO)
    await before.start()
    await vanish(before)
    after = world.group(placements=TWO)
    await after.start()
    assert world.reports[-1].adopted
    assert [len(runtime.started) for runtime in world.runtimes] == [1, 1]
    await after.stop(drain_s=0)


async def test_an_engine_that_exits_while_it_starts_is_told_with_its_reason(world, monkeypatch):
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


async def test_a_start_that_fails_for_an_unknown_reason_is_named_and_leaves_nothing(world, monkeypatch):
    """It had no diagnosis, and the engine ran on, with its memory, until its lease was over."""

    async def full(probe, path, names):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "drafts_of", full)
    with pytest.raises(EngineError, match="No space left on device"):
        await world.group().start()
    assert world.runtime.stopped == [world.rank_id()]
    failed = world.reports[-1]
    assert (failed.phase, failed.was_starting) == (GroupPhase.FAILED, True)
    assert "No space left on device" in failed.detail
    assert "No space left on device" in failed.diagnosis.says


async def test_an_engine_that_is_up_and_cannot_generate_is_stopped(world, monkeypatch):
    async def refuses(probe, timeout_s=0):
        raise EngineError("no token")

    monkeypatch.setattr(Probe, "one_token", refuses)
    with pytest.raises(EngineError, match="no token"):
        await world.group().start()
    assert world.runtime.stopped == [world.rank_id()]


@pytest.mark.parametrize("kind", ["vllm", "custom"])
async def test_a_stop_waits_for_what_is_still_answered(world, engine, kind):
    own = {"engine": "custom", "command": ("serve",), "port": engine, "health": "/health"}
    candidate = order().candidate.model_copy(update=own if kind == "custom" else {})
    group = world.group(candidate=candidate)
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
        assert kind == "vllm" or world.runtime.stopped == [], "the client has not closed its connection yet"
    await stopping
    assert world.runtime.stopped == [world.rank_id()]


async def test_checks_of_a_custom_workload_go_on_while_its_stop_waits_for_a_client(world, engine):
    own = {"engine": "custom", "command": ("serve",), "port": engine, "health": "/health"}
    group = world.group(
        candidate=order().candidate.model_copy(update=own),
        timeouts=Timeouts(health_every_s=0.01),
        probed=True,
    )
    await group.start()
    watching = asyncio.create_task(group.watch())
    client = socket.create_connection(("127.0.0.1", engine))
    stopping = asyncio.create_task(group.stop(drain_s=30))
    await asyncio.wait({watching, stopping}, timeout=1)
    assert not watching.done()
    assert not stopping.done()
    client.close()
    await stopping
    assert world.runtime.stopped == [world.rank_id()]
    await watching


async def test_what_still_loads_answers_nobody_and_is_stopped_at_once(world, monkeypatch):
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
        return Scored(ids=tuple(range(21)), scores=(Score(own=-11.0, best=-1.0),) * 20)

    monkeypatch.setattr(Probe, "scores", noise)
    with pytest.raises(EngineError, match="the perplexity of plain English is"):
        await world.group().start()
    assert "the perplexity of plain English" in world.reports[-1].diagnosis.says
    assert world.runtime.stopped == [world.rank_id()]


async def test_without_the_memory_it_needs_nothing_is_started(world, monkeypatch):
    with pytest.raises(EngineError, match="predicted to need"):
        await world.group(needs=1 << 60, timeouts=Timeouts(memory_s=0.001)).start()
    assert world.runtime.started == []


async def test_a_start_that_says_nothing_hangs(world, monkeypatch):
    monkeypatch.setattr(module, "wait_healthy", never)
    monkeypatch.setattr(module, "START_PROGRESS_S", 0.02)
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


async def test_a_workload_of_its_own_that_serves_every_address_is_stopped_before_it_counts_as_ready(
    world, monkeypatch
):
    async def everywhere(rank):
        found = (ListeningSocket(address="*", port=5005),)
        return Listening(address="127.0.0.1", port=5005, sockets=found)

    monkeypatch.setattr(LocalRank, "sockets", everywhere)
    fields = {"engine": "custom", "command": ("serve",), "port": None, "health": "/health"}
    group = world.group(candidate=order().candidate.model_copy(update=fields))
    with pytest.raises(
        EngineError, match=r"It listens on \*:5005 .*its requests arrive at 127\.0\.0\.1:5005"
    ):
        await group.start()
    assert GroupPhase.READY not in world.phases
    assert world.runtime.stopped == [world.rank_id()]


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
async def test_a_clock_that_jumps_during_a_start_does_not_count_as_its_duration(world, monkeypatch, jump_s):
    group = world.group()
    now = time.time
    start = world.runtime.start

    async def jumping(spec):
        monkeypatch.setattr(module.time, "time", lambda: now() + jump_s)
        return await start(spec)

    world.runtime.start = jumping
    await group.start()
    assert 0 < world.reports[-1].started_s < 60
    await group.stop(drain_s=0)


def breaks(monkeypatch, then):
    """The connection of the request for a first token breaks, and `then` happens a moment later."""

    async def one_token(probe, timeout_s=0.0):
        asyncio.get_running_loop().call_later(0.05, then)
        raise EngineError("no token: disconnected") from aiohttp.ServerDisconnectedError()

    monkeypatch.setattr(Probe, "one_token", one_token)


async def test_an_engine_that_ends_at_its_first_request_is_reported_with_its_exit(world, monkeypatch):
    killed = "the engine ended by SIGKILL (the kernel killed 1 for lack of memory in its last seconds)"
    breaks(monkeypatch, lambda: world.runtime.exit(world.rank_id(), -9, killed))
    with pytest.raises(EngineError, match=r"The engine exited while it was starting \(signal 9\)"):
        await world.group().start()
    assert world.reports[-1].diagnosis.cause is Cause.MEMORY


async def test_a_connection_that_breaks_without_an_exit_is_reported_as_such(world, monkeypatch):
    monkeypatch.setattr(exit_watch, "EXIT_S", 0.01)
    breaks(monkeypatch, lambda: None)
    with pytest.raises(EngineError, match="no token: disconnected"):
        await world.group().start()


async def test_the_answer_of_a_health_path_is_shown_while_it_is_none(world, monkeypatch):
    monkeypatch.setattr(module, "START_PROGRESS_S", 0.01)

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


async def test_a_declared_port_that_is_taken_is_waited_for_and_other_errors_are_not(world, monkeypatch):
    monkeypatch.setattr(rank_module, "AGAIN_S", 0.001)
    world.runtime.refuse(world.rank_id(), NodeError("taken", because=Cause.PORT))
    group = world.group()
    await group.start()
    assert world.reports[-1].phase is GroupPhase.READY
    await group.stop(drain_s=0)
    world.runtime.refuse(world.rank_id(), NodeError("broken"))
    with pytest.raises(NodeError, match="broken"):
        await world.group().start()


async def test_a_container_tool_whose_daemon_is_away_is_waited_for(world, monkeypatch):
    monkeypatch.setattr(rank_module, "AGAIN_S", 0.001)
    left = [NodeError("its daemon is away", because=Cause.TRANSIENT)] * 2

    async def box_of(launch):
        if left:
            raise left.pop()

    monkeypatch.setattr(rank_module, "box_of", box_of)
    group = world.group()
    await group.start()
    assert left == []
    await group.stop(drain_s=0)


@pytest.mark.parametrize("stopped", ["its supervisor", "its actor on another node"])
async def test_a_rank_that_does_not_answer_at_the_end_of_a_start_costs_no_engine(world, monkeypatch, stopped):
    monkeypatch.setattr(module, "ANSWER_S", 0.01)
    group = world.group()

    async def checked(*_):
        async def silent():
            if stopped == "its actor on another node":
                await never()  # a call of an actor has no time limit
            raise NodeError("the supervisor did not answer within 5 s")

        monkeypatch.setattr(group._ranks, "statuses", silent)
        return {}

    monkeypatch.setattr(group, "_checked", checked)
    async with asyncio.timeout(60):
        await group.start()
    ready = world.reports[-1]
    assert ready.phase is GroupPhase.READY
    assert [one.node for one in ready.ranks] == ["this"]
    await group.stop(drain_s=0)
