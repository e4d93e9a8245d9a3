"""A store that is missing, unreadable, foreign, old or of a newer release is not used, and not taken for an empty one."""

import contextlib
import json
import shutil
import sqlite3

import pytest
from control_values import deployment, plan

from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.controlplane.state.schema import IDENTITY_SINCE, SCHEMAS
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.store_safety import opening
from sparkfleet.controlplane.store_safety.guard import StoreError, StoreFault
from sparkfleet.controlplane.store_safety.mark import read_mark
from sparkfleet.controlplane.store_safety.opening import open_store
from sparkfleet.gateway.access.keys import generate
from sparkfleet.runtime.files.fleet_paths import FleetPaths


def refused(paths, running=(), known=None):
    """The reason for not opening it."""
    with pytest.raises(StoreError) as caught:
        open_store(paths, "home", running, known).close()
    assert str(paths.database) in caught.value.what
    assert caught.value.do
    return caught.value


def test_a_new_fleet_gets_a_store_and_a_mark(paths):
    store = open_store(paths, "home")
    mark = read_mark(paths)
    assert (mark.id, mark.fleet, mark.changes) == (store.identity().id, "home", 0)
    store.close()


def test_the_mark_follows_each_change_and_the_store_opens_again(used):
    mark = read_mark(used)
    assert (mark.changes, mark.generations) == (2, {"tiny": 2})
    store = open_store(used, "home", [("tiny", 2)])
    assert store.deployments.desired()["tiny"].generation == 2
    store.keys.add(generate("laptop")[1])
    assert read_mark(used).changes == 3
    store.close()


@pytest.mark.parametrize("empty", [False, True])
def test_a_missing_one_is_not_made_again(used, empty):
    used.database.unlink()
    if empty:
        used.database.touch()
    assert refused(used).fault is StoreFault.MISSING
    assert not used.database.exists() or used.database.stat().st_size == 0


@pytest.mark.parametrize("mark", ["store_mark", "run_store_mark"])
def test_one_of_the_two_marks_is_enough(used, mark):
    used.database.unlink()
    getattr(used, mark).unlink()
    assert refused(used).fault is StoreFault.MISSING


def test_a_mark_that_cannot_be_read_is_a_sign_of_a_store(used):
    used.database.unlink()
    used.run_store_mark.unlink()
    used.store_mark.write_bytes(b"garbage")
    assert refused(used).fault is StoreFault.MISSING


def test_a_mark_that_cannot_be_read_does_not_keep_the_store_from_being_used(used):
    used.run_store_mark.unlink()
    used.store_mark.write_bytes(b"garbage")
    open_store(used, "home").close()
    assert read_mark(used).changes == 2


def test_without_any_mark_what_runs_is_a_sign_of_a_store(paths):
    error = refused(paths, [("tiny", 3)])
    assert error.fault is StoreFault.MISSING
    assert "tiny (generation 3)" in error.what


def test_the_mark_that_a_process_remembers_counts(used):
    mark = read_mark(used)
    for path in (used.database, used.store_mark, used.run_store_mark):
        path.unlink()
    assert refused(used, known=mark).fault is StoreFault.MISSING


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\0" + 5000 * b"\xff"])
def test_garbage_is_named_and_left_as_it_is(used, content):
    for path in used.root.glob("sparkfleet.db*"):
        path.unlink()
    used.database.write_bytes(content)
    assert refused(used).fault is StoreFault.UNREADABLE
    assert used.database.read_bytes() == content


def test_a_page_in_the_middle_that_is_damaged_is_found(used):
    with used.database.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(4096 * b"\xee")
    assert refused(used).fault is StoreFault.UNREADABLE


def left_by_a_killed_process(used, tmp_path):
    """The files of a store with a change and an event that its process did not close."""
    paths = FleetPaths(tmp_path / "killed")
    paths.create()
    store = open_store(used, "home")
    store.keys.add(generate("laptop")[1])
    store.events.record("tiny", 2, "", "deploy", "x")
    for file in used.root.glob("*"):
        if file.is_file():
            shutil.copy(file, paths.root)
    store.close()
    return paths


