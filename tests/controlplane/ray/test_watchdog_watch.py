"""A node's actor watches over the watchdog: named when it is gone or stopped, started again, left alone after `down`."""

import os
import signal
import subprocess
import sys

import pytest

from sparkfleet.controlplane.api.api_models import Role
from sparkfleet.controlplane.ray import watchdog_watch
from sparkfleet.controlplane.ray.watchdog_watch import MISSING, WatchdogWatch, environment_of
from sparkfleet.remote.channel import Completed
from sparkfleet.runtime.files.fleet_paths import FleetPaths

PYTHON = "/opt/the node's/python"


class Node:
    """A node with a role, a clock, and the commands that were started."""

    def __init__(self, paths, monkeypatch):
        self.now, self.started, self.ends = 0.0, [], Completed(argv=(), exit_code=0, stdout="", stderr="")
        self.paths = paths
        paths.role.write_text(Role(python=PYTHON).model_dump_json())
        monkeypatch.setattr(watchdog_watch, "execute", self._execute)
        self.watch = WatchdogWatch(paths, lambda: {"HOME": "/home/owner"}, lambda: self.now)

    async def _execute(self, argv, **given):
        self.started.append((argv, given["env"], given["stdin"]))
        return self.ends

    async def after(self, seconds):
        """The words of a look, this much later."""
        self.now += seconds
        found = await self.watch.look()
        if self.watch._starting is not None:
            await self.watch._starting
        return found


@pytest.fixture
def paths(tmp_path):
    """The directories of a node."""
    made = FleetPaths(tmp_path / "home")
    made.root.mkdir()
    return made


@pytest.fixture
def node(paths, monkeypatch):
    return Node(paths, monkeypatch)


@pytest.fixture
def watchdog(paths):
    """A process with the command line of this fleet's watchdog."""
    argv = [sys.executable, "-c", "print(flush=True); input()", "sparkfleet.node_daemon.node_cli", "keep"]
    with subprocess.Popen([*argv, str(paths.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def stop(process):
    """Stop a process, and return once it is stopped."""
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


async def test_one_that_runs_is_nothing_to_name_and_one_that_is_stopped_is(node, watchdog):
    assert await node.after(100) == ()
    stop(watchdog)
    (words,) = await node.after(100)
    assert words.startswith(
        "The Ray watchdog is stopped, and Ray would not be started again here if it ended"
    )
    assert f"`kill -CONT {watchdog.pid}`" in words
    assert node.started == []


async def test_one_that_was_killed_is_named_and_started_again_once_a_minute(node, watchdog, paths):
    """On a node without systemd it was away until the next reboot, and Ray with it as soon as that ended."""
    assert await node.after(1) == ()
    watchdog.kill()
    watchdog.wait()
    assert await node.after(2) == ()
    assert await node.after(4) == (MISSING,)
    assert node.started == []
    await node.after(10)
    ((argv, env, request),) = node.started
    assert argv == (PYTHON, "-P", "-m", "sparkfleet.node_daemon.node_cli", "watch")
    assert env == {"HOME": "/home/owner"}
    assert str(paths.root).encode() in request
    assert await node.after(50) == (MISSING,)
    assert len(node.started) == 1
    await node.after(10)
    assert len(node.started) == 2


async def test_a_reason_for_which_it_does_not_start_is_named(node):
    node.ends = Completed(argv=(), exit_code=1, stdout="", stderr="no module of that name\n")
    await node.after(20)
    (words,) = await node.after(1)
    assert words.endswith("It could not be started again: no module of that name")
    node.paths.role.write_text("garbage")
    await node.after(60)
    (words,) = await node.after(1)
    assert "Invalid JSON" in words


async def test_a_node_that_was_taken_down_gets_none(node):
    node.paths.role.replace(node.paths.ended_role)
    assert await node.after(100) == ()
    assert node.started == []


def test_the_environment_of_a_process_is_that_of_its_start():
    program = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        program, env={"A": "1=2", "B": ""}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        assert environment_of(process.pid) == {"A": "1=2", "B": ""}
        process.kill()
