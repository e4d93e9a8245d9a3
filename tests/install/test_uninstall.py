"""Files that `uninstall` removes from a node: the real program, in a home of its own."""

import asyncio
import os
import pwd
import shutil
import sys
from pathlib import Path

import pytest

from sparkfleet.install import removal_program
from sparkfleet.install.uninstall import removal
from sparkfleet.remote.local import LocalChannel
from sparkfleet.runtime.files.state_probe import fleet_label, run_directory


@pytest.fixture
def home(tmp_path):
    for place in (
        ".local/state/sparkfleet/mine/logs",
        ".local/share/sparkfleet/env/abc",
        ".cache/sparkfleet/builtin",
    ):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "file").write_bytes(b"x" * 5000)
    (tmp_path / "own.txt").write_text("the owner's")
    return tmp_path


@pytest.fixture
def node(home):
    channel = LocalChannel("a")

    class Node:
        node = "a"

        async def run(self, argv, **more):
            env = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}
            return await channel.run((sys.executable, *argv[1:]), env=env, **more)

    return Node()


@pytest.fixture
def root(home):
    path = home / ".local/state/sparkfleet/mine"
    run_directory(path).mkdir(parents=True, mode=0o700)
    yield path
    shutil.rmtree(run_directory(path), ignore_errors=True)


def files(home):
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


async def test_a_crontab_that_is_not_utf_8_is_read(node, root, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "crontab"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nprintf '# caf\\351\\n@reboot x # sparkfleet {fleet_label(root)}\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    shown = await removal(node, "look", str(root), only_state=False, caches=True)
    assert shown.runs == ("cron starts it after a reboot",)


async def test_looking_changes_nothing_and_removing_takes_what_was_shown(node, home, root):
    before = files(home)
    shown = await removal(node, "look", str(root), only_state=False, caches=True)
    assert files(home) == before
    assert all(size >= 4096 for _, size in shown.found)
    removed = await removal(node, "remove", str(root), only_state=False, caches=True)
    assert removed == shown
    assert {path for path, _ in removed.found} == {
        str(root), str(run_directory(root)), str(home / ".local/share/sparkfleet"), str(home / ".cache/sparkfleet"),
    }  # fmt: skip
    assert files(home) == ["own.txt"]
    assert not root.parent.exists()
    assert not run_directory(root).exists()
    again = await removal(node, "remove", str(root), only_state=False, caches=True)
    assert again.found == ()


async def test_caches_stay_unless_they_are_requested(node, home, root):
    await removal(node, "remove", str(root), only_state=False, caches=False)
    assert files(home) == [".cache/sparkfleet/builtin/file", "own.txt"]


async def test_a_machine_that_is_no_node_keeps_all_but_the_state(node, home, root):
    await removal(node, "remove", str(root), only_state=True, caches=True)
    assert files(home) == [
        ".cache/sparkfleet/builtin/file",
        ".local/share/sparkfleet/env/abc/file",
        "own.txt",
    ]


async def test_what_another_fleet_uses_stays(node, home, root):
    other = root.parent / "other"
    other.mkdir()
    done = await removal(node, "remove", str(root), only_state=False, caches=True)
    assert "used by fleet other" in done.kept[0]
    assert not root.exists()
    assert other.exists()
    assert (home / ".local/share/sparkfleet/env/abc/file").exists()


@pytest.mark.parametrize("role", ["role.json", "role.ended.json", "head-move.json"])
async def test_a_node_of_a_fleet_that_is_up_is_left_alone(node, home, root, role):
    (root / role).write_text("{}")
    before = files(home)
    done = await removal(node, "remove", str(root), only_state=False, caches=True)
    assert role in done.runs[0]
    assert files(home) == before


async def test_processes_and_a_unit_of_the_fleet_keep_it(node, home, root):
    label = fleet_label(root)
    unit = home / ".config/systemd/user" / f"sparkfleet-{label}.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    env = {**os.environ, "SPARKFLEET_RAY": label}
    process = await asyncio.create_subprocess_exec("sleep", "60", env=env)
    try:
        done = await removal(node, "remove", str(root), only_state=False, caches=True)
    finally:
        process.kill()
        await process.wait()
    assert done.runs == ("its processes run", "systemd starts it after a reboot")
    assert root.exists()


async def test_a_link_is_removed_and_not_what_it_leads_to(node, home, root):
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    cache = home / ".cache/sparkfleet"
    shutil.rmtree(cache)
    Path(cache).symlink_to(elsewhere)
    await removal(node, "remove", str(root), only_state=False, caches=True)
    assert not cache.is_symlink()
    assert (elsewhere / "kept").exists()


def test_files_of_root_and_linger_are_named_and_stay(tmp_path, monkeypatch):
    name = pwd.getpwuid(os.getuid()).pw_name
    (tmp_path / name).touch()
    monkeypatch.setattr(removal_program, "LINGERS", str(tmp_path))
    monkeypatch.setattr(removal_program, "OF_ROOT", (str(tmp_path / name), str(tmp_path / "none")))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    request = {"verb": "remove", "root": str(tmp_path / "fleet"), "label": "mine-0123abcd", "caches": False}
    done = removal_program.main({**request, "only_state": False}, lambda *_: None)
    assert done["of_root"] == [str(tmp_path / name)]
    assert any(reason.startswith(f"linger of {name}: `loginctl disable-linger`") for reason in done["kept"])
    here = removal_program.main({**request, "only_state": True}, lambda *_: None)
    assert (here["of_root"], here["kept"]) == ([], []), "no node: nothing was enabled on it"
