"""Completion in a shell, through the shell's own protocol."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparkfleet.cli import completion, completion_table
from sparkfleet.fleet import known_names as module
from sparkfleet.fleet.known_names import known_names, remember_names
from sparkfleet.runtime.files.state_probe import state_root

BIN = Path(sys.executable).parent
INVENTORY = "fleet: home\nhead: spark1\nnodes:\n  spark1: {address: local}\n  spark2: {address: 10.0.0.2}\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with an inventory, and names that a verb has left."""
    monkeypatch.chdir(tmp_path)
    Path("inventory.yaml").write_text(INVENTORY)
    remember_names("home", deployments=["qwen", "gpt-oss"], keys=["ci", "open-webui"])
    return tmp_path


@pytest.fixture
def offered(monkeypatch, sparkfleet):
    """offered(words, incomplete): completions of bash after `sparkfleet WORDS`."""

    def offered(words, incomplete="", **more):
        typed = shlex.join(["sparkfleet", *words, *([incomplete] if incomplete else [])])
        told = {
            "_SPARKFLEET_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(words) + 1),
        }
        with monkeypatch.context() as shell:
            for name, value in {**told, **more}.items():
                shell.setenv(name, value)
            # click derives the variable's name from the program's: that of a console script.
            shell.setattr(sys.modules["__main__"], "__package__", None, raising=False)
            code, out, err = sparkfleet()
        assert (code, err) == (0, "")
        return out.split()

    return offered


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        ([], "und", ["undrain"]),
        (["ps"], "--w", ["--watch"]),
        (["logs"], "--f", ["--follow"]),
        (["keys", "create"], "--exp", ["--expires"]),
        (["describe"], "", ["gpt-oss", "qwen"]),
        (["logs", "--tail", "5"], "q", ["qwen"]),
        (["drain"], "", ["spark1", "spark2"]),
        (["doctor", "spark1"], "", ["spark2"]),
        (["keys", "revoke"], "o", ["open-webui"]),
        (["explain"], "nv-err-no", ["nv-err-no-memory-wedge"]),
        (["help"], "undr", ["undrain"]),
        (["describe", "-i", "other.yaml"], "", []),
    ],
)
def test_what_bash_is_offered(here, offered, words, incomplete, expected):
    assert offered(words, incomplete) == expected


def test_the_inventory_may_be_elsewhere(here, offered, tmp_path):
    (tmp_path / "inventory.yaml").rename(tmp_path / "away.yaml")
    assert offered(["drain"]) == []
    assert offered(["drain", "-i", "away.yaml"]) == ["spark1", "spark2"]
    assert offered(["drain"], SPARKFLEET_INVENTORY="away.yaml") == ["spark1", "spark2"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_install_completion_makes_a_script_with_which_bash_completes(here, tmp_path):
    home = {**os.environ, "HOME": str(tmp_path), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def bash(script):
        done = subprocess.run(
            ["bash", "--norc", "-c", script], env=home, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    bash("sparkfleet --install-completion; true")
    assert "sparkfleet" in (tmp_path / ".bashrc").read_text()
    typed = "COMP_WORDS=(sparkfleet describe qw); COMP_CWORD=2; _sparkfleet_completion sparkfleet"
    # With its name as bash passes it: `$1` is the program.
    assert bash(f'. "$HOME/.bashrc"; {typed}; echo "${{COMPREPLY[@]}}"').split() == ["qwen"]


def test_completion_loads_no_verb_and_connects_to_nothing(here):
    code = (
        "import sys, socket\n"
        "def no(*_): raise AssertionError('a connection')\n"
        "socket.socket.connect = no\n"
        "from sparkfleet.cli.main import main\n"
        "sys.argv = ['sparkfleet']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(' '.join(sys.modules), file=sys.stderr)"
    )
    typed = {"_SPARKFLEET_COMPLETE": "complete_bash", "COMP_WORDS": "sparkfleet drain ", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **typed}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["spark1", "spark2"]
    loaded = set(done.stderr.split())
    assert not loaded & {
        "sparkfleet.cli.fleet.drain",
        "sparkfleet.fleet.session",
        "asyncio",
        "rich.console",
    }


def test_the_file_is_that_of_the_verbs():
    current = completion_table.text()
    assert json.loads(current) == completion_table.table()
    assert completion.FILE.read_text() == current, "Run: python -m sparkfleet.cli.completion_table"


def test_a_verb_that_the_file_lacks_is_loaded(monkeypatch, tmp_path):
    (tmp_path / "none.json").write_text('{"verbs": {}, "rules": []}')
    monkeypatch.setattr(completion, "FILE", tmp_path / "none.json")
    assert completion.stub("status") is None


def test_names_are_kept_for_this_user_only(here):
    path = state_root("home") / "names.json"
    assert path.stat().st_mode & 0o777 == 0o600
    remember_names("home", deployments=["new"])
    assert known_names("deployments", Path("inventory.yaml")) == ["new"]
    assert known_names("keys", Path("inventory.yaml")) == ["ci", "open-webui"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "fleet: ../x\nnodes: {}",
        "nodes: 5\nfleet: home",
        "- a",
        "fleet: home\nnodes: !!python/name:os.system",
    ],
)
def test_an_inventory_that_is_none_completes_nothing(here, offered, text):
    Path("inventory.yaml").write_text(text)
    assert known_names("nodes", Path("inventory.yaml")) == []
    assert offered(["drain"]) == []


def test_names_that_a_shell_would_run_are_not_offered(here):
    remember_names("home", deployments=["$(reboot)", "a b", "-rf", "ok"])
    assert known_names("deployments", Path("inventory.yaml")) == ["ok"]
    (state_root("home") / "names.json").write_text('{"keys": ["`id`", "fine", 5]}')
    assert known_names("keys", Path("inventory.yaml")) == []
    (state_root("home") / "names.json").write_text('{"keys": ["`id`", "fine"]}')
    assert known_names("keys", Path("inventory.yaml")) == ["fine"]


def test_a_disk_that_takes_nothing_is_no_error(here, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_atomically", full)
    remember_names("home", keys=["x"])
    assert known_names("keys", Path("inventory.yaml")) == ["ci", "open-webui"]
