"""Starts of a group: in their order, adopted or new, on one node or more."""

import asyncio
import time

import pytest
from group_world import SECRET, TWO, group_launch, never, rank_spec, vanish

from sparkfleet.errors import Cause, EngineError, NodeError
from sparkfleet.group import group as module
from sparkfleet.group.engine_load import Load
from sparkfleet.group.probe import Probe
from sparkfleet.group.ranks import local_rank as rank_module
from sparkfleet.group.report import GroupPhase
from sparkfleet.group.start.speed import MeasuringTurns
from sparkfleet.group.start.start_checks import StartChecks
from sparkfleet.planner.types.plan import GroupShape


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
        monkeypatch.setattr(group._client, "until_idle", slow)
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
    async with MeasuringTurns(world.paths.run / "measuring").alone(0) as quiet:
        assert quiet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_engine_that_runs_on_a_drained_node_is_adopted(world, engine):
    async def barred():
        raise AssertionError("nothing is started")

    await world.runtime.start(rank_spec(group_launch(), 0, engine, SECRET))
    group = world.group(barred=barred)
    await group.start()
    assert world.reports[-1].adopted
    await group.stop(drain_s=0)


async def test_a_rank_that_runs_already_is_adopted(world, engine):
    await world.runtime.start(rank_spec(group_launch(), 0, engine, SECRET))
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

    await world.runtime.start(rank_spec(group_launch(), 0, engine, SECRET))
    monkeypatch.setattr("sparkfleet.group.engine_client.read_load", loaded)
    group = world.group()
    await group.start()
    assert world.reports[-1].adopted
    assert ("decode_tps" in world.reports[-1].measured) is measured
    assert world.reports[-1].unused is measured
    await group.stop(drain_s=0)


async def test_a_rank_of_another_plan_is_stopped_and_started_anew(world, engine):
    spec = rank_spec(group_launch(), 0, engine, SECRET)
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
    candidate = group_launch().candidate.model_copy(update={"shape": shape})
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


async def test_the_token_is_not_in_the_command(world, engine):
    spec = rank_spec(group_launch(), 0, engine, SECRET)
    token = dict(spec.secret_env)["VLLM_API_KEY"]
    assert token not in " ".join(spec.argv)
    assert token not in str(spec.env)
    assert SECRET not in spec.model_dump_json()


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
    left = [NodeError("its daemon is away", because=Cause.TOOL)] * 2

    async def container_of(launch):
        if left:
            raise left.pop()

    monkeypatch.setattr(rank_module, "container_of", container_of)
    group = world.group()
    await group.start()
    assert left == []
    await group.stop(drain_s=0)


@pytest.mark.parametrize("stopped", ["its supervisor", "its actor on another node"])
async def test_a_rank_that_does_not_answer_at_the_end_of_a_start_costs_no_engine(world, monkeypatch, stopped):
    monkeypatch.setattr(module, "ANSWER_S", 0.01)
    group = world.group()

    async def checked(*_, **__):
        async def silent():
            if stopped == "its actor on another node":
                await never()  # a call of an actor has no time limit
            raise NodeError("the supervisor did not answer within 5 s")

        monkeypatch.setattr(group._ranks, "statuses", silent)
        return {}

    monkeypatch.setattr(StartChecks, "run", checked)
    async with asyncio.timeout(60):
        await group.start()
    ready = world.reports[-1]
    assert ready.phase is GroupPhase.READY
    assert [one.node for one in ready.ranks] == ["this"]
    await group.stop(drain_s=0)


async def test_a_group_whose_chats_are_refused_serves_and_reports_it(world, monkeypatch):
    """A base model has no chat template, and what it completes is sound."""

    async def refusal(probe):
        return "HTTP 400: there is no chat template"

    monkeypatch.setattr(Probe, "chat_refusal", refusal)
    group = world.group()
    await group.start()
    assert world.reports[-1].phase is GroupPhase.READY
    assert world.reports[-1].chat_refusal == "HTTP 400: there is no chat template"
    await group.stop(drain_s=0)
