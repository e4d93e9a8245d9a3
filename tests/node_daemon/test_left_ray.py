"""A watchdog that finds Ray running watches it, unless another watchdog lives."""

import asyncio
import os
import shutil
import subprocess

import pytest
from control_values import inventory

from sparkfleet.controlplane.api.api_models import Role, UpRequest
from sparkfleet.controlplane.ray.ray_process import LABEL, choose_address
from sparkfleet.node_daemon import ray_watchdog
from sparkfleet.node_daemon.left_ray import left_ray, watchdog_lock
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
