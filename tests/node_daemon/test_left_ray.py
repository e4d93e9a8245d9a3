"""A watchdog that finds Ray running watches it, unless another watchdog lives."""

import asyncio
import contextlib
import os
import shutil
import subprocess

import pytest
from control_values import inventory, joining

from sparkfleet.controlplane.api.api_models import Role, UpRequest
from sparkfleet.controlplane.ray.ray_process import LABEL, choose_address
from sparkfleet.node_daemon import node_lifecycle, ray_watchdog
from sparkfleet.node_daemon.left_ray import left_ray, left_worker, watchdog_lock
from sparkfleet.node_daemon.role_guard import write_role
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.inventory import Gateway


@pytest.fixture
def paths(paths):
    up = UpRequest(fleet="home", state_dir=str(paths.root), inventory=inventory())
    paths.role.write_text(Role(python="python", up=up).model_dump_json())
    return paths


@pytest.fixture
def gcs(paths, tmp_path):
    """A process with the name and the label of this fleet's Ray."""
    program = shutil.copy(shutil.which("sleep"), tmp_path / "gcs_server")
    with subprocess.Popen([program, "100"], env={**os.environ, LABEL: paths.label}) as process:
        yield process
        process.kill()


@pytest.fixture
def running(paths, monkeypatch):
    """`up` finds the fleet up, and counts how often it was called."""
    calls = []

    async def up(request):
        calls.append(request.fleet)
        return choose_address(paths, "127.0.0.1", Gateway(port=0)), None

    async def idle(paths):
        await asyncio.Event().wait()

    monkeypatch.setattr(ray_watchdog.node_lifecycle, "up", up)
    monkeypatch.setattr(ray_watchdog, "_watch_controller", idle)
    monkeypatch.setattr(ray_watchdog, "pause_s", lambda *_: 0.0)
    return calls


async def test_ray_that_was_left_is_watched_and_started_again_when_it_ends(paths, gcs, running):
    """It was watched by nobody after `up` on a node with systemd."""
    keeping = asyncio.create_task(ray_watchdog.keep(paths))
    await asyncio.sleep(0.5)
    assert not keeping.done()
    assert running == ["home"]
    gcs.kill()
    gcs.wait()
    assert await asyncio.wait_for(keeping, 10) == 0
    assert running == ["home", "home"]


async def test_it_is_left_to_a_watchdog_that_lives(paths, gcs, running):
    with watchdog_lock(paths) as alone:
        assert alone
        assert await asyncio.wait_for(ray_watchdog.keep(paths), 10) == 0


def test_ray_of_another_fleet_is_not_found(paths, gcs, tmp_path):
    assert left_ray(paths).poll() is None
    assert left_ray(FleetPaths(tmp_path / "other")) is None


@pytest.fixture
def worker(paths, monkeypatch):
    """Ray of a node that has joined, with the command line of its start; the request, and every start of Ray."""
    request = joining(paths)
    write_role(paths, Role(python="python", join=request))
    monkeypatch.setattr(node_lifecycle, "ray_worker_argv", lambda _, ray, *more: ("sleep", "100", "0", "0.0"))
    monkeypatch.setattr(ray_watchdog, "pause_s", lambda *_: 0.0)
    started = []

    class Started:
        def poll(self):
            return None

    def start(paths, argv):
        started.append(argv)
        return Started()

    monkeypatch.setattr(node_lifecycle, "_start", start)
    with subprocess.Popen(["sleep", "100", "0", "0.0"], env={**os.environ, LABEL: paths.label}) as process:
        yield process, request, started
        process.kill()


async def test_a_new_watchdog_of_a_joined_node_leaves_its_ray_to_run_on(paths, worker):
    """It ended Ray to start it again, and every group of the node lost its actors."""
    process, _, started = worker
    paths.outcome.write_text("{}")
    keeping = asyncio.create_task(ray_watchdog.keep(paths))
    await asyncio.sleep(0.5)
    assert (process.poll(), started, keeping.done()) == (None, [], False)
    process.kill()
    process.wait()
    for _ in range(50):
        await asyncio.sleep(0.1)
        if started:
            break
    assert len(started) == 1, "Ray ended, and is started again"
    keeping.cancel()


@pytest.mark.parametrize("joined", [False, True])
async def test_a_join_that_somebody_asks_for_starts_ray_anew_unless_the_node_is_part_of_the_fleet(
    paths, worker, monkeypatch, joined
):
    process, request, started = worker
    paths.outcome.write_text("{}")
    monkeypatch.setattr(node_lifecycle, "JOINING_S", 0.0)
    monkeypatch.setattr(ray_watchdog.service_manager, "start", lambda *_, **__: "")
    ray_watchdog.begin_join(request.model_copy(update={"joined": joined}))
    keeping = asyncio.create_task(ray_watchdog.keep(paths))
    for _ in range(50):
        await asyncio.sleep(0.1)
        if started:
            break
    assert (process.poll() is None, len(started)) == ((True, 0) if joined else (False, 1))
    keeping.cancel()


@pytest.mark.parametrize("lives", [False, True], ids=["ended by systemd", "lives"])
async def test_a_second_join_leaves_ray_to_the_first_one(paths, worker, monkeypatch, lives):
    """Two `up` at once: the second one ended Ray while it joined, and started it anew."""
    process, request, started = worker
    monkeypatch.setattr(ray_watchdog.service_manager, "start", lambda *_, **__: "")
    ray_watchdog.begin_join(request)
    with watchdog_lock(paths) if lives else contextlib.nullcontext():  # of the first `up`
        keeping = asyncio.create_task(ray_watchdog.keep(paths))
        await asyncio.wait({keeping}, timeout=10 if lives else 0.5)
    assert (process.poll(), started, keeping.done()) == (None, [], lives)
    assert paths.outcome.read_text() == "{}"
    keeping.cancel()


async def test_a_second_watchdog_of_a_joined_node_ends_at_once(paths, worker):
    process, _, started = worker
    paths.outcome.write_text("{}")
    with watchdog_lock(paths):
        assert await asyncio.wait_for(ray_watchdog.keep(paths), 10) == 0
    assert (process.poll(), started) == (None, [])


def test_ray_with_another_command_line_is_not_taken_over(paths, worker):
    """It joined another head, or was started by another release."""
    left = left_worker(paths, ("sleep", "100", "0", "0.0"))
    assert left.poll() is None
    assert 0 <= left.age_s() < 60
    assert left_worker(paths, ("sleep", "100", "0")) is None
