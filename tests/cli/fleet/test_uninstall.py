"""`uninstall` on this machine, in a home of its own: shown, confirmed, removed; nothing of a fleet that may be up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def run(tmp_path):
    (tmp_path / "inventory.yaml").write_text("fleet: un\nhead: this\nnodes:\n  this: {address: local}\n")
    for place in (".local/state/sparkfleet/un/logs", ".local/share/sparkfleet/env/abc", ".cache/sparkfleet"):
        (tmp_path / place).mkdir(parents=True)
    hidden = ("SPARKFLEET_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    env = {name: value for name, value in os.environ.items() if name not in hidden}

    def run(*args):
        done = subprocess.run(
            [str(Path(sys.executable).parent / "sparkfleet"), "uninstall", *args],
            cwd=tmp_path,
            env={**env, "HOME": str(tmp_path), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_it_shows_first_and_removes_after_agreement(run, tmp_path):
    state, share = tmp_path / ".local/state/sparkfleet/un", tmp_path / ".local/share/sparkfleet"
    code, out, err = run()
    assert code == 1
    assert "needs a confirmation" in err
    assert f"remove  {state} " in out
    assert f"remove  {share} " in out
    assert state.exists()
    assert share.exists()
    code, out, _ = run("--yes")
    assert code == 0
    assert "Removed 2 directories" in out
    assert not state.exists()
    assert not share.exists()
    assert (tmp_path / ".cache/sparkfleet").exists(), "on request only"
    assert "Nothing to remove" in run("--yes")[1]


def test_a_fleet_that_has_not_been_taken_down_is_refused(run, tmp_path):
    role = tmp_path / ".local/state/sparkfleet/un/role.json"
    role.write_text(json.dumps({"python": sys.executable}))
    code, _, err = run("--yes", "--caches")
    assert code == 1
    assert f"{role} exists" in err
    assert "`sparkfleet down`" in err
    assert role.exists()
    assert (tmp_path / ".local/share/sparkfleet/env/abc").exists()
