"""The watch over the controller: makes one that is gone, ends one that hangs, and leaves the others in peace."""

import asyncio
import os
import subprocess
import sys
import time

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from control_values import inventory

from sparkfleet.controlplane.api.api_models import Role, UpRequest
from sparkfleet.controlplane.controller_note import ControllerNote
from sparkfleet.controlplane.ray.ray_process import LABEL, choose_address
from sparkfleet.errors import ControlError
from sparkfleet.node_daemon import controller_watch as module
from sparkfleet.node_daemon.controller_watch import GONE_S, HUNG_S, ControllerWatch
from sparkfleet.node_daemon.role_guard import write_role
from sparkfleet.specs.inventory import Gateway


class Head:
    """A head whose Ray listens, and its watch."""

    def __init__(self, paths):
        self.paths = paths
        self.now, self.up, self.made, self.fails = 0.0, True, [], False
        choose_address(paths, "127.0.0.1", Gateway(port=0))
        self.watch = ControllerWatch(paths, self.make, self.answers, lambda: self.now)

    async def make(self, address):
        self.made.append(self.now)
        if self.fails:
            raise ControlError("Ray takes none.")

    async def answers(self, url):
        return self.up

    def note(self, pid, **fields):
        note = ControllerNote(pid=pid, at=time.time(), **fields)
        self.paths.controller_note.write_text(note.model_dump_json())

    async def pass_(self, seconds):
        for _ in range(int(seconds)):
            self.now += 1
            await self.watch.look()


@pytest.fixture
def head(paths, monkeypatch):
    monkeypatch.setattr(module, "listens", lambda address: True)
    return Head(paths)


@pytest.fixture
def process(head):
    """A live process of the fleet: a controller's."""
    env = {**os.environ, LABEL: head.paths.label}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], env=env) as process:
        yield process
        process.kill()


@pytest.fixture
def stranger():
    """A live process of no fleet."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as process:
        yield process
        process.kill()


async def test_one_that_answers_is_left_alone(head):
    await head.pass_(HUNG_S * 3)
    assert head.made == []


async def test_one_that_is_gone_is_made_again_once_ray_had_its_time(head):
    head.up = False
    await head.pass_(GONE_S - 1)
    assert head.made == []
    await head.pass_(1)
    assert head.made == [GONE_S]
    head.up = True
    await head.pass_(5)
    head.up = False
    await head.pass_(GONE_S + 1)
    assert len(head.made) == 2


async def test_one_that_cannot_be_made_is_tried_again_after_growing_pauses(head):
    head.up, head.fails = False, True
    await head.pass_(60)
    pauses = [after - before for before, after in zip(head.made, head.made[1:], strict=False)]
    assert pauses == sorted(pauses)
    assert pauses[0] >= GONE_S
    assert pauses[-1] > pauses[0]


async def test_none_is_made_without_ray(head, monkeypatch):
    monkeypatch.setattr(module, "listens", lambda address: False)
    head.up = False
    await head.pass_(60)
    assert head.made == []


async def test_one_that_hangs_is_ended_and_not_before_its_time(head, process):
    head.note(process.pid)
    head.up = False
    await head.pass_(HUNG_S - 1)
    assert process.poll() is None
    await head.pass_(1)
    assert process.wait(10) == -9
    assert head.made == []


async def test_one_that_answered_before_this_watch_was_stopped_itself_is_left_alone(head, process):
    """A watchdog that was stopped for a minute in the middle of an answer ended a controller that worked."""
    head.note(process.pid)
    await head.pass_(3)
    head.up, head.now = False, head.now + HUNG_S * 2
    await head.watch.look()
    assert process.poll() is None
    head.up = True
    await head.pass_(HUNG_S * 2)
    assert process.poll() is None


async def test_another_one_gets_the_inventory_that_up_stored_since(paths, monkeypatch):
    """Without systemd the watchdog of the first `up` lives on, and made the controller with the inventory of that time."""
    made = []

    async def make(request):
        made.append(request.inventory.head)

    monkeypatch.setattr(module, "_make", make)
    first, second = (
        UpRequest(fleet="home", state_dir=str(paths.root), inventory=inventory(*names))
        for names in (("this",), ("a", "b"))
    )
    address = choose_address(paths, "127.0.0.1", Gateway(port=0))
    watch = module.watch_of(paths, first)
    await watch._make(address)
    write_role(paths, Role(python="p", up=second))
    await watch._make(address)
    paths.role.write_text("{")
    await watch._make(address)
    assert made == ["this", "a", "this"]


async def test_one_whose_port_is_taken_is_left_to_wait_for_it(head, process):
    head.note(process.pid, api="The controller's API cannot listen.")
    head.up = False
    await head.pass_(HUNG_S * 2)
    assert process.poll() is None
    assert head.made == []


async def test_a_pid_that_belongs_to_another_program_by_now_is_not_ended(head, stranger):
    head.note(stranger.pid)
    head.up = False
    await head.pass_(HUNG_S * 2)
    assert stranger.poll() is None
    assert head.made


@pytest.mark.parametrize("status", [200, 401, 503])
async def test_any_answer_is_an_answer(status):
    async def answer(request):
        return web.Response(status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        assert await module.answers(str(server.make_url("")))


async def test_silence_is_none(unused_tcp_port, monkeypatch):
    assert not await module.answers(f"http://127.0.0.1:{unused_tcp_port}")
    monkeypatch.setattr(module, "ANSWER_S", 0.1)

    closed = asyncio.Event()

    async def silent(reader, writer):
        await reader.read()
        writer.close()
        await writer.wait_closed()
        closed.set()

    async with await asyncio.start_server(silent, "127.0.0.1", unused_tcp_port):
        assert not await module.answers(f"http://127.0.0.1:{unused_tcp_port}")
        await closed.wait()
