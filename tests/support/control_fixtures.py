"""Fixtures of the tests of `controlplane`."""

import os
import subprocess
import sys

import pytest
from clocks import Clock
from controller_world import World
from group_world import SECRET, order, rank_spec

from sparkfleet.runtime.ports import free_port


@pytest.fixture
def clock():
    """For what takes a clock: it stands until a test sets its `now`."""
    return Clock()


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
def world(tmp_path):
    """A controller on fakes. The tests of its parts have worlds of their own."""
    world = World(tmp_path)
    yield world
    world.store.close()
