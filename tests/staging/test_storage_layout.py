from __future__ import annotations

import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.checkpoints.io.hub_cache import cached_snapshot
from sparkfleet.staging.agent.scan import LookRequest, work
from sparkfleet.staging.manifest import File, Manifest, StagingItem
from sparkfleet.staging.storage_layout import (
    DirectoryPlace,
    HubPlace,
    check,
    free_bytes,
    hub_directory,
    place_of,
)

COMMIT = "1" * 40


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


CONFIG, WEIGHTS = b'{"model_type": "llama"}', b"w" * 1000
MANIFEST = Manifest(
    kind="hub",
    name="org/name",
    commit=COMMIT,
    files=(
        File(path="config.json", size=len(CONFIG), digest=git_sha1(CONFIG), algorithm="git-sha1"),
        File(path="sub/model.safetensors", size=1000, digest=sha256(WEIGHTS)),
    ),
)


@pytest.fixture
def place(tmp_path):
    """A Hub place with every blob, not yet published."""
    place = HubPlace(tmp_path, "org/name")
    for file, content in zip(MANIFEST.files, (CONFIG, WEIGHTS), strict=True):
        place.final(file).parent.mkdir(parents=True, exist_ok=True)
        place.final(file).write_bytes(content)
    return place


def look(tmp_path, **more):
    return work(LookRequest(cache=str(tmp_path), **more), None)


def test_a_published_model_has_the_hubs_layout(place, tmp_path):
    snapshot = place.publish(MANIFEST, "main")
    folder = tmp_path / "models--org--name"
    assert snapshot == folder / "snapshots" / COMMIT
    assert (folder / "refs" / "main").read_text() == COMMIT
    assert os.readlink(snapshot / "config.json") == f"../../blobs/{git_sha1(CONFIG)}"
    assert os.readlink(snapshot / "sub" / "model.safetensors") == f"../../../blobs/{sha256(WEIGHTS)}"
    assert cached_snapshot("org/name", "main", tmp_path) == snapshot
    place.publish(MANIFEST, "main")  # twice is once


