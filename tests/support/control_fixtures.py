"""Fixtures of the tests of `controlplane`."""

import pytest
from clocks import Clock
from controller_world import World
from group_world import SECRET, group_launch, rank_spec

from sparkfleet.engines.fake import FakeEngine, Pace


@pytest.fixture
def clock():
    """A clock that does not move until a test sets its `now`."""
    return Clock()


@pytest.fixture
async def engine():
    """Port of a fake engine that requires the token which the group of replica 0 derives."""
    token = dict(rank_spec(group_launch(), 0, 1, SECRET).secret_env)["VLLM_API_KEY"]
    async with FakeEngine(model="tiny", pace=Pace(itl_s=0.001), token=token) as fake:
        yield int(fake.url.rpartition(":")[2])


@pytest.fixture
def world(tmp_path):
    """A controller on fakes. The tests of its parts have worlds of their own."""
    world = World(tmp_path)
    yield world
    world.store.close()
