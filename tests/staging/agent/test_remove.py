from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkfleet.errors import FactError
from sparkfleet.staging.agent import scan
from sparkfleet.staging.agent.protocol import LineReporter
from sparkfleet.staging.agent.remove import RemoveRequest, work
from sparkfleet.staging.agent.scan import LookRequest
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.locks import try_lock
from sparkfleet.staging.manifest import File, Manifest
from sparkfleet.staging.storage_layout import DirectoryPlace, HubPlace

OLD, NEW = "1" * 40, "2" * 40
SHARED = File(path="tokenizer.json", size=1, digest="a" * 64)
FIRST = File(path="model.safetensors", size=2, digest="b" * 64)
SECOND = File(path="model.safetensors", size=3, digest="c" * 64)


@pytest.fixture
def place(tmp_path):
    """Two commits of one model that share a file; `main` is the new one."""
    place = HubPlace(tmp_path, "org/name")
    for file in (SHARED, FIRST, SECOND):
        place.final(file).parent.mkdir(parents=True, exist_ok=True)
        place.final(file).write_bytes(b"x" * file.size)
    for commit, file, revision in ((OLD, FIRST, "v1"), (NEW, SECOND, "main")):
        place.publish(Manifest(kind="hub", name="org/name", commit=commit, files=(SHARED, file)), revision)
    return place


def remove(tmp_path, commit, name="org/name"):
    return work(RemoveRequest(name=name, commit=commit, cache=str(tmp_path)), None).freed_bytes


def test_one_commit_goes_and_the_other_stays_loadable(place, tmp_path):
    assert remove(tmp_path, OLD) == 2
    assert {path.name for path in (place.root / "blobs").iterdir()} == {SHARED.digest, SECOND.digest}
    assert [path.name for path in (place.root / "refs").iterdir()] == ["main"]
    assert [path.name for path in (place.root / "snapshots").iterdir()] == [NEW]


def test_with_the_last_commit_everything_goes(place, tmp_path):
    remove(tmp_path, OLD)
    assert remove(tmp_path, NEW) == 4
    assert not place.root.exists()


def test_what_an_interruption_leaves_is_found_and_removed(place, tmp_path, monkeypatch):
    real = Path.unlink

    def killed(path, missing_ok=False):
        if path.parent.name == "blobs":
            raise KeyboardInterrupt
        real(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            remove(tmp_path, OLD)
    found = scan.work(LookRequest(everything=True, cache=str(tmp_path)), LineReporter()).everything
    left = next(one for one in found if one.commit == OLD)
    assert (left.held_bytes, left.revisions) == (SHARED.size + FIRST.size, ())
    assert remove(tmp_path, OLD) == FIRST.size


def test_partial_files_of_another_commit_are_kept(place, tmp_path):
    coming = File(path="model.safetensors", size=9, digest="d" * 64)
    place.note(Manifest(kind="hub", name="org/name", commit="3" * 40, files=(coming,)))
    place.part(coming).write_bytes(b"xyz")
    place.part(coming).with_name("e" * 64 + ".incomplete").write_bytes(b"nobody's")
    assert remove(tmp_path, OLD) == 2 + len(b"nobody's")
    assert place.part(coming).read_bytes() == b"xyz"


def test_a_model_that_is_being_staged_is_not_removed(place, tmp_path):
    handle = try_lock(place.lock)
    try:
        with pytest.raises(StagingError, match="being staged"):
            remove(tmp_path, OLD)
    finally:
        os.close(handle)
    assert remove(tmp_path, OLD) == 2


@pytest.mark.parametrize("commit", ["", "..", "main", "1" * 39, "1" * 40 + "/.."])
def test_a_commit_is_one(place, tmp_path, commit):
    with pytest.raises(StagingError, match="not a commit"):
        remove(tmp_path, commit)


@pytest.mark.parametrize("name", ["../x", "a/b/c", ""])
def test_a_name_is_one(place, tmp_path, name):
    with pytest.raises(FactError):
        remove(tmp_path, OLD, name)


def test_of_a_directory_only_an_interrupted_copy_is_removed(tmp_path):
    files = (File(path="a", size=4, digest="a" * 64),)
    manifest = Manifest(kind="directory", name=str(tmp_path / "m"), files=files)
    place = DirectoryPlace(tmp_path / "m")
    place.beside.mkdir()
    place.part(files[0]).write_bytes(b"xyz")
    request = RemoveRequest(kind="directory", name=manifest.name)
    handle = try_lock(place.lock)
    try:
        with pytest.raises(StagingError, match="being staged"):
            work(request, None)
    finally:
        os.close(handle)
    assert work(request, None).freed_bytes == 3
    assert not place.beside.exists()
    Path(manifest.name).mkdir()
    (tmp_path / "m" / "a").write_bytes(b"mine")
    assert work(request, None).freed_bytes == 0
    assert (tmp_path / "m" / "a").read_bytes() == b"mine"


def listed(tmp_path, commit):
    found = scan.work(LookRequest(everything=True, cache=str(tmp_path)), LineReporter()).everything
    return next(one for one in found if one.commit == commit)


def long_ago(place, commit):
    for path in (place.record(commit), place.root / "snapshots" / commit):
        os.utime(path, (1e9, 1e9))


@pytest.mark.parametrize("is_staged", [True, False])
def test_one_that_was_staged_or_found_for_a_start_since_it_was_listed_stays(place, tmp_path, is_staged):
    """`prune` waited for an answer while `apply` staged it, and removed it under the engine that was about to start."""
    long_ago(place, NEW)
    seen = listed(tmp_path, NEW)
    manifest = Manifest(kind="hub", name="org/name", commit=NEW, files=(SHARED, SECOND))
    if is_staged:
        place.publish(manifest, "main")
    else:
        scan.work(LookRequest(manifests=(manifest,), needed=True, cache=str(tmp_path)), LineReporter())
    request = RemoveRequest(name="org/name", commit=NEW, cache=str(tmp_path), changed_ns=seen.changed_ns)
    assert work(request, None).is_kept
    assert listed(tmp_path, NEW).complete
    again = request.model_copy(update={"changed_ns": listed(tmp_path, NEW).changed_ns})
    assert work(again, None).freed_bytes == SECOND.size


def test_a_look_that_needs_nothing_does_not_count_as_a_use(place, tmp_path):
    long_ago(place, NEW)
    seen = listed(tmp_path, NEW)
    manifest = Manifest(kind="hub", name="org/name", commit=NEW, files=(SHARED, SECOND))
    scan.work(LookRequest(manifests=(manifest,), cache=str(tmp_path)), LineReporter())
    assert listed(tmp_path, NEW).changed_ns == seen.changed_ns > 0
