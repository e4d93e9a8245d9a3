from __future__ import annotations

import hashlib
import os

import pytest

from sparkfleet.staging.agent import hash_tree
from sparkfleet.staging.agent.hash_tree import SealRequest, work
from sparkfleet.staging.agent.protocol import LineReporter
from sparkfleet.staging.errors import StagingError


class Quiet(LineReporter):
    def progress(self, done_bytes, total_bytes, *, now=False):
        pass


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "model"
    (directory / "sub").mkdir(parents=True)
    (directory / "config.json").write_bytes(b"{}")
    (directory / "sub" / "model.safetensors").write_bytes(b"w" * 1000)
    (directory / ".hidden").write_text("x")
    (directory / "model.safetensors.incomplete").write_text("x")
    return directory


def sealed(directory):
    return work(SealRequest(kind="directory", name=str(directory)), Quiet())


def test_every_file_with_its_digest_and_nothing_hidden_or_begun(model):
    manifest = sealed(model)
    assert [(file.path, file.size, file.digest) for file in manifest.files] == [
        ("config.json", 2, hashlib.sha256(b"{}").hexdigest()),
        ("sub/model.safetensors", 1000, hashlib.sha256(b"w" * 1000).hexdigest()),
    ]


def test_the_second_time_nothing_is_read(model, monkeypatch):
    first = sealed(model)
    monkeypatch.setattr(hash_tree.hashlib, "sha256", lambda *content: _only_names(content))
    assert sealed(model) == first


def _only_names(content):
    assert content, "a file was hashed again"
    return hashlib.new("sha256", *content)


def test_a_changed_file_is_read_again_even_of_the_same_size(model):
    before = sealed(model)
    found = (model / "config.json").stat()
    (model / "config.json").write_bytes(b"[]")
    os.utime(model / "config.json", ns=(found.st_atime_ns, found.st_mtime_ns))
    after = sealed(model)
    assert before.files[0].digest != after.files[0].digest
    assert before.files[1] == after.files[1]


@pytest.mark.parametrize("meanwhile", [b"{ }", b"[]"], ids=["longer", "as-long"])
def test_a_file_that_changes_while_it_is_read_is_refused(model, monkeypatch, meanwhile):
    """Even at once after its last change, and by as many bytes: both are of one tick of the kernel's clock."""
    growing = model / "config.json"
    growing.write_bytes(b"{}")

    class Slow:
        def __init__(self):
            self.hash = hashlib.new("sha256")

        def update(self, chunk):
            self.hash.update(chunk)
            if chunk == b"{}":  # the other file's thread changes nothing
                growing.write_bytes(meanwhile)

        def hexdigest(self):
            return self.hash.hexdigest()

    monkeypatch.setattr(
        hash_tree.hashlib, "sha256", lambda *name: hashlib.new("sha256", *name) if name else Slow()
    )
    with pytest.raises(StagingError, match="changed while it was read"):
        sealed(model)


def test_a_file_just_changed_is_read_after_that_tick_and_an_older_one_at_once(model, monkeypatch):
    """A kernel before 6.13 gives two changes of one tick the same time; this machine's may be newer."""
    waits = []
    newest = max(path.stat().st_ctime_ns for path in model.rglob("*"))
    monkeypatch.setattr(hash_tree.time, "sleep", waits.append)
    monkeypatch.setattr(hash_tree.time, "time_ns", lambda: newest)
    sealed(model)
    assert set(waits) == {0.02}
    waits.clear()
    monkeypatch.setattr(hash_tree.time, "time_ns", lambda: newest + 1_000_000_000)
    sealed(model)
    assert waits == []


def test_damaged_notes_are_no_harm(model, tmp_path):
    first = sealed(model)
    (notes,) = (tmp_path / "cache" / "sparkfleet" / "digests").iterdir()
    notes.write_bytes(b"\xff{")
    assert sealed(model) == first


def test_links_within_are_followed_and_directories_that_are_links_are_not(model):
    (model / "tokenizer.json").symlink_to("sub/model.safetensors")
    (model / "loop").symlink_to(model)
    assert [file.path for file in sealed(model).files] == [
        "config.json",
        "sub/model.safetensors",
        "tokenizer.json",
    ]


def test_a_link_that_leads_out_is_refused(model, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"shared")
    (model / "tokenizer.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StagingError, match="leads out") as refused:
        sealed(model)
    assert "Hub id" in refused.value.do


@pytest.mark.parametrize("name", ["a b.json", "a*.json", "ü.json", "a\nb.json"])
def test_a_name_that_rsync_would_read_otherwise_is_refused(model, name):
    (model / name).write_text("{}")
    with pytest.raises(StagingError, match="cannot be staged") as refused:
        sealed(model)
    assert "Rename" in refused.value.do


def test_missing_and_empty_directories(model, tmp_path):
    with pytest.raises(StagingError, match="not a directory"):
        sealed(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StagingError, match="is empty"):
        sealed(tmp_path / "empty")
