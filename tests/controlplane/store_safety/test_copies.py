"""Copies of the store: made while it is in use, checked, and few."""

import asyncio
import contextlib
import os
import sqlite3

import pytest
from control_values import deployment, plan

from sparkfleet.controlplane.store_safety import copies as module
from sparkfleet.controlplane.store_safety import safekeeping
from sparkfleet.controlplane.store_safety.copies import KEPT, copies, find_copy, starts_in, take_copy
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.controlplane.store_safety.mark import mark_of, read_mark
from sparkfleet.controlplane.store_safety.opening import open_store
from sparkfleet.controlplane.store_safety.safekeeping import Safekeeping
from sparkfleet.errors import ControlError


@pytest.fixture
def store(paths):
    store = open_store(paths, "home")
    yield store
    store.close()


def test_a_copy_of_an_open_store_has_its_last_change_and_is_one_file(paths, store):
    store.deployments.put(deployment(), plan(), "me")
    take_copy(paths, "asked", now=1000.0)
    (copy,) = copies(paths)
    assert (copy.fleet, copy.id, copy.changes) == ("home", store.identity().id, 1)
    assert (copy.deployments, copy.at, copy.occasion, copy.trouble) == (
        ("tiny (generation 1)",),
        1000.0,
        "asked",
        "",
    )
    assert [path.name for path in paths.backups.iterdir()] == [copy.name]
    assert (paths.backups / copy.name).stat().st_mode & 0o777 == 0o600


def test_the_last_seven_of_each_occasion_are_kept(paths, store):
    for at in range(KEPT + 3):
        take_copy(paths, "change", now=1000.0 + at)
    take_copy(paths, "hourly", now=1.0)
    found = copies(paths)
    assert [copy.at for copy in found] == [*(1000.0 + at for at in range(KEPT + 2, 2, -1)), 1.0]


def test_a_damaged_store_gives_no_copy(paths, store):
    store.deployments.put(deployment(), plan(), "me")
    store.close()
    with paths.database.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(4096 * b"\xee")
    with pytest.raises(StoreError):
        take_copy(paths, "change")
    assert list(paths.backups.iterdir()) == []


def test_a_damaged_copy_is_listed_as_such_and_is_not_the_latest(paths, store):
    sound = take_copy(paths, "change", now=1000.0)
    take_copy(paths, "change", now=1001.0).write_bytes(b"garbage" * 1000)
    newest, _ = copies(paths)
    assert "cannot be used" in newest.trouble
    assert find_copy(paths, "latest") == sound
    with pytest.raises(StoreError, match='no copy "other"') as caught:
        find_copy(paths, "other")
    assert sound.name in caught.value.do


def test_a_copy_with_fields_of_a_newer_release_is_not_the_latest(paths, store):
    store.deployments.put(deployment(), plan(), "me")
    sound = take_copy(paths, "change", now=1000.0)
    newer = take_copy(paths, "change", now=1001.0)
    with contextlib.closing(sqlite3.connect(newer)) as db:
        db.execute("UPDATE deployments SET spec = json_set(spec, '$.news', 1)")
        db.commit()
    assert "does not know news" in copies(paths)[0].trouble
    assert find_copy(paths, "latest") == sound


def test_a_copy_that_is_dropped_while_they_are_listed_is_left_out(paths, store, monkeypatch):
    """The controller drops old copies; the list failed."""
    older = take_copy(paths, "change", now=1000.0)
    newer = take_copy(paths, "change", now=1001.0)
    described = module.described

    def drops(path):
        older.unlink(missing_ok=True)
        return described(path)

    monkeypatch.setattr(module, "described", drops)
    assert [one.name for one in copies(paths)] == [newer.name]
    assert find_copy(paths, "latest") == newer


async def test_each_change_is_copied_once_and_an_hour_without_any_too(paths, store, clock):
    warned = []
    keeping = Safekeeping(paths, store, warned.append, clock)
    await keeping.look()  # the first sight of the store
    await keeping.look()
    assert {copy.occasion for copy in copies(paths)} == {"change", "hourly"}
    store.deployments.put(deployment(), plan(), "me")
    clock.now += 10
    for _ in range(3):
        await keeping.look()
    assert copies(paths)[0].changes == 1
    assert len(copies(paths)) == 3
    clock.now += module.HOURLY_S
    for _ in range(3):
        await keeping.look()
    assert len(copies(paths)) == 4
    assert copies(paths)[0].occasion == "hourly"
    again = Safekeeping(paths, store, warned.append, clock)
    await again.look()
    assert len(copies(paths)) == 4, "a controller that starts again copies nothing that is copied"
    assert set(warned) == {""}


