"""A new head that does not take over becomes an ordinary node again, by itself if nobody reaches it."""

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
import time

import pytest
from control_values import inventory, joining

from sparkfleet.controlplane.api.api_models import Role, UpRequest
from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.controlplane.state.head_address import HeadMove
from sparkfleet.controlplane.store_safety.moving import begin_move, give_head, read_move, void_moves
from sparkfleet.node_daemon import node_lifecycle, pending_move, ray_watchdog, service_manager
from sparkfleet.node_daemon.role_guard import read_role
from sparkfleet.runtime import processes

MOVE = HeadMove(to="b", token="t1")


@pytest.fixture
def new(paths):
    """A node that is to become the head: it has the store, and the role that would be its next one."""
    paths.role.write_text(Role(python="p", join=joining(paths)).model_dump_json())
    paths.next_role.write_text(Role(python="p", up=up(paths)).model_dump_json())
    paths.database.write_text("the store")
    begin_move(paths, MOVE, arriving=True)
    return paths


def up(paths):
    return UpRequest(fleet="home", state_dir=str(paths.root), inventory=inventory())


def is_ordinary(paths):
    left = [path for path in (paths.next_role, paths.head_move, paths.database) if path.exists()]
    return not left and read_role(paths).join is not None


@contextlib.contextmanager
def beside(paths):
    """A process of the second Ray that the move has started."""
    labels = {LABEL: paths.label, pending_move.MOVED: "t1"}
    argv = [sys.executable, "-c", "input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env={**os.environ, **labels}) as process:
        try:
            while not processes.carries(process.pid, labels):
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


class Ray:
    """Ray that runs until it is told to end."""

    def __init__(self):
        self.code = None

    def poll(self):
        return self.code


@pytest.fixture
def started(monkeypatch):
    """Ray of an ordinary node, as its watchdog has started it."""
    ray, joins = Ray(), []

    async def join(request, resumed):
        joins.append(request)
        return ray

    monkeypatch.setattr(node_lifecycle, "join", join)
    monkeypatch.setattr(ray_watchdog, "LOOK_S", 0.01)
    return joins


async def test_after_a_boot_it_is_an_ordinary_node(new, started):
    """The file with its next role stayed, and so did the store of another head."""
    watching = asyncio.create_task(ray_watchdog.keep(new))
    async with asyncio.timeout(10):
        while not started:
            await asyncio.sleep(0.01)
    assert is_ordinary(new)
    assert [one.read_text() for one in new.backups.glob("set-aside-*/sparkfleet.db")] == ["the store"]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_restart_of_its_watchdog_alone_does_not_end_the_move(new):
    with beside(new):
        await pending_move.end_if_left(new)
        assert read_move(new.root).token == "t1"
    await pending_move.end_if_left(new)
    assert is_ordinary(new)


async def test_neither_the_old_head_nor_one_that_has_taken_over_is_changed_by_a_boot(paths):
    paths.role.write_text(Role(python="p", up=up(paths)).model_dump_json())
    for arriving in (False, True):
        begin_move(paths, MOVE, arriving=arriving)
        await pending_move.end_if_left(paths)
        assert read_move(paths.root).token == "t1"


async def test_one_that_nobody_completes_ends_by_itself_and_its_watchdog_with_it(new, monkeypatch):
    ray = Ray()

    async def head(_):
        return Address(), ray

    class Address:
        def model_dump(self):
            return {}

    monkeypatch.setattr(node_lifecycle, "up", head)
    monkeypatch.setattr(ray_watchdog, "LOOK_S", 0.01)
    monkeypatch.setattr(ray_watchdog, "SETTLE_S", 0.1)
    with beside(new) as process:
        monkeypatch.setattr(ray, "poll", process.poll)
        async with asyncio.timeout(10):
            assert await ray_watchdog.keep(new, next_head=True) == 0
        assert process.poll() is not None
    assert is_ordinary(new)


async def test_one_that_has_taken_over_in_time_stays(new):
    new.role.write_text(Role(python="p", up=up(new)).model_dump_json())
    await pending_move.end_unsettled(new)
    assert new.database.read_text() == "the store"


async def test_down_ends_the_move_on_both_heads(new, tmp_path, monkeypatch):
    """It stayed armed: its next step made a head of a fleet that was down, and the next `up` waited for it."""
    monkeypatch.setattr(service_manager, "stop", lambda _: None)
    with beside(new) as process:
        await ray_watchdog.take_down(new)
        assert process.wait(10) != 0
    assert [path for path in (new.head_move, new.next_role, new.role) if path.exists()] == []


@pytest.mark.parametrize(("given", "void"), [(False, {"t1"}), (True, set())])
async def test_down_releases_the_old_head_with_its_store(paths, monkeypatch, given, void):
    """A new head that may have taken over is a newer one when it comes back."""
    monkeypatch.setattr(service_manager, "stop", lambda _: None)
    paths.role.write_text(Role(python="p", up=up(paths)).model_dump_json())
    paths.moving_store.write_text("a copy")
    begin_move(paths, MOVE)
    if given:
        give_head(paths)
    await ray_watchdog.take_down(paths)
    assert read_move(paths.root) is None
    assert void_moves(paths.root) == void
    assert not paths.moving_store.exists()


async def test_down_goes_on_if_the_move_cannot_be_ended(new, monkeypatch, caplog):
    monkeypatch.setattr(service_manager, "stop", lambda _: None)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pending_move, "retire", full)
    await ray_watchdog.take_down(new)
    assert not new.role.exists()
    assert "has not ended: [Errno 28]" in caplog.text
    assert read_move(new.root) is not None