def test_huggingface_hub_finds_a_published_model(place, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    snapshot = place.publish(MANIFEST, "main")
    assert hub.snapshot_download("org/name", cache_dir=tmp_path, local_files_only=True) == str(snapshot)
    (repository,) = hub.scan_cache_dir(tmp_path).repos
    assert (repository.repo_id, repository.nb_files, list(repository.refs)) == ("org/name", 2, ["main"])


def test_a_revision_that_is_the_commit_gets_no_reference(place, tmp_path):
    place.publish(MANIFEST, COMMIT)
    assert not (tmp_path / "models--org--name" / "refs").exists()


def test_a_link_that_leads_elsewhere_is_set_right(place):
    pointer = place.root / "snapshots" / COMMIT / "config.json"
    pointer.parent.mkdir(parents=True)
    pointer.symlink_to("/etc/hostname")
    place.publish(MANIFEST, "main")
    assert pointer.read_bytes() == CONFIG


def test_blobs_without_a_snapshot_are_held_but_not_complete(place, tmp_path):
    (held,) = look(tmp_path, manifests=(MANIFEST,)).manifests
    assert MANIFEST.complete(held.held)
    assert not held.complete
    place.publish(MANIFEST, "main")
    (held,) = look(tmp_path, manifests=(MANIFEST,)).manifests
    assert (held.complete, held.revisions) == (True, ("main",))


def test_files_of_a_recorded_manifest_are_known_before_they_arrive(place, tmp_path):
    place.note(MANIFEST)
    place.final(MANIFEST.files[1]).rename(place.part(MANIFEST.files[1]))
    (held,) = look(tmp_path, everything=True).everything
    assert held.manifest == MANIFEST
    assert (held.complete, held.held_bytes) == (False, 1023)
    assert held.begun == {sha256(WEIGHTS): 1000}


@pytest.mark.parametrize(
    "note", [b"", b"{}", b"\xff\xfe", MANIFEST.model_dump_json().replace("org", "oth").encode()]
)
def test_a_damaged_note_is_worth_nothing(place, tmp_path, note):
    place.publish(MANIFEST, "main")
    place.record(COMMIT).write_bytes(note)
    (held,) = look(tmp_path, wanted=(StagingItem(kind="hub", name="org/name"),)).wanted
    assert held.manifest == MANIFEST  # derived from the links
    assert held.complete


INDEX = b'{"weight_map": {"a": "sub/model.safetensors", "b": "model-2.safetensors"}}'


def test_without_a_recorded_manifest_the_index_shows_missing_files(place, tmp_path):
    snapshot = place.publish(MANIFEST, "main")
    place.record(COMMIT).unlink()
    blob = place.root / "blobs" / git_sha1(INDEX)
    blob.write_bytes(INDEX)
    (snapshot / "model.safetensors.index.json").symlink_to(f"../../blobs/{blob.name}")
    wanted = (StagingItem(kind="hub", name="org/name"),)
    assert not look(tmp_path, wanted=wanted).wanted[0].complete
    other = place.root / "blobs" / sha256(b"2")
    other.write_bytes(b"2")
    (snapshot / "model-2.safetensors").symlink_to(f"../../blobs/{other.name}")
    assert look(tmp_path, wanted=wanted).wanted[0].complete


@pytest.mark.parametrize("index", [b"", b"[]", b'{"weight_map": 1}', b'{"weight_map": {}}', b"\xff"])
def test_an_invalid_index_is_not_complete(place, tmp_path, index):
    snapshot = place.publish(MANIFEST, "main")
    place.record(COMMIT).unlink()
    (place.root / "blobs" / git_sha1(index)).write_bytes(index)
    (snapshot / "model.safetensors.index.json").symlink_to(f"../../blobs/{git_sha1(index)}")
    assert not look(tmp_path, wanted=(StagingItem(kind="hub", name="org/name"),)).wanted[0].complete


def test_a_link_to_nothing_is_a_download_that_was_cut(place, tmp_path):
    snapshot = place.publish(MANIFEST, "main")
    place.record(COMMIT).unlink()
    (snapshot / "model-2.safetensors").symlink_to(f"../../blobs/{'e' * 64}")
    assert not look(tmp_path, wanted=(StagingItem(kind="hub", name="org/name"),)).wanted[0].complete


@pytest.mark.parametrize("commit", ["", "main", "../../..", "1" * 39, "x" * 40])
def test_a_reference_without_a_commit_is_ignored(place, tmp_path, commit):
    place.publish(MANIFEST, "main")
    (place.root / "refs" / "main").write_text(commit)
    (held,) = look(tmp_path, wanted=(StagingItem(kind="hub", name="org/name"),)).wanted
    assert (held.commit, held.complete, held.manifest) == ("", False, None)


def test_an_empty_cache_and_none_at_all(tmp_path):
    assert look(tmp_path / "nowhere", everything=True).everything == ()
    assert look(tmp_path / "nowhere").free_bytes > 0


def test_the_directory_of_the_cache(monkeypatch, tmp_path):
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub_directory() == tmp_path / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", "/models")
    assert str(hub_directory()) == "/models/hub"
    assert str(hub_directory("/other")) == "/other"


def test_a_directory_appears_whole(tmp_path):
    target = tmp_path / "model"
    place = DirectoryPlace(target)
    file = File(path="a/b.json", size=2, digest=sha256(b"{}"))
    place.final(file).parent.mkdir(parents=True)
    place.final(file).write_bytes(b"{}")
    assert not target.exists()
    manifest = Manifest(kind="directory", name=str(target), files=(file,))
    place.publish(manifest, "main")
    assert (target / "a" / "b.json").read_bytes() == b"{}"
    assert place_of("directory", str(target)).root == target


@given(content=st.binary(max_size=5000), flip=st.integers(0, 5000))
def test_any_other_byte_is_noticed(tmp_path_factory, content, flip):
    path = tmp_path_factory.getbasetemp() / "checked"
    files = (
        File(path="x", size=len(content), digest=sha256(content)),
        File(path="x", size=len(content), digest=git_sha1(content), algorithm="git-sha1"),
    )
    path.write_bytes(content)
    assert all(check(path, file) for file in files)
    damaged = bytearray(content or b"x")
    damaged[flip % len(damaged)] ^= 1
    path.write_bytes(damaged)
    assert not any(check(path, file) for file in files)


def test_free_bytes_of_a_missing_path(tmp_path):
    assert free_bytes(tmp_path / "a" / "b" / "c") == pytest.approx(free_bytes(tmp_path), rel=0.05)
