from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from sparkfleet.remote.atomic_write import make_private, write_atomically


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with path.open("rb") as reader:
        write_atomically(path, b"new", durable=True)
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        write_atomically(path, b"new", durable=True)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"file": b"old"}


def test_missing_directories_are_private_and_existing_ones_left_alone(tmp_path):
    (tmp_path / "there").mkdir(mode=0o755)
    make_private(tmp_path / "there" / "a" / "b")
    modes = [stat.S_IMODE((tmp_path / d).stat().st_mode) for d in ("there", "there/a", "there/a/b")]
    assert modes == [0o755, 0o700, 0o700]


def test_a_very_long_name_can_still_be_replaced(tmp_path):
    path = tmp_path / ("n" * 250)
    write_atomically(path, b"content")
    assert path.read_bytes() == b"content"


def test_a_full_disk_has_the_path(tmp_path, monkeypatch):
    """A write that fails names no file, so the error was `None: No space left on device`."""

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(tmp_path / "token", b"x", durable=True)
    assert caught.value.filename == str(tmp_path / "token")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_directory_in_the_place_of_a_file_is_replaced_and_a_full_one_is_named(tmp_path):
    """Docker makes an empty one for a file that it mounts and that is not there: `up`, which writes it again, ended in a
    traceback."""
    path = tmp_path / "role.json"
    path.mkdir()
    write_atomically(path, b"{}")
    assert path.read_bytes() == b"{}"
    full = tmp_path / "full"
    (full / "inside").mkdir(parents=True)
    with pytest.raises(IsADirectoryError) as caught:
        write_atomically(full, b"{}")
    assert caught.value.filename == str(full)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full", "role.json"]


def test_the_name_is_on_the_disk_as_well_before_the_call_returns(tmp_path, monkeypatch):
    """Of the file alone, a power cut could leave the former one, or none."""
    order, fsync, replace = [], os.fsync, Path.replace

    def synced(fd):
        order.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    def replaced(path, target):
        order.append("named")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    path = tmp_path / "a" / "b" / "file"
    write_atomically(path, b"new", durable=True)
    content = order.pop(2)
    assert content.name.startswith(".file.")
    assert order == [tmp_path, tmp_path / "a", "named", tmp_path / "a" / "b"]


def test_a_file_system_without_that_is_left_to_itself(tmp_path, monkeypatch):
    fsync = os.fsync

    def of_files_only(fd):
        if Path(os.readlink(f"/proc/self/fd/{fd}")).is_dir():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", of_files_only)
    write_atomically(tmp_path / "file", b"new", durable=True)
    assert (tmp_path / "file").read_bytes() == b"new"
