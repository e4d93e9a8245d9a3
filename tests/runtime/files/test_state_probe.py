"""Facts of a fleet that a node gives without anything of ours installed."""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest
from control_values import deployment, plan

from sparkfleet.controlplane.state.store import Store
from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.routing_table import KeyLimits
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.state_probe import (
    RAY_LABEL,
    fleet_label,
    found,
    keys,
    run_directory,
    state_root,
    surroundings,
)

TOKEN = "a1" * 32
NOBODY = 65534


@pytest.fixture
def head(tmp_path):
    """The state directory of a head whose Ray would listen at the port of a socket."""
    with socket.socket() as ray:
        ray.bind(("127.0.0.1", 0))
        (tmp_path / "role.json").write_text(json.dumps({"python": "/opt/python"}))
        (tmp_path / "address.json").write_text(json.dumps({"ray": f"127.0.0.1:{ray.getsockname()[1]}"}))
        (tmp_path / "api.token").write_text(TOKEN)
        yield tmp_path, ray


def test_a_node_that_knows_nothing_of_a_fleet(tmp_path):
    state = found(tmp_path / "home")
    files = [str(tmp_path / "home" / name) for name in ("role.json", "address.json", "api.token")]
    root = str(tmp_path / "home")
    assert state == {"root": root, "controller": {}, "unreadable": [], "missing": files, "runs": 0}


def test_a_head_tells_whether_its_ray_listens(head):
    root, ray = head
    said = found(root)
    assert (said["python"], said["api_token"], said["ray"]) == ("/opt/python", TOKEN, False)
    ray.listen()
    assert found(root)["ray"] is True


def test_a_heads_secrets_that_no_controller_can_use_are_named(head):
    root, _ = head
    (root / "engine.secret").write_text("f" * 64 + "\n")
    (root / "ray.token").write_text("a" * 64)
    assert found(root)["spoilt"] == []
    (root / "ray.token").write_text("garbage")
    assert found(root)["spoilt"] == [f"{root / 'ray.token'} does not have 64 hexadecimal digits"]
    (root / "ray.token").unlink()
    assert found(root)["spoilt"] == [f"{root / 'ray.token'} is missing"]


def test_another_node_than_the_head_has_an_interpreter_only(tmp_path):
    (tmp_path / "role.json").write_text(json.dumps({"python": "/opt/python"}))
    state = found(tmp_path)
    assert (state["python"], state["unreadable"]) == ("/opt/python", [])
    assert "address" not in state


@pytest.mark.parametrize("name", ["role.json", "address.json"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b"\xff\xfe"])
def test_a_file_that_is_garbage_is_named_and_not_taken_for_missing(head, name, content):
    root, _ = head
    (root / name).write_bytes(content)
    state = found(root)
    assert [str(root / name) in line for line in state["unreadable"]] == [True]
    assert state["missing"] == []


def test_a_file_that_cannot_be_opened_is_named_with_the_reason(head):
    root, _ = head
    (root / "address.json").unlink()
    (root / "address.json").mkdir()
    assert found(root)["unreadable"] == [f"{root / 'address.json'}: Is a directory"]


@pytest.fixture
def refused(tmp_path):
    """A directory that this process may not enter. Root may enter all, so it is another user meanwhile."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    try:
        if os.geteuid() == 0:
            os.seteuid(NOBODY)
        yield closed
    finally:
        if os.geteuid() != os.getuid():
            os.seteuid(os.getuid())
        closed.chmod(0o700)


def test_a_state_directory_that_may_not_be_entered_is_unreadable_with_its_owner(refused):
    """`status` ended with "Free disk space there"."""
    lines = found(refused / "home")["unreadable"]
    assert ["Permission denied" in line for line in lines] == [True] * 3
    assert all(" belongs to root)" in line for line in lines) == (os.getuid() == 0)
    assert surroundings(refused / "home")["store"] is False


def test_processes_of_a_fleet_whose_files_are_gone_are_counted(tmp_path):
    root = tmp_path / "home"
    label = {RAY_LABEL: fleet_label(root)}
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, **label}
    ) as one:
        while found(root)["runs"] == 0:
            assert one.poll() is None
        assert found(tmp_path / "other")["runs"] == 0
        one.communicate(b"\n")
    assert found(root)["runs"] == 0


def test_the_addresses_have_a_copy_in_the_run_directory(head):
    root, _ = head
    FleetPaths(root).create()
    (root / "address.json").rename(run_directory(root) / "address.json")
    state = found(root)
    assert state["api_token"] == TOKEN
    assert state["address"]["ray"].startswith("127.0.0.1:")
    shutil.rmtree(run_directory(root))


def test_the_keys_of_deployments_are_read_from_a_store_that_has_no_defaults(tmp_path):
    store = Store(tmp_path / "sparkfleet.db")
    store.deployments.put(deployment(), plan(), "me")
    store.deployments.put(deployment("other", keys=("laptop",)), plan("other"), "me")
    for name in ("laptop", "phone"):
        store.keys.add(generate(name)[1])
    store.keys.add(generate("page", KeyLimits(admin=True, inference=False))[1])
    store.keys.add(generate("guest", KeyLimits(expires=1.0))[1])
    store.close()
    assert {one["name"]: one["may_use"] for one in keys(tmp_path)["keys"]} == {
        "laptop": ["other", "tiny"],
        "phone": ["tiny"],
        "page": [],
        "guest": [],
    }


def test_the_api_token_is_read_without_its_newline_and_nothing_else_is_taken_for_one(head):
    """After `openssl rand -hex 32 > api.token` every command ended with a traceback: no header can have a newline."""
    root, _ = head
    (root / "api.token").write_text(f"{TOKEN}\n")
    assert found(root)["api_token"] == TOKEN
    (root / "api.token").write_text("garbage")
    state = found(root)
    assert state["unreadable"] == [f"{root / 'api.token'}: it does not have 64 hexadecimal digits"]
    assert "address" not in state


@pytest.mark.parametrize("variable", ["HOME", "XDG_STATE_HOME", "SPARKFLEET_HOME"])
def test_a_home_that_is_reached_by_a_link_has_the_same_fleet(tmp_path, monkeypatch, variable):
    """`down` printed that the fleet is down, and Ray and the controller ran on under the label of the other path."""
    for name in ("XDG_STATE_HOME", "SPARKFLEET_HOME"):
        monkeypatch.delenv(name, raising=False)
    home, link = tmp_path / "home", tmp_path / "link"
    home.mkdir()
    link.symlink_to(home)
    monkeypatch.setenv(variable, str(home))
    expected = state_root("walk")
    monkeypatch.setenv(variable, str(link))
    assert state_root("walk") == expected
