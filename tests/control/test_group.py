import asyncio
import os
import subprocess
import sys

import aiohttp
import pytest

from sparkfleet.control import group as module
from sparkfleet.control.canary import Probe
from sparkfleet.control.group import Group
from sparkfleet.control.order import GroupOrder, rank_spec
from sparkfleet.control.status import GroupPhase
from sparkfleet.errors import EngineError
from sparkfleet.nodes.runtime.fake import FakeRuntime
from sparkfleet.nodes.runtime.ports import free_port
from sparkfleet.planning.plan import Candidate, Shape

SECRET = "s" * 64


def order(tmp_path, **fields):
    candidate = Candidate(
        model="/models/tiny",
        shape=Shape(nodes=("this",)),
        engine="vllm",
        engine_version="0.32.0+cpu",
        context=512,
        concurrency=4,
        device="cpu",
    )
    fields = {"generation": 1, "replicas": 1, **fields}
    return GroupOrder(
        fleet="home",
        state_dir=str(tmp_path),
        run_dir=str(tmp_path),
        deployment="tiny",
        candidate=candidate,
        **fields,
    )


@pytest.fixture
def engine(tmp_path):
    """A fake engine in a process of its own, asking for the token that the group of replica 0 derives."""
    port = free_port("127.0.0.1")
    spec = rank_spec(order(tmp_path), 0, port, SECRET)
    arguments = ["--port", str(port), "--model", "tiny", "--itl-ms", "1", "--token-env", "TOKEN"]
    env = {**os.environ, "TOKEN": dict(spec.secret_env)["VLLM_API_KEY"]}
    process = subprocess.Popen([sys.executable, "-m", "sparkfleet.engines.fake", *arguments], env=env)
    yield port
    process.terminate()
    process.wait()


@pytest.fixture
def world(tmp_path, engine, monkeypatch):
    monkeypatch.setattr(module, "free_port", lambda host: engine)
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
    return World(tmp_path)


class World:
    def __init__(self, tmp_path):
        self.tmp_path = tmp_path
        self.runtime = FakeRuntime()
        self.reports = []

    def group(self, **fields):
        return Group(order(self.tmp_path, **fields), self.runtime, SECRET, self.reports.append, "this")

    @property
    def phases(self):
        return list(dict.fromkeys(report.phase for report in self.reports))

    def rank_id(self, replica=0):
        return order(self.tmp_path).rank_id(replica)


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


async def test_a_rank_that_runs_already_is_adopted(world, engine):
    await world.runtime.start(rank_spec(order(world.tmp_path), 0, engine, SECRET))
    group = world.group()
    await group.start()
    assert len(world.runtime.started) == 1
    assert world.reports[-1].adopted
    await group.stop(drain_s=0)


async def test_a_rank_with_another_command_is_stopped_and_started_anew(world, engine):
    spec = rank_spec(order(world.tmp_path), 0, engine, SECRET)
    await world.runtime.start(spec.model_copy(update={"argv": ("something", "else")}))
    group = world.group()
    await group.start()
    assert world.runtime.stopped == [world.rank_id()]
    assert not world.reports[-1].adopted
    await group.stop(drain_s=0)


async def test_two_replicas_take_a_rank_each(world, monkeypatch):
    first, second = world.group(replicas=2), world.group(replicas=2)
    await first._take_rank()
    _, status, _ = await second._take_rank()
    assert status.id.replica == 1
    third = world.group(replicas=2)
    with pytest.raises(EngineError, match="owned by other replicas"):
        await third._take_rank()


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
    status = await asyncio.wait_for(watching, 5)
    assert status.exit_code == 0
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
    token = dict(rank_spec(order(world.tmp_path), 0, engine, SECRET).secret_env)["VLLM_API_KEY"]
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


async def test_the_token_is_not_in_the_command(world, engine):
    spec = rank_spec(order(world.tmp_path), 0, engine, SECRET)
    token = dict(spec.secret_env)["VLLM_API_KEY"]
    assert token not in " ".join(spec.argv)
    assert token not in str(spec.env)
    assert SECRET not in spec.model_dump_json()
