"""Copies of other tools, and of directories, as a scan of a node reports them."""

from __future__ import annotations

import os
import shutil

import pytest

from sparkfleet.staging.agent.protocol import LineReporter
from sparkfleet.staging.agent.scan import LookRequest, work
from sparkfleet.staging.locks import try_lock
from sparkfleet.staging.manifest import File, Manifest, StagingItem
from sparkfleet.staging.storage_layout import DirectoryPlace, note_directory

COMMIT = "1" * 40


@pytest.mark.parametrize(
    ("names", "without"),
    [
        (("config.json", "model.safetensors"), True),
        (("config.json", "model.safetensors", "tokenizer.json"), False),
        (("config.json", "model.safetensors", "qwen.tiktoken"), False),
        (("config.json", "consolidated.safetensors", "tekken.json"), False),
        (("config.json", "model.safetensors", "spiece.model"), False),
        (("config.json", "model.safetensors", "vocab.txt"), False),
        (("config.json", "model.gguf"), False),
    ],
)
def test_a_copy_of_another_tool_without_a_tokenizer_is_reported(names, without, tmp_path):
    folder = tmp_path / "models--o--n"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for directory in (folder / "blobs", folder / "refs"):
        directory.mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    for number, name in enumerate(names):
        digest = str(number) * 64
        (folder / "blobs" / digest).write_bytes(b"x" * (number + 1))
        (snapshot / name).symlink_to(f"../../blobs/{digest}")
    request = LookRequest(wanted=(StagingItem.model("o/n"),), cache=str(tmp_path))
    (found,) = work(request, LineReporter()).wanted
    assert (found.complete, found.no_tokenizer) == (True, without)


def listed(tmp_path):
    request = LookRequest(everything=True, cache=str(tmp_path / "hub"))
    return {one.name: one for one in work(request, LineReporter()).everything}


@pytest.fixture
def copy(tmp_path):
    """A directory that is copied here, of which one of two files has arrived."""
    files = (File(path="a", size=4, digest="a" * 64), File(path="b", size=6, digest="b" * 64))
    manifest = Manifest(kind="directory", name=str(tmp_path / "m"), files=files)
    note_directory(manifest, str(tmp_path / "hub"))
    place = DirectoryPlace(tmp_path / "m")
    place.beside.mkdir()
    place.final(files[0]).write_bytes(b"x" * 4)
    place.part(files[1]).write_bytes(b"x")
    return manifest, place


def test_the_interrupted_copy_of_a_directory_is_listed_with_its_bytes(copy, tmp_path):
    manifest, place = copy
    found = listed(tmp_path)[manifest.name]
    assert (found.is_interrupted, found.complete, found.held_bytes) == (True, False, 5)
    assert found.path == str(place.beside)
    lock = try_lock(place.lock)
    assert not listed(tmp_path)[manifest.name].is_interrupted, "it is copied now"
    os.close(lock)


def test_a_directory_that_was_copied_is_listed_until_its_owner_removes_it(copy, tmp_path):
    manifest, place = copy
    place.part(manifest.files[1]).replace(place.final(manifest.files[1]))
    place.final(manifest.files[1]).write_bytes(b"x" * 6)
    place.publish(manifest, "")
    found = listed(tmp_path)[manifest.name]
    assert (found.complete, found.is_interrupted, found.path) == (True, False, manifest.name)
    shutil.rmtree(manifest.name)
    assert listed(tmp_path) == {}
