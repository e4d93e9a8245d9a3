"""Steps of moving the head, each on its node; `tests/integration/test_heads.py` has the whole on real Ray."""

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from control_values import deployment, inventory, plan

from sparkfleet.controlplane.api.api_models import JoinRequest, MoveRequest, Role, UpRequest
from sparkfleet.controlplane.controller_note import NoteWriter
from sparkfleet.controlplane.ray.ray_process import LABEL, choose_address
from sparkfleet.controlplane.state.head_address import HeadMove, read_address
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.store_safety.copies import take_copy
from sparkfleet.controlplane.store_safety.guard import StoreError, StoreFault
from sparkfleet.controlplane.store_safety.kept_copy import keep_copy
from sparkfleet.controlplane.store_safety.moving import read_move
from sparkfleet.controlplane.store_safety.opening import open_store
from sparkfleet.node_daemon import head_move, ray_watchdog, service_manager
from sparkfleet.runtime import processes, thaw_guard
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.ports import free_port
from sparkfleet.specs.inventory import Gateway

MOVE = HeadMove(to="b", token="t1")


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """State directories of the old head, with a store, and of the new one."""
    monkeypatch.setattr(service_manager, "spawn", lambda *_: None)
    monkeypatch.setattr(service_manager, "start", lambda *_, **__: "")
    old, new = FleetPaths(tmp_path / "a" / "home"), FleetPaths(tmp_path / "b" / "home")
    for paths in (old, new):
        paths.create()
    store = open_store(old, "home")
    store.deployments.put(deployment(), plan(), "me")
    store.close()
    old.role.write_text(Role(python="p", up=up(old)).model_dump_json())
    new.role.write_text(Role(python="p", join=joining(new)).model_dump_json())
    yield old, new
    for paths in (old, new):
        with contextlib.suppress(OSError):
            paths.run.rmdir()


def up(paths, **more):
    return UpRequest(fleet="home", state_dir=str(paths.root), inventory=inventory(), **more)


def joining(paths, head="a"):
    return JoinRequest(
        fleet="home",
        state_dir=str(paths.root),
        node="b",
        host="127.0.0.1",
        head=head,
        ray="127.0.0.1:1",
        ray_token="",
        engine_secret="",
    )


async def step(paths, name, move=MOVE, **more):
    request = MoveRequest(fleet="home", state_dir=str(paths.root), step=name, move=move, **more)
    return await head_move.answer(request)


async def carry(old, new, move=MOVE, **more):
    """From `out` to `in`."""
    given = await step(old, "out", move)
    copy = old.moving_store.read_bytes()
    new.moving_store.write_bytes(copy)
    kept = {name: given[name] for name in ("sha256", "ray_token", "api_token", "engine_secret", "term")}
    return await step(new, "in", move, **{**kept, **more})


async def test_store_and_secrets_arrive_and_neither_head_works_until_it_is_settled(nodes):
    old, new = nodes
    assert "error" not in await carry(old, new, up=up(new, beside=True))
    for paths in nodes:
        with pytest.raises(StoreError, match="head of this fleet is being moved to b") as caught:
            open_store(paths, "home")
        assert "move-head --cancel b" in caught.value.do
    assert new.api_token.read_text() == old.api_token.read_text()
    assert Role.model_validate_json(new.role.read_text()).up is None, "a reboot now changes nothing"
    await step(new, "settle")
    role = Role.model_validate_json(new.role.read_text())
    assert (role.up.beside, role.join) == (False, None)
    store = open_store(new, "home")
    assert store.deployments.desired()["tiny"].generation == 1
    store.close()
    with pytest.raises(StoreError, match="moved"):
        open_store(old, "home")
    await step(old, "away", join=joining(old, "b"))
    assert Role.model_validate_json(old.role.read_text()).join.head == "b"
    assert not old.database.exists()
    assert list(old.backups.glob("set-aside-*/sparkfleet.db")), "nothing is lost"
    assert read_move(old.root) is None


