"""The controller's process waits for a store that cannot be used, changes nothing meanwhile, and works again at once."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from control_values import deployment, plan
from controller_world import World

from sparkfleet.controlplane import controller_life as module
from sparkfleet.controlplane.controller_life import ControllerLife
from sparkfleet.controlplane.controller_note import NoteWriter, read_note
from sparkfleet.controlplane.store_safety import store_watch
from sparkfleet.controlplane.store_safety.guard import StoreError, StoreFault
from sparkfleet.controlplane.store_safety.opening import open_store
from sparkfleet.controlplane.store_safety.store_watch import StoreWatch
from sparkfleet.runtime.files.fleet_paths import FleetPaths


class Front:
    """The API: what it shows."""

    def __init__(self):
        self.shown = []

    def work(self, controller):
        self.shown.append("works")

    def hold(self, error):
        self.shown.append(error.fault.value)


class Process(World):
    """A life on fakes, with a real store in a real directory."""

    def __init__(self, paths):
        self.paths, self.front, self.stores = paths, Front(), []
        super().__init__(paths.root)
        self.store.close()
        self.life = ControllerLife(
            open_store=lambda running, known: open_store(paths, "home", running, known),
            running=self.apps.list,
            make=self.make,
            work=lambda controller, store: controller.run(),
            front=self.front,
            note=NoteWriter(paths),
        )

    secret_is_away = False

    def make(self, store):
        if self.secret_is_away:
            raise StoreError(StoreFault.SECRET, "The secret engine.secret cannot be used: No such file.")
        self.store = store
        controller = self.restarted()
        controller._check = StoreWatch(
            store, self.paths.database, "home", steady=lambda: next(self.seconds)
        ).check
        return controller

    seconds = iter(range(0, 1_000_000, 10))

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)

    async def works(self):
        await self.until(lambda: self.front.shown[-1:] == ["works"])

    async def waits(self, fault):
        await self.until(lambda: self.front.shown[-1:] == [fault])


@pytest.fixture
async def process(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    process = Process(paths)
    living = asyncio.create_task(process.life.run())
    yield process
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    shutil.rmtree(paths.run)


async def serving(process):
    """`tiny` is applied, and runs."""
    await process.works()
    await process.life.controller.commands.put(deployment(), plan(), "me")
    await process.until(lambda: process.apps.apps)
    process.apps.become("tiny", 1, "running")


def calls(process):
    return list(process.apps.apps)


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda path: path.rename(path.with_name("away")), "missing"),
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(b"garbage" * 2000), "unreadable"),
    ],
)
async def test_a_store_that_goes_away_while_it_works_ends_nothing(process, harm, fault):
    await serving(process)
    before = calls(process)
    process.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # else its log still has all of it
    sound = shutil.copy(process.paths.database, process.paths.root / "sound")
    harm(process.paths.database)
    await process.waits(fault)
    assert process.life.controller is None
    note = read_note(process.paths)
    assert (note.state, note.fault) == ("held", fault)
    assert str(process.paths.database) in note.what
    await process.until(lambda: read_note(process.paths).running == (("tiny", 1),))
    assert calls(process) == before
    for log in ("-wal", "-shm"):
        process.paths.root.joinpath(f"sparkfleet.db{log}").unlink(missing_ok=True)
    Path(sound).replace(process.paths.database)
    await process.works()
    assert calls(process) == before
    events = process.store.events.read()
    assert [event.subject for event in events if event.kind == "store"] == ["controller"]
    assert "it had waited" in next(event.message for event in events if event.kind == "store")
    assert read_note(process.paths).state == "working"


async def test_a_store_that_the_next_controller_could_not_open_is_a_warning(process, monkeypatch):
    await serving(process)
    before = calls(process)
    refused = {process.paths.database}
    real = os.access  # the tests may run as root, who may read everything
    monkeypatch.setattr(os, "access", lambda path, mode: path not in refused and real(path, mode))

    def warnings():
        return process.life.controller.queries.status().warnings

    await process.until(warnings)
    (warning,) = warnings()
    assert f"`chmod 600 {process.paths.database}`" in warning
    refused.clear()
    await process.until(lambda: not warnings())
    assert (process.front.shown[-1], calls(process)) == ("works", before)


async def test_a_full_disk_of_the_head_is_a_warning_before_anything_has_to_be_written(process, monkeypatch):
    await serving(process)
    before = calls(process)
    free = [0]
    monkeypatch.setattr(store_watch, "is_full", lambda path: free[0] == 0)

    def warnings():
        return process.life.controller.queries.status().warnings

    await process.until(warnings)
    assert [one for one in warnings() if "is full: what serves goes on" in one and "`df -h " in one]
    free[0] = 1
    await process.until(lambda: not warnings())
    assert (process.front.shown[-1], calls(process)) == ("works", before)


async def test_a_store_that_is_older_than_what_runs_ends_nothing(process):
    await process.works()
    process.apps.apps.clear()
    await process.life.controller.commands.put(deployment(), plan(), "me")
    await process.until(lambda: process.apps.apps)
    app = next(iter(process.apps.apps.values()))
    key = next(iter(process.apps.apps))
    process.apps.apps[(key[0], 7, key[2])] = app.model_copy(update={"generation": 7})
    before = calls(process)
    await process.waits("older")
    await asyncio.sleep(0.3)
    assert calls(process) == before


async def test_a_store_that_is_put_back_is_used_within_seconds(process):
    await serving(process)
    process.paths.database.rename(process.paths.root / "away")
    await process.waits("missing")
    (process.paths.root / "away").rename(process.paths.database)
    async with asyncio.timeout(5):
        await process.works()
    assert process.store.deployments.desired()["tiny"].generation == 1


async def test_a_store_that_cannot_be_used_from_the_start_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    process = Process(paths)
    sound = process.paths.database.parent / "s.db"
    process.paths.database.write_bytes(b"garbage" * 2000)
    living = asyncio.create_task(process.life.run())
    await process.waits("unreadable")
    paths.database.unlink()
    sound.rename(paths.database)
    await process.works()
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    shutil.rmtree(paths.run)


async def test_a_secret_that_is_away_is_named_and_waited_for(process):
    await serving(process)
    before = calls(process)
    process.secret_is_away = True
    process.paths.database.rename(process.paths.root / "away")  # what makes it look again
    await process.waits("missing")
    (process.paths.root / "away").rename(process.paths.database)
    await process.waits("secret")
    assert "engine.secret" in read_note(process.paths).what
    process.secret_is_away = False
    await process.works()
    assert calls(process) == before
