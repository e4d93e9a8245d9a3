"""A lost store: restored from a copy, made of what runs, or replaced by an empty one on request."""

import contextlib
import sqlite3
from pathlib import Path

import pytest
from control_values import deployment, plan

from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.controlplane.store_safety import restore
from sparkfleet.controlplane.store_safety.applied import applied_in, read_applied, write_applied
from sparkfleet.controlplane.store_safety.copies import take_copy
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.controlplane.store_safety.mark import read_mark
from sparkfleet.controlplane.store_safety.opening import open_store
from sparkfleet.controlplane.store_safety.restore import adopt_running, begin_anew, restore_copy
from sparkfleet.errors import ControlError
from sparkfleet.gateway.access.keys import generate
from sparkfleet.runtime.files.fleet_paths import FleetPaths


def test_a_copy_with_fields_of_a_newer_release_changes_nothing(used):
    copy = take_copy(used, "change", now=1000.0)
    with contextlib.closing(sqlite3.connect(copy)) as db:
        db.execute("UPDATE deployments SET plan = json_set(plan, '$.news', 1)")
        db.commit()
    before = used.database.read_bytes()
    with pytest.raises(StoreError, match="does not know news of deployment tiny"):
        restore_copy(used, "home", copy)
    assert used.database.read_bytes() == before


@pytest.fixture
def lost(used):
    """A store with generation 3 of `tiny` and a key, and a copy of generation 2 without it; the store is gone."""
    used.copy = take_copy(used, "change", now=1000.0)
    store = open_store(used, "home")
    store.deployments.put(deployment(), plan(concurrency=16), "me")
    store.keys.add(generate("laptop")[1])
    store.groups.set_standing("tiny", 3, 0, Standing(rung=0, tries=1))
    write_applied(used, applied_in(store))
    store.close()
    for path in used.root.glob("sparkfleet.db*"):
        path.unlink()
    return used


def opened(paths, running=()):
    store = open_store(paths, "home", running)
    found = applied_in(store), store.deployments.generations()
    store.close()
    return found


def test_a_copy_that_is_put_back_is_used_and_numbers_go_on_above_the_lost_ones(lost):
    done = restore_copy(lost, "home", lost.copy, [("tiny", 3)])
    assert (done.deployments, done.keys, done.set_aside) == (("tiny (generation 2)",), 0, "")
    applied, generations = opened(lost, [("tiny", 3)])
    assert [one.generation for one in applied.deployments] == [2]
    assert generations == {"tiny": 3}
    store = open_store(lost, "home")
    assert store.deployments.put(deployment(), plan(concurrency=32), "me")[0].generation == 4
    store.close()


def test_the_file_that_was_there_is_kept(lost):
    lost.database.write_bytes(b"garbage")
    done = restore_copy(lost, "home", lost.copy)
    assert Path(done.set_aside).read_bytes() == b"garbage"
    opened(lost)


def test_the_lost_store_is_foreign_after_that(used):
    before = used.database.read_bytes()
    restore_copy(used, "home", take_copy(used, "asked"))
    opened(used)
    used.database.write_bytes(before)
    with pytest.raises(StoreError, match="another one"):
        opened(used)


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000])
def test_a_copy_that_is_not_sound_changes_nothing(used, content):
    copy = take_copy(used, "asked")
    copy.write_bytes(content)
    with pytest.raises(StoreError):
        restore_copy(used, "home", copy)
    opened(used)


def test_a_copy_of_another_fleet_is_refused(used, tmp_path):
    other = FleetPaths(tmp_path / "other")
    other.create()
    open_store(other, "other").close()
    with pytest.raises(StoreError, match="is of fleet other"):
        restore_copy(used, "home", take_copy(other, "asked"))


def test_what_runs_is_adopted_with_its_plan_its_position_and_the_keys(lost):
    done = adopt_running(lost, "home", [("tiny", 2), ("tiny", 3)])
    assert done.deployments == ("tiny (generation 3)",)
    applied, _ = opened(lost, [("tiny", 3)])
    assert [key.name for key in applied.keys] == ["laptop"]
    assert applied.deployments[0].spec == deployment()
    assert [one.standing.tries for one in applied.standings if one.generation == 3] == [1]


def test_without_the_record_of_the_run_directory_copies_count(lost):
    lost.applied.unlink()
    assert adopt_running(lost, "home", [("tiny", 2)]).deployments == ("tiny (generation 2)",)
    with pytest.raises(ControlError, match="No record has the running generation of tiny"):
        adopt_running(lost, "home", [("tiny", 3)])


def test_without_any_copy_the_record_of_the_run_directory_is_enough(lost):
    lost.copy.unlink()
    adopt_running(lost, "home", [("tiny", 3)])
    assert [one.generation for one in opened(lost)[0].deployments] == [3]


def test_what_does_not_run_is_not_adopted_and_is_named(lost):
    applied = read_applied(lost)
    second = applied.deployments[0].model_copy(update={"spec": deployment("second")})
    write_applied(lost, applied.model_copy(update={"deployments": (*applied.deployments, second)}))
    done = adopt_running(lost, "home", [("tiny", 3)])
    assert done.left_out == ("second",)


def test_nothing_runs_nothing_is_adopted(lost):
    with pytest.raises(ControlError, match="Nothing runs"):
        adopt_running(lost, "home", [])


def test_beginning_anew_takes_the_name_and_never_gives_a_generation_twice(lost):
    with pytest.raises(ControlError, match="not away"):
        begin_anew(lost, "home", "away")
    assert not lost.database.exists()
    assert begin_anew(lost, "home", "home", [("tiny", 3)], dry=True).deployments == ()
    assert not lost.database.exists()
    begin_anew(lost, "home", "home", [("tiny", 3)])
    applied, generations = opened(lost, [("tiny", 3)])
    assert (applied.deployments, applied.keys, generations) == ((), (), {"tiny": 3})
    assert read_mark(lost).changes > 3


def test_a_copy_that_cannot_be_read_for_want_of_room_is_left_out_of_the_records(lost, monkeypatch):
    """`restore --adopt` ended with a traceback although the run directory had everything."""
    whole = restore.copy_database

    def full(source, target):
        if target.name.startswith(".reading-"):
            raise sqlite3.OperationalError("database or disk is full")
        whole(source, target)

    monkeypatch.setattr(restore, "copy_database", full)
    assert adopt_running(lost, "home", [("tiny", 3)]).deployments == ("tiny (generation 3)",)
    monkeypatch.setattr(restore, "_fill", lambda *_: full(lost.copy, lost.backups / ".reading-x"))
    with pytest.raises(StoreError, match="database or disk is full"):
        adopt_running(lost, "home", [("tiny", 3)])