def test_looking_at_a_damaged_one_leaves_its_log_as_it_is(used, tmp_path):
    """SQLite would write the log into the damaged file and delete it; without it the right file is an older one."""
    paths = left_by_a_killed_process(used, tmp_path)
    log = paths.database.with_name(f"{paths.database.name}-wal")
    before, right = log.read_bytes(), paths.database.read_bytes()
    assert before
    for content in (b"garbage", right[: len(right) // 2]):
        paths.database.write_bytes(content)
        assert refused(paths).fault is StoreFault.UNREADABLE
        assert log.read_bytes() == before
    paths.database.write_bytes(right)
    store = open_store(paths, "home")
    assert [event.message for event in store.events.read(deployment="tiny")][-1] == "x"
    store.close()


def test_each_change_is_in_the_file_itself(used, tmp_path):
    """A file that comes back without its log, which somebody's SQLite deleted, is no older copy."""
    paths = left_by_a_killed_process(used, tmp_path)
    paths.database.with_name(f"{paths.database.name}-wal").unlink()
    store = open_store(paths, "home")
    assert store.keys.named("laptop") is not None
    store.close()


def test_a_directory_in_its_place(used):
    used.database.unlink()
    used.database.mkdir()
    assert refused(used).fault is StoreFault.UNREADABLE


@pytest.mark.parametrize(
    ("free", "may", "words", "remedy"),
    [(0, True, "its disk is full", "Free space"), (1 << 40, False, "may not read and write it", "ls -l")],
)
def test_the_reason_is_named_if_sqlite_only_reports_that_it_cannot_open(
    used, monkeypatch, free, may, words, remedy
):
    class Usage:
        pass

    def connect(*_, **__):
        raise sqlite3.OperationalError("unable to open database file")

    Usage.free = free
    monkeypatch.setattr(opening.shutil, "disk_usage", lambda _: Usage)
    monkeypatch.setattr(opening.os, "access", lambda *_: may)
    monkeypatch.setattr(opening.sqlite3, "connect", connect)
    error = refused(used)
    assert words in error.what
    assert remedy in error.do


def test_one_of_another_fleet(used, tmp_path):
    other = FleetPaths(tmp_path / "other")
    other.create()
    open_store(other, "other").close()
    used.database.write_bytes(other.database.read_bytes())
    error = refused(used)
    assert (error.fault, "belongs to fleet other" in error.what) == (StoreFault.FOREIGN, True)


def test_another_one_of_the_same_fleet(used):
    used.database.unlink()
    Store(used.database).close()
    assert refused(used).fault is StoreFault.FOREIGN


def test_an_older_copy(used):
    before = used.database.read_bytes()
    store = open_store(used, "home")
    store.deployments.remove("tiny")
    store.close()
    used.database.write_bytes(before)
    error = refused(used)
    assert (error.fault, "it has 2 of 3 changes" in error.what) == (StoreFault.OLDER, True)


def test_one_that_is_older_than_what_runs(used):
    error = refused(used, [("tiny", 3)])
    assert (error.fault, "generation 3 of tiny runs, its newest is 2" in error.what) == (
        StoreFault.OLDER,
        True,
    )


def test_what_runs_of_a_deleted_deployment_is_no_reason(used):
    store = open_store(used, "home")
    store.deployments.remove("tiny")
    store.close()
    open_store(used, "home", [("tiny", 2), ("tiny", 1)]).close()


def test_one_of_a_newer_release_names_what_to_do_and_is_not_changed(used):
    db = sqlite3.connect(used.database)
    db.execute(f"PRAGMA user_version = {len(SCHEMAS) + 1}")
    db.close()
    before = used.database.read_bytes()
    error = refused(used)
    assert error.fault is StoreFault.NEWER_RELEASE
    assert f"its schema is {len(SCHEMAS) + 1}" in error.what
    assert "newer release" in error.do
    assert used.database.read_bytes() == before


def older(paths, schema):
    """A store as an older release left it."""
    db = sqlite3.connect(paths.database)
    for statement in ";".join(SCHEMAS[:schema]).split(";"):
        db.execute(statement)
    db.execute("INSERT INTO generations VALUES ('tiny', 4)")
    db.execute(f"PRAGMA user_version = {schema}")
    db.commit()
    db.close()


class FullDisk(sqlite3.Connection):
    """A database whose copy fills the disk."""

    def backup(self, target):
        target.execute("CREATE TABLE half (one TEXT)")
        raise sqlite3.OperationalError("database or disk is full")


def test_a_copy_before_a_migration_that_a_full_disk_ended_is_made_again(paths, monkeypatch):
    """The file of the first attempt counted as the copy, and the store was migrated without one."""
    older(paths, 4)
    real = sqlite3.connect
    with monkeypatch.context() as patched:
        patched.setattr(
            opening.sqlite3, "connect", lambda *args, **more: real(*args, **more, factory=FullDisk)
        )
        assert refused(paths).fault is StoreFault.UNREADABLE
    open_store(paths, "home").close()
    (copy,) = paths.backups.glob("before-schema-*.db")
    with contextlib.closing(sqlite3.connect(copy)) as db:
        assert db.execute("SELECT name, last FROM generations").fetchall() == [("tiny", 4)]
    assert list(paths.backups.iterdir()) == [copy]


@pytest.mark.parametrize("schema", [4, IDENTITY_SINCE - 1])
def test_one_of_an_older_release_is_copied_and_taken_over(paths, schema):
    older(paths, schema)
    store = open_store(paths, "home", [("tiny", 4)])
    assert (store.identity().fleet, store.deployments.generations()) == ("home", {"tiny": 4})
    store.close()
    (copy,) = paths.backups.glob("before-schema-*.db")
    with contextlib.closing(sqlite3.connect(copy)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (schema,)


def test_a_second_migration_is_copied_as_it_is_then(paths):
    """Of a release that was taken back and weeks later installed again, the copy was that of the first time."""
    older(paths, 11)
    open_store(paths, "home").close()
    (copy,) = paths.backups.glob("before-schema-*.db")
    copy_of = copy.read_bytes()
    for path in paths.root.glob(f"{paths.database.name}*"):
        path.unlink()
    paths.database.write_bytes(copy_of)
    with contextlib.closing(sqlite3.connect(paths.database)) as db:
        db.execute("INSERT INTO generations VALUES ('later', 1)")
        db.commit()
    open_store(paths, "home").close()
    with contextlib.closing(sqlite3.connect(copy)) as db:
        assert ("later", 1) in db.execute("SELECT name, last FROM generations").fetchall()


def test_a_mark_that_cannot_be_written_keeps_nothing_from_being_stored(used, monkeypatch):
    store = open_store(used, "home")
    monkeypatch.setattr(
        "sparkfleet.controlplane.store_safety.mark.write_atomically",
        lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    assert store.deployments.put(deployment(), plan(concurrency=2), "me")[1]
    monkeypatch.undo()
    store.close()
    open_store(used, "home").close()
    assert read_mark(used).changes == 3


def test_a_mark_that_cannot_be_written_in_the_state_directory_is_written_in_the_other_one(used):
    """Both stayed behind the store, so that an older copy in its place would have been taken for it."""
    store = open_store(used, "home")
    used.store_mark.unlink()
    (used.store_mark / "inside").mkdir(parents=True)
    assert store.deployments.put(deployment(), plan(concurrency=2), "me")[1]
    changes = store.identity().changes
    store.close()
    assert read_mark(used).changes == changes


@pytest.mark.parametrize(
    ("table", "column", "more", "words"),
    [
        ("deployments", "spec", {"news": 1}, "does not know news of deployment tiny"),
        ("deployments", "spec", {"objective": "beauty"}, "does not know objective of deployment tiny"),
        (
            "deployments",
            "plan",
            {"later": True, "later2": 1},
            "does not know later, later2 of deployment tiny",
        ),
        ("standings", "standing", {"mood": "good"}, "does not know mood of deployment tiny"),
    ],
)
def test_a_field_of_a_newer_release_is_named_and_the_store_is_not_changed(used, table, column, more, words):
    store = open_store(used, "home")
    store.groups.set_standing("tiny", 2, 0, Standing(tries=1))
    store.close()
    with contextlib.closing(sqlite3.connect(used.database)) as db:
        (text,) = db.execute(f"SELECT {column} FROM {table}").fetchone()
        db.execute(f"UPDATE {table} SET {column} = ?", (json.dumps({**json.loads(text), **more}),))
        db.commit()
    before = used.database.read_bytes()
    error = refused(used)
    assert error.fault is StoreFault.NEWER_RELEASE
    assert words in error.what
    assert "newer release" in error.do
    assert "Nothing is started, ended or changed" in error.means
    assert used.database.read_bytes() == before


def test_a_generation_of_a_newer_release_in_the_history_is_left_out_and_kept(used):
    with contextlib.closing(sqlite3.connect(used.database)) as db:
        db.execute("UPDATE history SET spec = json_set(spec, '$.news', 1) WHERE generation = 1")
        db.commit()
    store = open_store(used, "home")
    assert [one.generation for one in store.deployments.history("tiny")] == [2]
    assert store.deployments.desired()["tiny"].generation == 2
    store.close()
    with contextlib.closing(sqlite3.connect(used.database)) as db:
        assert db.execute("SELECT count(*) FROM history").fetchone() == (2,)
