"""`uninstall` on this machine, in a home of its own: shown, confirmed, removed; nothing of a fleet that may be up."""

import io
import json
import sys
from functools import partial

import pytest

from sparkfleet.cli.fleet.uninstall import root_commands
from sparkfleet.install.removal_program import OF_ROOT


@pytest.fixture
def run(sparkfleet, monkeypatch, tmp_path):
    (tmp_path / "inventory.yaml").write_text("fleet: un\nhead: this\nnodes:\n  this: {address: local}\n")
    for place in (".local/state/sparkfleet/un/logs", ".local/share/sparkfleet/env/abc", ".cache/sparkfleet"):
        (tmp_path / place).mkdir(parents=True)
    for name in ("SPARKFLEET_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)
    return partial(sparkfleet, "uninstall")


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


def test_a_node_that_does_not_answer_is_left_and_named_and_the_others_are_removed(run, tmp_path):
    """It was refused until the node was removed from the inventory, and with it the way to uninstall it later."""
    key = "SHA256:" + "A" * 43
    (tmp_path / "inventory.yaml").write_text(
        "fleet: un\nhead: this\nnodes:\n  this: {address: local}\n"
        f'  dead: {{address: 127.0.0.1, port: 1, user: me, host_key: "{key}"}}\n'
    )
    code, out, err = run()
    assert code == 1
    assert "needs a confirmation" in err
    assert "dead\n  left    " in out
    code, out, err = run("--yes")
    assert code == 1
    assert "Removed 2 directories." in out
    assert "pip uninstall" not in out, "it is needed once more"
    assert not (tmp_path / ".local/state/sparkfleet/un").exists()
    assert "dead was left as it is" in err
    assert "`sparkfleet uninstall` again" in err
    code, out, err = run("--yes")
    assert code == 1
    assert "Nothing to remove" in out
    assert "dead was left as it is" in err


def test_without_the_head_nothing_is_removed(run, tmp_path):
    key = "SHA256:" + "A" * 43
    (tmp_path / "inventory.yaml").write_text(
        "fleet: un\nhead: dead\nnodes:\n  this: {address: local}\n"
        f'  dead: {{address: 127.0.0.1, port: 1, user: me, host_key: "{key}"}}\n'
    )
    code, _, err = run("--yes")
    assert code == 4
    assert "Nothing was removed" in err
    assert "another node as `head:`" in err
    assert (tmp_path / ".local/state/sparkfleet/un").exists()


def test_files_of_root_have_the_commands_that_end_what_they_set():
    """The firewall closed its ports for ever: its helper was named, but neither its rules nor its unit."""
    firewall, rails, rest = root_commands(OF_ROOT)
    assert firewall.startswith(
        "sudo systemctl disable --now sparkfleet-firewall.service; sudo nft delete table inet sparkfleet; sudo rm "
    )
    assert rails.startswith("sudo rm /etc/netplan/60-sparkfleet.yaml && sudo netplan apply")
    named = " ".join((firewall, rails, rest)).split()
    assert set(OF_ROOT) <= set(named)
    assert list(root_commands(["/usr/local/sbin/sparkfleet-rails"])) == [
        "sudo rm /usr/local/sbin/sparkfleet-rails"
    ]
    assert list(root_commands([])) == []
