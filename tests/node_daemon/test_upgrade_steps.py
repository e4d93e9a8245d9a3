"""Steps of an upgrade, each on its node; `tests/integration/test_upgrade.py` has the whole on real Ray."""

import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time

import pytest
from control_values import deployment, inventory, plan

from sparkfleet import __version__
from sparkfleet.controlplane.api.api_models import Role, UpgradeRequest, UpRequest
from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.controlplane.state.schema import SCHEMAS
from sparkfleet.controlplane.store_safety.mark import read_mark
from sparkfleet.controlplane.store_safety.opening import open_store, read_content, require_known_fields
from sparkfleet.node_daemon import service_manager, upgrade_claim, upgrade_steps
from sparkfleet.runtime import processes, thaw_guard


@pytest.fixture
def paths(paths):
    """The state directory of a head, with a store and a role."""
    store = open_store(paths, "home")
    store.deployments.put(deployment(), plan(), "me")
    store.close()
    paths.role.write_text(role(paths, "/former/python").model_dump_json())
    return paths


@pytest.fixture
def started(monkeypatch):
    """Commands that the service manager was given."""
    found = []
    monkeypatch.setattr(service_manager, "start", lambda label, argv, *_, **__: found.append(argv) or "")
    return found


@pytest.fixture
def ray(paths):
    """A process of Ray, as its label names it."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, LABEL: paths.label}
    )
    while not processes.carries(process.pid, {LABEL: paths.label}):
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


def role(paths, python):
    request = UpRequest(fleet="home", state_dir=str(paths.root), inventory=inventory())
    return Role(python=python, up=request)


async def step(paths, name, token="first", **more):
    request = UpgradeRequest(
        fleet="home", state_dir=str(paths.root), step=name, token=token, who=f"{token}@host", **more
    )
    return await upgrade_steps.answer(request)


async def end(paths):
    await step(paths, "begin")
    return await step(paths, "end")


def kept(paths):
    files = (paths.former_role, paths.former_store, paths.upgrade_claim)
    return [path.name for path in files if path.exists()]


def claimed_by(paths):
    return upgrade_claim.read_claim(paths).token


def long_ago(paths):
    """The command that claimed this node was killed."""
    before = time.time() - upgrade_claim.HELD_S - 1
    os.utime(paths.upgrade_claim, (before, before))


def test_a_try_returns_the_versions_and_changes_nothing(paths):
    before = paths.database.read_bytes()
    request = UpgradeRequest(fleet="home", state_dir=str(paths.root), step="try", token="first")
    argv = (sys.executable, "-P", "-m", "sparkfleet.node_daemon.node_cli", "upgrade")
    done = subprocess.run(argv, input=request.model_dump_json().encode(), stdout=subprocess.PIPE, check=True)
    answer = json.loads(done.stdout)
    assert answer["version"] == __version__
    assert answer["ray"].count(".") == 2
    assert paths.database.read_bytes() == before


async def test_a_release_without_a_module_is_refused_before_anything_ends(paths, monkeypatch):
    monkeypatch.setattr(upgrade_steps, "NEEDED", ("sparkfleet.no_such_module",))
    answer = await step(paths, "try")
    assert "no_such_module" in answer["error"]["what"]
    assert answer["error"]["means"] == "Nothing was changed."


async def test_a_store_that_this_release_does_not_know_is_refused(paths):
    with contextlib.closing(sqlite3.connect(paths.database)) as db:
        db.execute(f"PRAGMA user_version = {len(SCHEMAS) + 1}")
    answer = await step(paths, "try")
    assert "newer sparkfleet" in answer["error"]["what"]


async def test_frozen_processes_continue(paths, ray):
    await step(paths, "begin")
    await step(paths, "freeze")
    assert processes.is_stopped(ray.pid)
    await step(paths, "thaw")
    assert not processes.is_stopped(ray.pid)


async def test_the_end_keeps_the_first_role_and_store(paths, ray, started):
    former = paths.role.read_bytes()
    await step(paths, "begin")
    await step(paths, "freeze")
    await step(paths, "end")
    assert ray.wait(5) != 0
    assert paths.former_role.read_bytes() == former
    store = paths.former_store.read_bytes()
    paths.role.write_text(role(paths, "/new/python").model_dump_json())
    await step(paths, "end")  # of a second try
    assert (paths.former_role.read_bytes(), paths.former_store.read_bytes()) == (former, store)


async def test_the_way_back_starts_the_former_release(paths, started):
    paths.role.write_text(role(paths, sys.executable).model_dump_json())
    await end(paths)
    database = paths.database.read_bytes()
    paths.role.write_text(role(paths, "/new/python").model_dump_json())
    assert await step(paths, "back") == {"outcome": str(paths.outcome)}
    assert [argv[0] for argv in started] == [sys.executable]
    assert Role.model_validate_json(paths.role.read_text()).python == sys.executable
    assert paths.database.read_bytes() == database, "that release reads what was recorded since then"
    assert kept(paths) == []


NEWER = {
    "a schema": (f"PRAGMA user_version = {len(SCHEMAS) + 1}",),
    "a field of a deployment": ("UPDATE deployments SET spec = json_set(spec, '$.news', 1)",),
    "a field of a group": ("UPDATE standings SET standing = json_set(standing, '$.news', 1)",),
}


@pytest.mark.parametrize("statements", NEWER.values(), ids=NEWER)
async def test_a_store_that_the_former_release_refuses_is_put_back_as_it_was(paths, started, statements):
    """With new fields and the same schema it stayed: the former release waited for another store."""
    store = open_store(paths, "home")
    store.groups.set_standing("tiny", 1, 0, Standing(rung=1))
    store.close()
    paths.role.write_text(role(paths, sys.executable).model_dump_json())
    await end(paths)
    with contextlib.closing(sqlite3.connect(paths.database)) as db:
        for one in statements:
            db.execute(one)
        db.commit()
    answer = await step(paths, "back")
    require_known_fields(paths.database)
    found = read_content(paths.database)
    assert (found.schema, found.identity.fleet) == (len(SCHEMAS), "home")
    mark = read_mark(paths)
    assert (mark.id, mark.changes) == (found.identity.id, found.identity.changes)
    (aside,) = paths.backups.glob("set-aside-*/sparkfleet.db")
    assert answer["set_aside"] == str(aside), "the newer one is kept"


async def test_what_was_applied_and_deleted_since_is_named_if_its_store_is_not_used(paths, started):
    await end(paths)  # the former interpreter is gone: nobody knows what it reads
    store = open_store(paths, "home")
    store.deployments.put(deployment("later"), plan("later"), "me")
    store.deployments.remove("tiny")
    store.close()
    assert (await step(paths, "back"))["lost"] == ["later", "tiny"]
    assert set(read_content(paths.database).generations) == {"tiny"}


async def test_a_node_that_never_ran_the_former_release_stays_down(paths, started):
    paths.role.unlink()
    await end(paths)
    assert await step(paths, "back") == {}
    assert started == []


async def test_what_was_kept_is_removed_in_the_end(paths):
    await end(paths)
    await step(paths, "settle")
    assert kept(paths) == []
    assert await step(paths, "settle") == {}


async def test_a_role_and_a_store_that_an_interrupted_upgrade_kept_are_not_the_way_back_of_the_next(
    paths, started, monkeypatch
):
    """Weeks later the fleet came back with the store of that day, and ended what had been applied since."""
    monkeypatch.setattr(upgrade_steps, "NEEDED", ())
    await end(paths)  # and nobody settled it
    long_ago(paths)
    paths.role.write_text(role(paths, "/new/python").model_dump_json())
    store = open_store(paths, "home")
    store.deployments.put(deployment("later"), plan("later"), "me")
    store.close()
    for one in ("try", "begin", "end"):
        assert "error" not in await step(paths, one, "second")
    with contextlib.closing(sqlite3.connect(paths.database)) as db:
        db.execute(f"PRAGMA user_version = {len(SCHEMAS) + 1}")
    await step(paths, "back", "second")
    assert [argv[0] for argv in started] == ["/new/python"]
    assert set(read_content(paths.database).generations) == {"tiny", "later"}


async def test_a_release_that_does_not_know_a_deployments_fields_is_refused_before_anything_ends(paths):
    with contextlib.closing(sqlite3.connect(paths.database)) as db:
        db.execute("UPDATE deployments SET spec = json_set(spec, '$.news', 1)")
        db.commit()
    answer = await step(paths, "try")
    assert "does not know news of deployment tiny" in answer["error"]["what"]


async def test_the_way_back_of_a_node_that_was_lost_before_its_end(paths, started):
    """Others had been ended: this one ended without a role to come back with."""
    await step(paths, "begin")
    await step(paths, "freeze")
    assert await step(paths, "back") == {"outcome": str(paths.outcome)}
    assert [argv[0] for argv in started] == ["/former/python"]


async def test_after_a_command_that_was_killed_frozen_processes_continue(paths, ray, monkeypatch):
    """Without another step Ray stayed stopped on the node until somebody sent SIGCONT."""
    monkeypatch.setattr(thaw_guard.start, "__defaults__", (0.5,))
    await step(paths, "begin")
    await step(paths, "freeze")
    assert processes.is_stopped(ray.pid)
    deadline = time.monotonic() + 30
    while processes.is_stopped(ray.pid):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("last", ["thaw", "end", "back"])
async def test_nothing_guards_what_continues_or_has_ended(paths, ray, started, last):
    await step(paths, "begin")
    await step(paths, "freeze")
    assert len(processes.labelled({thaw_guard.LABEL: paths.label})) == 1
    await step(paths, last)
    assert processes.labelled({thaw_guard.LABEL: paths.label}) == []


async def test_a_second_upgrade_is_refused_while_one_is_under_way(paths, started, monkeypatch):
    """Its `try` removed the first one's way back: `back` ended Ray, and started nothing."""
    monkeypatch.setattr(upgrade_steps, "NEEDED", ())
    await end(paths)
    for one in ("try", "begin"):
        error = (await step(paths, one, "second"))["error"]
        assert error["what"].startswith("first@host is upgrading this fleet already")
    for one in ("freeze", "end", "back"):
        assert "may not change this node any more" in (await step(paths, one, "second"))["error"]["what"]
    assert [await step(paths, one, "second") for one in ("thaw", "settle")] == [{}, {}]
    assert (await step(paths, "back"))["outcome"] == str(paths.outcome)
    assert [argv[0] for argv in started] == ["/former/python"]


async def test_an_upgrade_that_was_taken_for_dead_ends_nothing_of_the_next(paths, ray, started):
    await step(paths, "begin")
    long_ago(paths)
    await step(paths, "begin", "second")
    for one in ("freeze", "end", "back"):
        assert "second@host" in (await step(paths, one))["error"]["what"]
    assert not processes.is_stopped(ray.pid)
    assert (ray.poll(), started, claimed_by(paths)) == (None, [], "second")


async def test_each_step_renews_the_claim(paths):
    await step(paths, "begin")
    long_ago(paths)
    await step(paths, "end")
    assert "error" in await step(paths, "begin", "second")


async def test_a_node_follows_the_head_that_has_begun_another_upgrade(paths):
    """A claim that a lost node has kept of the upgrade before is no obstacle, and its files are no way back."""
    await end(paths)
    assert await step(paths, "begin", "second", granted=True) == {}
    assert (kept(paths), claimed_by(paths)) == ([paths.upgrade_claim.name], "second")


async def test_a_way_back_that_has_ended_is_not_repeated(paths, started):
    await end(paths)
    await step(paths, "back")
    assert "it has ended here" in (await step(paths, "back"))["error"]["what"]
    assert len(started) == 1
