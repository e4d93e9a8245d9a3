"""The copy of the head's store on another node: one file, whole, under the name of the head's own."""

import hashlib
import os

import pytest

from sparkfleet.controlplane.store_safety.copies import copies, take_copy
from sparkfleet.controlplane.store_safety.kept_copy import keep_copy, kept_path, move_to_backups, read_kept
from sparkfleet.errors import ControlError
from sparkfleet.runtime.files.fleet_paths import FleetPaths

NAME = "20261201T003000123456Z-change.db"
LATER = "20261201T004000000000Z-hourly.db"


def keep(paths, name=NAME, content=b"content"):
    keep_copy(paths, name, content, hashlib.sha256(content).hexdigest())


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_only_the_last_one_is_kept_and_only_its_owner_reads_it(paths):
    keep(paths)
    keep(paths, LATER, b"later content")
    assert names(paths.kept_copies) == [LATER]
    assert paths.kept_copies.stat().st_mode & 0o777 == 0o700
    assert (paths.kept_copies / LATER).stat().st_mode & 0o777 == 0o600
    assert (paths.kept_copies / LATER).read_bytes() == b"later content"
    kept = read_kept(paths)
    assert (kept.name, kept.bytes, kept.at) == (LATER, 13, 1796085600.0)
    assert 0 <= kept.since_s < 60


def test_an_older_one_by_its_name_replaces_a_newer_one(paths):
    """The head's clock was set back, or an older copy was put back there: the last one given is the newest."""
    keep(paths, LATER)
    keep(paths, NAME)
    assert names(paths.kept_copies) == [NAME]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a.db", f"../{NAME}", f"/tmp/{NAME}", f"a/{NAME}", f".{NAME}", f"{NAME}\n", f"{NAME}/", NAME[:-3],
     NAME.replace("change", "../../x"), NAME.replace("2026", "٢٠٢٦"), "20261201T003000Z-change.db"],
)  # fmt: skip
def test_anything_but_the_name_of_a_copy_is_refused(paths, name):
    keep(paths)
    with pytest.raises(ControlError, match="is not the name of a copy"):
        keep(paths, name)
    assert names(paths.kept_copies) == [NAME]


def test_one_that_arrives_damaged_is_refused_and_the_former_one_stays(paths):
    keep(paths)
    with pytest.raises(ControlError, match="arrived damaged"):
        keep_copy(paths, LATER, b"contemt", hashlib.sha256(b"content").hexdigest())
    assert names(paths.kept_copies) == [NAME]


def test_one_that_cannot_be_written_leaves_the_former_one(paths, monkeypatch):
    keep(paths)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keep(paths, LATER)
    assert names(paths.kept_copies) == [NAME]


def full(fd):
    raise OSError(28, "No space left on device")


def test_parts_of_one_whose_process_was_killed_are_no_copy_and_go_with_the_next(paths):
    paths.kept_copies.mkdir()
    (paths.kept_copies / f".{NAME}.abcd").write_bytes(b"con")
    assert kept_path(paths) is None
    keep(paths)
    assert names(paths.kept_copies) == [NAME]


def test_of_two_whose_first_was_not_removed_the_last_one_given_counts(paths):
    keep(paths, LATER)
    (paths.kept_copies / NAME).write_bytes(b"given later")
    os.utime(paths.kept_copies / LATER, (1000.0, 1000.0))
    assert kept_path(paths).name == NAME


def test_without_one_there_is_nothing(tmp_path):
    paths = FleetPaths(tmp_path / "no")
    assert (read_kept(paths), kept_path(paths)) == (None, None)
    move_to_backups(paths)
    assert not paths.root.exists()


def test_a_node_that_becomes_the_head_has_it_among_its_own_copies(used):
    """Its owner may have named it the head because the former one is lost: nothing but this copy has the deployments."""
    taken = take_copy(used, "change")
    keep(used, taken.name, taken.read_bytes())
    taken.unlink()
    move_to_backups(used)
    assert not used.kept_copies.exists()
    (copy,) = copies(used)
    assert (copy.name, copy.deployments, copy.trouble) == (taken.name, ("tiny (generation 2)",), "")