async def test_a_settlement_that_was_interrupted_is_repeated(nodes, monkeypatch):
    """The repetition ended with an error about a file that it had removed itself, and kept the role that was to come."""
    old, new = nodes
    await carry(old, new, up=up(new, beside=True))
    real, removed = Path.unlink, []

    def interrupted(path, missing_ok=False):
        if path in (new.head_move, new.next_role):
            if removed:
                raise OSError(errno.EIO, "Input/output error", str(path))
            removed.append(path)
        real(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", interrupted)
        assert "error" in await step(new, "settle")
    assert await step(new, "settle") == {}
    assert not new.next_role.exists()
    assert not new.head_move.exists()
    open_store(new, "home").close()


async def test_a_move_is_cancelled_before_it_is_settled_and_not_after(nodes):
    old, new = nodes
    await carry(old, new, up=up(new, beside=True))
    for paths in (new, old):
        await step(paths, "cancel")
    open_store(old, "home").close()
    assert not new.database.exists()
    assert not new.next_role.exists()
    await carry(old, new, up=up(new, beside=True))
    await step(new, "settle")
    await step(new, "cancel")
    open_store(new, "home").close()


async def test_a_lost_head_is_replaced_with_the_copy_that_a_node_keeps(nodes, monkeypatch):
    """The old head answers no step. What runs may be newer than the copy: no number is given twice."""
    old, new = nodes
    copy = take_copy(old, "change")
    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    keep_copy(new, copy.name, copy.read_bytes(), digest)
    port = free_port()
    request = joining(new).model_copy(update={"ray": f"127.0.0.1:{port}", "term": 4})
    new.role.write_text(Role(python="p", join=request).model_dump_json())
    found = await step(new, "kept")
    assert found["copy"]["deployments"] == ["tiny (generation 1)"]
    assert (found["path"], found["running"]) == (str(new.kept_copies / copy.name), [])
    token = new.ray_token.read_text()
    new.moving_store.write_bytes(copy.read_bytes())
    begun = await step(new, "in", sha256=digest, running=(("tiny", 3),), up=up(new, beside=True))
    assert begun["at_its_port"]
    coming = Role.model_validate_json(new.next_role.read_text()).up
    assert (coming.term, coming.ray_port) == (5, port)
    assert await step(new, "kept") == found, "a move that is undone can be repeated"
    await step(new, "settle")
    assert (await step(new, "kept"))["copy"] is None
    assert new.ray_token.read_text() == token
    store = open_store(new, "home")
    assert store.identity().id != found["copy"]["id"]
    assert store.deployments.desired()["tiny"].generation == 1
    assert store.deployments.put(deployment(), plan(), "me", retry=True)[0].generation == 4
    store.close()


async def test_a_new_head_on_another_port_than_the_lost_one_is_named(nodes):
    old, new = nodes
    copy = take_copy(old, "change").read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ray = f"127.0.0.1:{server.getsockname()[1]}"
        new.role.write_text(
            Role(python="p", join=joining(new).model_copy(update={"ray": ray})).model_dump_json()
        )
        new.moving_store.write_bytes(copy)
        digest = hashlib.sha256(copy).hexdigest()
        begun = await step(new, "in", sha256=digest, running=(), up=up(new, beside=True))
    assert not begun["at_its_port"]
    assert Role.model_validate_json(new.next_role.read_text()).up.ray_port == 0


async def test_connections_that_wait_for_their_end_do_not_take_the_port_of_the_lost_head(nodes):
    """A replacement that was killed and repeated listened elsewhere, and the lost head came back as a second one."""
    _, new = nodes
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()  # the side that closes first waits
            client.recv(1)
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("127.0.0.1", port))
    ray = joining(new).model_copy(update={"ray": f"127.0.0.1:{port}"})
    assert head_move._fleets_port(ray) == port


async def test_a_store_that_arrives_damaged_is_refused(nodes):
    old, new = nodes
    answer = await carry(old, new, sha256=hashlib.sha256(b"other").hexdigest())
    assert answer["error"]["what"] == "The store arrived damaged."
    assert not new.database.exists()


async def test_a_head_takes_no_other_store(nodes):
    old, _ = nodes
    answer = await step(old, "in")
    assert answer["error"]["what"] == "This node is the head already."
    store = Store(old.database)
    assert "tiny" in store.deployments.desired()
    store.close()


async def test_a_controller_that_does_not_stop_keeps_the_head(nodes, monkeypatch):
    old, _ = nodes
    monkeypatch.setattr(head_move, "HELD_S", 0.3)
    with labelled(old) as controller:
        NoteWriter(old).work()
        old.controller_note.write_text(
            old.controller_note.read_text().replace(f'"pid":{os.getpid()}', f'"pid":{controller.pid}')
        )
        answer = await step(old, "out")
    assert "still works with its store" in answer["error"]["what"]
    open_store(old, "home").close()


