from __future__ import annotations

import asyncio

import pytest
from fake_runtime import FakeRuntime

from sparkfleet.errors import NodeError
from sparkfleet.runtime.base import Phase, Runtime


@pytest.fixture
def fake():
    return FakeRuntime()


@pytest.fixture
def spec(make_spec):
    return make_spec(("serve",))


def test_is_a_runtime(fake):
    runtime: Runtime = fake
    assert runtime


async def test_a_life(fake, spec):
    started = await fake.start(spec)
    assert (started.phase, started.owned, started.port) == (Phase.RUNNING, False, spec.port)
    assert await fake.start(spec) == started
    assert fake.started == [spec]
    rank = await fake.own(spec.id)
    assert (await rank.status()).owned
    assert await fake.list() == (await rank.status(),)
    assert (await rank.stop()).phase is Phase.EXITED
    assert (await rank.wait()).reason == "stopped: by its owner's request"
    assert fake.stopped == [spec.id]
    assert await fake.list() == ()
    assert (await fake.start(spec)).pid != started.pid


async def test_another_digest_is_refused(fake, spec, make_spec):
    await fake.start(spec)
    with pytest.raises(NodeError, match="another command"):
        await fake.start(make_spec(("other",)))


async def test_there_is_one_owner_at_a_time(fake, spec):
    assert await fake.own(spec.id) is None
    await fake.start(spec)
    rank = await fake.own(spec.id)
    assert await fake.own(spec.id) is None
    await rank.close()
    again = await fake.own(spec.id)
    assert again
    await rank.close()
    assert (await again.status()).owned
    with pytest.raises(NodeError, match="was released"):
        await rank.wait()


async def test_the_owner_is_told_of_the_end(fake, spec):
    await fake.start(spec)
    rank = await fake.own(spec.id)
    waiting = asyncio.create_task(rank.wait())
    await asyncio.sleep(0)
    fake.exit(spec.id, 3)
    end = await waiting
    assert (end.phase, end.exit_code, end.reason) == (Phase.EXITED, 3, "the engine exited with code 3")
    assert await fake.post_mortem(spec.id) == end
    fake.exit(spec.id, 4)
    assert (await rank.status()).exit_code == 3


async def test_a_crash(fake, spec):
    await fake.start(spec)
    fake.crash(spec.id)
    rank = await fake.own(spec.id)
    assert (await rank.wait()).exit_code == -9


async def test_a_lease_runs_out_for_those_that_nobody_owns(fake, spec):
    await fake.start(spec)
    rank = await fake.own(spec.id)
    fake.expire(spec.id)
    assert (await rank.status()).phase is Phase.RUNNING
    await rank.close()
    fake.expire(spec.id)
    assert (await fake.post_mortem(spec.id)).reason == "stopped: no owner for 30 s"


async def test_a_preparation(fake, make_spec):
    spec = make_spec(("serve",), prepare=("build",))
    started = await fake.start(spec)
    assert (started.phase, started.pid) == (Phase.PREPARING, None)
    assert fake.prepared(spec.id).phase is Phase.RUNNING


async def test_a_refusal_holds_once(fake, spec):
    fake.refuse(spec.id, NodeError("no room"))
    with pytest.raises(NodeError, match="no room"):
        await fake.start(spec)
    assert (await fake.start(spec)).phase is Phase.RUNNING


async def test_sweep(fake, spec, rank_id):
    other = spec.model_copy(update={"id": rank_id.model_copy(update={"rank": 1})})
    await fake.start(spec)
    await fake.start(other)
    assert await fake.sweep(frozenset({spec.id})) == ("rank home/qwen/g1/0/1",)
    assert [s.id for s in await fake.list()] == [spec.id]
    assert fake.stopped == [other.id]
    assert await fake.post_mortem(other.id) is None
