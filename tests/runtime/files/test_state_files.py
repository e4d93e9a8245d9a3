"""Files of the state directory that a node reads only at its next start."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.state_files import spoilt_files, start_bar, stopped_words


@pytest.fixture
def paths(tmp_path):
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    for path in (paths.role, paths.address, paths.run_address):
        path.write_text('{"python": "/usr/bin/python3"}')
    return paths


def test_sound_files_are_not_mentioned(paths):
    assert spoilt_files(paths) == ()


@pytest.mark.parametrize("name", ["engine_secret", "ray_token", "role", "address"])
@pytest.mark.parametrize("content", [None, b"", b"garbage", b"\xff\xfe"])
def test_a_spoilt_file_is_named_with_what_puts_it_right(paths, name, content):
    path = getattr(paths, name)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    (words,) = spoilt_files(paths)
    assert f"{path} cannot be used: " in words
    assert ("`sparkfleet up`" if name in ("role", "address") else "Put the file back") in words


def test_a_directory_that_cannot_be_written_is_named_with_what_puts_it_right(paths, monkeypatch):
    """It was named by nobody: what is open goes on being written."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != paths.root)
    (words,) = spoilt_files(paths)
    assert words.startswith(f"{paths.root} cannot be written: ")
    assert words.endswith(f"`chmod 700 {paths.root}` permits it.")
    found = os.statvfs(paths.root)
    read_only = os.statvfs_result((*found[:8], found.f_flag | os.ST_RDONLY, found.f_namemax))
    monkeypatch.setattr(os, "statvfs", lambda _: read_only)
    (words,) = spoilt_files(paths)
    assert "mounted read-only" in words


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("root", "`sparkfleet up` makes the directory"),
        ("logs", "the next start makes the directory"),
        ("kernels", "the next start makes the directory"),
    ],
)
def test_a_file_in_the_place_of_a_directory_is_named_and_bars_every_start(paths, name, remedy):
    """Its mode was blamed, which was right."""
    path = getattr(paths, name)
    shutil.rmtree(path, ignore_errors=True)
    path.touch()
    (words,) = spoilt_files(paths)
    assert words == start_bar(paths)
    assert words.startswith(f"{path} is no directory: ")
    assert words.endswith(f"Move it away; {remedy}.")


def test_a_directory_that_is_gone_is_named_with_what_makes_it(paths):
    shutil.rmtree(paths.root)
    assert start_bar(paths).endswith("`sparkfleet up` makes it.")


def test_what_only_ray_or_the_node_needs_bars_no_start(paths):
    for path in (paths.ray_token, paths.role, paths.address):
        path.unlink()
    assert len(spoilt_files(paths)) == 3
    assert start_bar(paths) == ""
    paths.engine_secret.unlink()
    assert "Put the file back" in start_bar(paths)


def test_a_directory_of_another_user_is_named_with_both_and_nothing_in_it_is_looked_for(paths, monkeypatch):
    """Its node did not answer any more, and neither `status` nor `doctor` named the reason."""

    def denied(path):
        raise PermissionError(path)

    owner = os.getuid()
    monkeypatch.setattr(os, "access", lambda path, mode: path != paths.root)
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    monkeypatch.setattr(Path, "exists", denied)
    (words,) = spoilt_files(paths)
    assert words.endswith(f"It belongs to user {owner}: `sudo chown -R 4242 {paths.root}` gives it back.")


def test_a_node_that_is_not_the_head_needs_no_addresses(paths):
    paths.address.unlink()
    paths.run_address.unlink()
    assert spoilt_files(paths) == ()


def test_a_stopped_process_is_named_with_the_command_and_one_that_runs_is_not():
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert stopped_words(process.pid, "Ray's raylet", "nothing new starts here") == ()
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        (words,) = stopped_words(process.pid, "Ray's raylet", "nothing new starts here")
        assert words.startswith("Ray's raylet is stopped")
        assert f"`kill -CONT {process.pid}`" in words
    finally:
        process.kill()
        process.wait()
    assert stopped_words(process.pid, "Ray's raylet", "nothing new starts here") == ()