@contextlib.contextmanager
def labelled(paths, **more):
    """A process of Ray on this node."""
    argv = [sys.executable, "-c", "input()"]
    env = {**os.environ, LABEL: paths.label, **more}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env=env) as process:
        try:
            while not processes.carries(process.pid, {LABEL: paths.label, **more}):
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


async def test_only_the_old_rays_processes_are_stopped_and_ended(nodes):
    old, new = nodes
    await carry(old, new, up=up(new, beside=True))
    with labelled(new) as before, labelled(new, **{head_move.MOVED: "t1"}) as beside:
        await step(new, "freeze")
        assert (state(before), state(beside)) == ("T", "S")
        await step(new, "cancel")
        assert state(before) == "S", "it continues"
        assert beside.wait(5) == -signal.SIGKILL
    await carry(old, new, up=up(new, beside=True))
    with labelled(new) as before, labelled(new, **{head_move.MOVED: "t1"}) as beside:
        await step(new, "settle")
        assert before.wait(5) == -signal.SIGKILL
        assert beside.poll() is None


def state(process):
    """Its state in proc_pid_stat(5), as soon as it no longer runs."""
    stat = Path(f"/proc/{process.pid}/stat")
    while (found := stat.read_text().rpartition(")")[2].split()[0]) == "R":
        time.sleep(0.01)
    return found


@pytest.fixture
def gcs(nodes, tmp_path):
    """A process with the name and the label of the old head's Ray."""
    program, label = shutil.copy(shutil.which("sleep"), tmp_path / "gcs_server"), {LABEL: nodes[0].label}
    with subprocess.Popen([program, "100"], env={**os.environ, **label}) as process:
        while not processes.carries(process.pid, label):
            time.sleep(0.01)
        yield process
        process.kill()


async def test_a_controller_whose_note_was_removed_still_has_to_wait_before_the_store_is_copied(
    nodes, gcs, monkeypatch
):
    """Files of /tmp are removed after some days; the store was copied under a controller that worked with it."""
    old, _ = nodes
    monkeypatch.setattr(head_move, "HELD_S", 0.5)
    answer = await step(old, "out")
    assert "still works with its store" in answer["error"]["what"]
    assert not old.moving_store.exists()
    leaving = asyncio.create_task(step(old, "out"))
    await asyncio.sleep(0.1)
    NoteWriter(old).hold(StoreError(StoreFault.MOVED, "moved"), "moved", ())
    note = old.controller_note.read_text()
    old.controller_note.write_text(note.replace(f'"pid":{os.getpid()}', f'"pid":{gcs.pid}'))
    assert "error" not in await leaving
    assert old.moving_store.exists()


AGAIN, ELSEWHERE = HeadMove(to="b", token="t2"), HeadMove(to="c", token="t2")


def words(answer):
    return " ".join(answer["error"].values())


async def test_a_second_move_to_another_node_is_refused_until_the_first_is_cancelled(nodes):
    """Both were carried out, and made two heads of one term."""
    old, new = nodes
    await carry(old, new, up=up(new, beside=True))
    answer = await step(old, "out", ELSEWHERE)
    assert answer["error"]["what"] == "Another move of the head, to b, is under way."
    assert "`sparkfleet move-head --cancel b`" in answer["error"]["do"]
    for one in ("freeze", "give"):
        assert "to b, is under way" in words(await step(old, one, ELSEWHERE))
    assert await step(old, "cancel", ELSEWHERE) == {}
    assert read_move(old.root).token == "t1", "its own end does not end the first one"
    assert "to b, is under way" in words(await step(old, "cancel", HeadMove(to="c", token="")))
    await step(old, "cancel")
    assert "error" not in await step(old, "out", ELSEWHERE)


async def test_of_two_moves_to_one_node_the_later_one_goes_on(nodes):
    """That is how an interrupted one is completed; the first may not be dead, though."""
    old, new = nodes
    await carry(old, new, up=up(new, beside=True))
    await carry(old, new, AGAIN, up=up(new, beside=True))
    for paths, one in ((old, "freeze"), (old, "give"), (new, "freeze"), (new, "settle")):
        assert "Another move of the head, to b, is under way" in words(await step(paths, one))
    for paths in nodes:
        assert await step(paths, "cancel") == {}
        assert read_move(paths.root).token == "t2"
    assert await step(old, "give", AGAIN) == {}
    assert await step(new, "settle", AGAIN) == {}
    open_store(new, "home").close()


