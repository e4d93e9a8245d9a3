"""Environments of earlier versions that are deleted when a new one is made: the real program, in a home of its own."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from sparkfleet.install import environment_program


def name(at):
    """A name that no other test process runs from: a process keeps every environment of its environment's name."""
    return f"e{at}-{os.getpid()}"


@pytest.fixture
def env(tmp_path, monkeypatch):
    """Six environments, `e0` of this process the oldest; no crontab, no unit."""
    home = tmp_path / "sparkfleet/env"
    for at in range(6):
        (home / name(at) / "bin").mkdir(parents=True)
        os.utime(home / name(at), (1000 + at, 1000 + at))
    monkeypatch.setattr(environment_program, "HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with_crontab(tmp_path, monkeypatch, "echo no crontab for me >&2; exit 1")
    return home


def with_crontab(tmp_path, monkeypatch, script):
    program = tmp_path / "bin/crontab"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def left(env):
    environment_program._prune(str(env / name(5)))
    return sorted(path.name.partition("-")[0] for path in env.iterdir())


def test_the_newest_stay(env):
    assert left(env) == ["e3", "e4", "e5"]


def test_one_that_a_process_runs_from_stays(env):
    (env / name(0) / "bin/python").symlink_to("/bin/sleep")
    with subprocess.Popen([str(env / name(0) / "bin/python"), "60"]) as process:
        try:
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
                time.sleep(0.01)  # its arguments follow the end of the exec
            assert left(env) == ["e0", "e3", "e4", "e5"]
        finally:
            process.kill()
    assert left(env) == ["e3", "e4", "e5"], "it has ended"


def test_one_that_cron_starts_after_a_reboot_stays(env, tmp_path, monkeypatch):
    with_crontab(tmp_path, monkeypatch, f"echo '@reboot {env}/{name(1)}/bin/python -m x'")
    assert left(env) == ["e1", "e3", "e4", "e5"]


def test_one_that_systemd_starts_after_a_reboot_stays(env, tmp_path):
    unit = tmp_path / "config/systemd/user/sparkfleet-mine.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(f"[Service]\nExecStart={env}/{name(2)}/bin/python -m x\n")
    assert left(env) == ["e2", "e3", "e4", "e5"]


def test_if_the_crontab_cannot_be_read_nothing_is_deleted(env, tmp_path, monkeypatch):
    with_crontab(tmp_path, monkeypatch, "echo permission denied >&2; exit 1")
    assert left(env) == ["e0", "e1", "e2", "e3", "e4", "e5"]


def test_a_crontab_that_is_not_utf_8_is_read(env, tmp_path, monkeypatch):
    with_crontab(tmp_path, monkeypatch, f"printf '# caf\\351\\n@reboot {env}/{name(1)}/bin/python -m x'")
    assert left(env) == ["e1", "e3", "e4", "e5"]


def test_an_environment_is_on_the_disk_before_it_counts_as_complete(env, tmp_path, monkeypatch):
    synced = []
    complete = env / "new" / "complete"
    monkeypatch.setattr(environment_program, "_build", lambda order, place, *_: os.mkdir(place))
    monkeypatch.setattr(os, "sync", lambda: synced.append(complete.exists()))
    environment_program.make({"name": "new", "pins": ["ray"]}, lambda *_, **__: None)
    assert (synced, complete.read_text()) == ([False], "ray\n")