async def test_a_start_is_copied_with_its_begin_and_its_end_in_place_of_the_copy_of_its_change(
    paths, store, clock
):
    """A new head took the start for one that the lost head had not survived, and held its group back."""
    keeping = Safekeeping(paths, store, lambda words: None, clock)

    async def newest():
        clock.now += 1
        for _ in range(3):
            await keeping.look()
        found = [copy for copy in copies(paths) if copy.occasion == "change"]
        return len(found), starts_in(paths.backups / found[0].name)

    store.deployments.put(deployment(), plan(), "me")
    assert await newest() == (1, set())
    group = ("tiny", 1, 0)
    store.groups.begin_start(group, {"this": "boot"})
    assert await newest() == (1, {group})
    keeping = Safekeeping(paths, store, lambda words: None, clock)
    assert await newest() == (1, {group})
    store.groups.end_start(group)
    assert await newest() == (1, set())
    before = {copy.name for copy in copies(paths)}
    keeping = Safekeeping(paths, store, lambda words: None, clock)
    assert await newest() == (1, set())
    assert {copy.name for copy in copies(paths)} == before


@pytest.mark.parametrize("harm", ["away", "garbage", "directory"])
@pytest.mark.parametrize("file", ["store_mark", "run_store_mark"])
async def test_a_mark_that_goes_away_is_written_again_before_the_next_change(paths, store, file, harm):
    """Without both files a store that goes away next was taken for one that had never existed."""
    keeping, path = Safekeeping(paths, store, lambda words: None), getattr(paths, file)
    match harm:
        case "away":
            path.unlink()
        case "garbage":
            path.write_text("garbage")
        case _:
            path.unlink()
            (path / "full").mkdir(parents=True)
            await keeping.look()  # it cannot be written
            (path / "full").rmdir()
    await keeping.look()
    assert read_mark(paths) == mark_of(store)
    assert path.read_bytes() == mark_of(store).for_disk().encode()


async def test_a_copy_that_cannot_be_made_is_a_warning(paths, store, clock, monkeypatch):
    warned = []
    keeping = Safekeeping(paths, store, warned.append, clock)
    paths.backups.write_text("in the way")
    await keeping.look()
    assert "could not be copied" in warned[-1]
    paths.backups.unlink()
    keeping._wait_until = 0.0
    await keeping.look()
    assert warned[-1] == ""


async def test_a_store_that_could_not_be_read_for_a_moment_is_copied_again(paths, store, clock, monkeypatch):
    """The work ended at that moment, without a word, and no copy was made any more."""
    reads = []

    def away():
        reads.append(1)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(safekeeping, "LOOK_S", 0.001)
    keeping = Safekeeping(paths, store, lambda words: None, clock)
    with monkeypatch.context() as patched:
        patched.setattr(store, "identity", away)
        running = asyncio.create_task(keeping.run())
        while len(reads) < 2:
            await asyncio.sleep(0.001)
    async with asyncio.timeout(60):
        while not copies(paths):
            await asyncio.sleep(0.01)
    running.cancel()


def test_a_clock_that_is_set_back_an_hour_loses_no_copy_that_was_just_made(paths, store):
    """By its name it was the oldest of eight, and removed at once."""
    for at in range(KEPT):
        take_copy(paths, "change", now=10_000.0 + at)
    store.deployments.put(deployment(), plan(), "me")
    made = take_copy(paths, "change", now=6400.0)
    assert made.exists()
    assert len(copies(paths)) == KEPT


def test_a_fleet_that_was_never_started_gets_no_advice_about_a_lost_store(paths):
    with pytest.raises(ControlError, match="was never started") as error:
        take_copy(paths, "asked")
    assert "restore" not in error.value.do


def test_a_store_that_is_gone_is_named_with_the_ways_back(paths, store):
    store.close()
    paths.database.unlink()
    with pytest.raises(StoreError, match="There is no store") as error:
        take_copy(paths, "asked")
    assert "sparkfleet restore" in error.value.do


def test_after_a_clock_that_was_ahead_the_latest_copy_has_the_last_change(paths, store):
    """`restore latest` put the empty store of two hours ahead in place, and it was never dropped."""
    ahead = take_copy(paths, "change", now=10_000.0)
    for at in range(KEPT):
        store.deployments.put(deployment(), plan(concurrency=at + 1), "me")
        made = take_copy(paths, "change", now=2800.0 + at)
    assert find_copy(paths, "latest") == made
    assert not ahead.exists()
    assert [copy.changes for copy in copies(paths)] == list(range(KEPT, 0, -1))


def test_parts_of_copies_whose_controller_was_killed_are_removed_at_the_next_start(paths, store, clock):
    """They stayed for ever, with their journals."""
    kept = take_copy(paths, "change", now=1000.0)
    names = (".20261128T000000000000Z-change.db", ".20261128T000000000000Z-change.db-journal")
    asked, old = ".20261128T000000000000Z-asked.db", ".reading-20261127T000000000000Z-asked.db"
    for name in (*names, asked, old):
        (paths.backups / name).touch()
    os.utime(paths.backups / old, (1000.0, 1000.0))
    Safekeeping(paths, store, lambda words: None, clock)
    left = {path.name for path in paths.backups.iterdir()}
    assert left == {kept.name, asked}, "`sparkfleet backup` may be writing that one"