async def test_a_head_takes_part_in_no_move_that_did_not_begin_with_it(nodes):
    """Two people who replaced one lost head with two nodes both ended Ray on the other one's."""
    old, _ = nodes
    assert "has ended on a node" in words(await step(old, "freeze"))
    assert "has ended on a node" in words(await step(old, "give"))


async def test_a_move_that_was_cancelled_or_taken_down_is_not_settled(nodes, monkeypatch):
    """A fleet that was down had a head again, with the next step of a move."""
    monkeypatch.setattr(service_manager, "stop", lambda _: None)
    old, new = nodes
    await carry(old, new, up=up(new, beside=True))
    await step(new, "cancel")
    assert "was cancelled there, or by `sparkfleet down`" in words(await step(new, "settle"))
    await carry(old, new, up=up(new, beside=True))
    for paths in nodes:
        await ray_watchdog.take_down(paths)
        assert read_move(paths.root) is None
        assert not paths.next_role.exists()
        assert "no role in the fleet" in words(await step(paths, "freeze"))
    assert "by `sparkfleet down`" in words(await step(new, "settle"))
    assert not new.role.exists()
    assert not new.database.exists()
    open_store(old, "home").close()


async def test_the_old_head_is_not_released_while_the_new_one_may_be_the_head(nodes):
    old, new = nodes
    await carry(old, new, up=up(new, beside=True))
    await step(old, "give")
    answer = await step(old, "cancel", HeadMove(to="b", token=""), certain=False)
    assert "b is not reached, and it is not known if it is the head" in answer["error"]["what"]
    assert read_move(old.root) is not None
    assert await step(old, "cancel", HeadMove(to="b", token="")) == {}
    await carry(old, new, up=up(new, beside=True))
    assert await step(old, "cancel", HeadMove(to="b", token=""), certain=False) == {}, "it never got that far"
    open_store(old, "home").close()


async def test_a_head_that_has_taken_over_answers_so_instead_of_an_end_of_the_move(nodes):
    """`--cancel` after the end of a move let the old head work beside it."""
    old, new = nodes
    request = up(new, beside=True)
    head_is_new = inventory("b", "a")
    await carry(old, new, up=request.model_copy(update={"inventory": head_is_new}))
    assert await step(new, "cancel", HeadMove(to="b", token="t9")) == {}
    await step(new, "settle")
    assert await step(new, "cancel", HeadMove(to="b", token="")) == {"head": True}
    open_store(new, "home").close()


async def test_a_move_of_a_fleet_that_is_down_keeps_the_old_heads_store_if_it_is_cancelled(nodes):
    """It was set aside, as that of a node which had only got it."""
    old, new = nodes
    for paths in nodes:
        paths.role.unlink()
    assert "error" not in await carry(old, new)
    for paths in (new, old):
        await step(paths, "cancel")
    open_store(old, "home").close()
    assert not new.database.exists()
    assert "error" not in await carry(old, new)
    assert await step(new, "settle") == {}
    assert "error" not in await step(old, "away")
    open_store(new, "home").close()
    assert not old.database.exists()
    assert read_move(old.root) is None


async def test_an_ordinary_move_keeps_the_port_and_raises_the_term(nodes):
    """A head that had been lost before looked for a newer one there, found nobody and served beside it."""
    old, new = nodes
    port = free_port()
    request = joining(new).model_copy(update={"ray": f"127.0.0.1:{port}", "term": 4})
    new.role.write_text(Role(python="p", join=request).model_dump_json())
    choose_address(old, "127.0.0.1", Gateway(), term=6)
    choose_address(new, "127.0.0.1", Gateway(), term=2)  # left from a time when it was the head
    begun = await carry(old, new, up=up(new, beside=True))
    assert begun["at_its_port"]
    coming = Role.model_validate_json(new.next_role.read_text()).up
    assert (coming.term, coming.ray_port) == (7, port)
    assert read_address(new) is None, "else its former port would be taken"


async def test_a_stopped_ray_continues_by_itself_if_the_command_is_killed(nodes, monkeypatch):
    real = thaw_guard.start
    monkeypatch.setattr(thaw_guard, "start", lambda name, value: real(name, value, 0.5))
    old, new = nodes
    await carry(old, new, up=up(new, beside=True))
    with labelled(old) as ray:
        await step(old, "freeze")
        assert state(ray) == "T"
        async with asyncio.timeout(20):
            while state(ray) == "T":
                await asyncio.sleep(0.05)
        await step(old, "cancel")
