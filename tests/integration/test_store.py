"""The store is lost, spoilt or replaced, or the controller is gone, while a group serves: it serves on."""

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time

import httpx
import pytest

from sparkfleet.controlplane.controller_note import read_note
from sparkfleet.controlplane.ray.ray_process import LABEL, ray_environment
from sparkfleet.controlplane.state.head_address import read_address
from sparkfleet.runtime import processes

pytestmark = [pytest.mark.integration, pytest.mark.any_engine]

BACK_S = 10
"""Seconds in which all is back once the cause is gone."""

END_ACTOR = """
import ray
ray.init(address="{address}", _node_ip_address="{host}", logging_level="ERROR", log_to_driver=False)
ray.kill(ray.get_actor("controller", namespace="sparkfleet"), no_restart=True)
"""


@pytest.fixture(autouse=True)
def _serving(fleet):
    """Each test begins with `tiny` serving and nothing else, and leaves the same engine and the same Ray behind."""
    for other in [d["name"] for d in fleet.deployments() if d["name"] != "tiny"]:
        fleet.ok("delete", "--yes", other)
    fleet.apply(fleet.write("tiny.yaml", fleet.spec()))
    fleet.until(
        lambda: ready(fleet) and len(sessions(fleet)) == 1
    )  # those of earlier deployments take seconds to end
    before = engine(fleet), gcs(fleet)
    fleet.chat("Hello")
    yield
    assert (engine(fleet), gcs(fleet)) == before, "something that served was ended"
    fleet.chat("Hello")


def ready(fleet):
    found = fleet.deployment("tiny")
    return found is not None and found["state"] == "ready"


def engine(fleet):
    """Processes of the engine itself."""
    return sorted(
        p.pid for p in fleet.ranks() if "sparkfleet.engines.fake" in p.command or "vllm" in p.command
    )


def sessions(fleet):
    """Sessions of processes of engines: each rank's engine has its own."""
    found = set()
    for pid in engine(fleet):
        with contextlib.suppress(ProcessLookupError):
            found.add(os.getsid(pid))
    return found


def gcs(fleet):
    return [p.pid for p in processes.labelled({LABEL: fleet.paths.label}) if p.name.startswith("gcs_server")]


def held(fleet, words):
    """Output of `status`, once it has these words."""
    code, out, err = fleet.run("status")
    return err if code == 5 and "held" in out and words in err else None


def works(fleet):
    return fleet.run("status")[0] == 0


def back(fleet):
    """The fleet is `ready` again in time. The seconds of a command line are not counted."""
    began = time.monotonic()
    fleet.until(
        lambda: read_note(fleet.paths).state == "working" and answers(fleet), timeout=BACK_S, every=0.1
    )
    print(f"back after {time.monotonic() - began:.1f} s")
    fleet.until(lambda: ready(fleet), timeout=30)


def answers(fleet):
    try:
        return fleet.deployments() is not None
    except (httpx.HTTPError, KeyError, OSError):
        return False


def kill_controller(fleet):
    os.kill(read_note(fleet.paths).pid, signal.SIGKILL)


def bound(taker, host, port):
    try:
        taker.bind((host, port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def set_aside(fleet):
    """Take the store with its log away; gives a function that puts it back."""
    away = fleet.paths.root / "away"
    away.mkdir()
    for path in fleet.paths.root.glob("sparkfleet.db*"):
        path.rename(away / path.name)

    def put_back():
        for path in fleet.paths.root.glob("sparkfleet.db*"):
            path.unlink()
        for path in away.iterdir():
            path.rename(fleet.paths.root / path.name)
        away.rmdir()

    return put_back


def test_a_missing_store_ends_nothing_and_is_back_with_its_file(fleet):
    put_back = set_aside(fleet)
    err = fleet.until(lambda: held(fleet, "is missing"), timeout=30)
    assert "sparkfleet restore" in err
    kill_controller(fleet)  # also a new process does not take it for an empty one
    fleet.until(lambda: held(fleet, "is missing"), timeout=40)
    fleet.chat("Hello")
    assert fleet.run("plan", "tiny.yaml")[0] == 5, "a plan would be made as if nothing were served"
    assert fleet.run("up")[0] == 5
    put_back()
    back(fleet)
    assert fleet.run("plan", "tiny.yaml")[0] == 0


@pytest.mark.full
def test_garbage_from_the_start_is_named_and_the_latest_copy_restores_it(fleet):
    fleet.until(lambda: json.loads(fleet.ok("restore", "--json"))["copies"], timeout=20)
    before = fleet.deployment("tiny")["generation"]
    set_aside(fleet)
    fleet.paths.database.write_bytes(b"garbage" * 3000)
    kill_controller(fleet)
    fleet.until(lambda: held(fleet, f"{fleet.paths.database} cannot be used"), timeout=40)
    out = fleet.ok("restore", "latest", "--yes")
    assert "tiny" in out
    back(fleet)
    assert fleet.deployment("tiny")["generation"] == before
    shutil.rmtree(fleet.paths.root / "away")


@pytest.mark.full
def test_without_any_copy_what_runs_is_adopted(fleet):
    before = fleet.deployment("tiny")["generation"]
    for path in [*fleet.paths.root.glob("sparkfleet.db*"), *fleet.paths.backups.glob("*.db")]:
        path.unlink()
    fleet.until(lambda: held(fleet, "is missing"), timeout=30)
    assert "tiny" in fleet.ok("restore", "--adopt", "--yes")
    back(fleet)
    assert fleet.deployment("tiny")["generation"] == before
    assert "No change" in fleet.apply("tiny.yaml")


@pytest.mark.full
def test_an_older_copy_in_its_place_ends_nothing(fleet, tmp_path):
    out = fleet.ok("backup", "--to", str(tmp_path / "older.db"))
    assert "Copied and checked" in out
    fleet.ok("keys", "create", "later")
    put_back = set_aside(fleet)
    (tmp_path / "older.db").rename(fleet.paths.database)
    fleet.until(lambda: held(fleet, "is an older copy"), timeout=30)
    put_back()
    back(fleet)
    fleet.ok("keys", "revoke", "later")


CHANGES = {
    "belongs to fleet stranger": "UPDATE identity SET fleet = 'stranger'",
    "newer release": "PRAGMA user_version = 9999",
}
"""Damage to a sound copy, by the words of `status`."""


@pytest.mark.full
@pytest.mark.parametrize("words", CHANGES)
def test_a_store_of_another_fleet_or_of_a_newer_release_ends_nothing(fleet, tmp_path, words):
    fleet.ok("backup", "--to", str(tmp_path / "other.db"))
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as db:
        db.execute(CHANGES[words])
        db.commit()
    put_back = set_aside(fleet)
    shutil.copy(tmp_path / "other.db", fleet.paths.database)
    fleet.until(lambda: held(fleet, words), timeout=30)
    put_back()
    back(fleet)


@pytest.mark.full
@pytest.mark.parametrize("content", [None, b"garbage"])
def test_a_mark_that_is_lost_or_spoilt_is_written_again(fleet, content):
    """Nothing named it, and a store that went away next was taken for one that had never existed."""
    marks = (fleet.paths.store_mark, fleet.paths.run_store_mark)
    kept = [mark.read_bytes() for mark in marks]
    for mark in marks:
        mark.unlink()
        if content is not None:
            mark.write_bytes(content)
    fleet.until(lambda: [m.exists() and m.read_bytes() for m in marks] == kept, timeout=15)
    put_back = set_aside(fleet)
    fleet.until(lambda: held(fleet, "is missing"), timeout=30)
    put_back()
    back(fleet)


@pytest.mark.full
def test_a_controller_whose_actor_is_gone_is_made_again(fleet):
    address = read_address(fleet.paths)
    text = END_ACTOR.format(address=address.ray, host=address.ray.rpartition(":")[0])
    pid = read_note(fleet.paths).pid
    subprocess.run([sys.executable, "-c", text], env=ray_environment(fleet.paths), check=True, timeout=60)
    fleet.until(lambda: read_note(fleet.paths).pid != pid, timeout=30)
    back(fleet)


@pytest.mark.full
def test_up_makes_a_controller_in_the_ray_that_lives(fleet):
    """While the watchdog is stopped: it would be quicker."""
    (watchdog,) = [p for p in fleet.everything() if " keep " in p.command]
    os.kill(watchdog.pid, signal.SIGSTOP)
    try:
        address = read_address(fleet.paths)
        text = END_ACTOR.format(address=address.ray, host=address.ray.rpartition(":")[0])
        subprocess.run([sys.executable, "-c", text], env=ray_environment(fleet.paths), check=True, timeout=60)
        code, out, err = fleet.run("status")
        assert (code, "no controller" in out) == (5, True), f"{out}{err}"
        assert "`sparkfleet up` makes a controller" in err
        fleet.ok("up")
        back(fleet)
    finally:
        os.kill(watchdog.pid, signal.SIGCONT)


@pytest.mark.full
def test_a_taken_port_is_named_and_left_in_peace(fleet):
    host, _, port = read_address(fleet.paths).api.rpartition("/")[2].partition(":")
    kill_controller(fleet)
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        fleet.until(
            lambda: bound(taker, host, int(port)), timeout=5, every=0.01
        )  # a killed process ends a moment later
        taker.listen()
        taker.setblocking(False)
        fleet.until(lambda: read_note(fleet.paths).api, timeout=30)
        assert f"cannot listen on {host}:{port}" in read_note(fleet.paths).api
        fleet.chat("Hello")
    back(fleet)


@pytest.mark.full
def test_a_token_that_cannot_be_read_is_named(fleet):
    token = fleet.paths.api_token
    token.rename(token.with_suffix(".away"))
    kill_controller(fleet)
    fleet.until(lambda: "cannot be read" in read_note(fleet.paths).api, timeout=30)
    code, out, err = fleet.run("status")
    assert code == 5, f"{out}{err}"
    assert "api.token" in err
    token.with_suffix(".away").rename(token)
    back(fleet)


@pytest.mark.full
@pytest.mark.parametrize("content", [None, b"garbage"])
def test_a_secret_that_cannot_be_used_is_named_and_waited_for(fleet, content):
    """The controller ended itself again and again without a word, and `up` made another secret."""
    secret, kept = fleet.paths.engine_secret, fleet.paths.engine_secret.with_suffix(".away")
    secret.rename(kept)
    if content is not None:
        secret.write_bytes(content)
    try:
        fleet.until(lambda: "engine.secret cannot be used" in fleet.run("status")[2], timeout=15)
        kill_controller(fleet)
        err = fleet.until(lambda: held(fleet, "engine.secret cannot be used"), timeout=40)
        assert "Put the file back" in err
        fleet.chat("Hello")
    finally:
        kept.rename(secret)
    back(fleet)


@pytest.mark.full
def test_what_cannot_be_read_is_not_called_down(fleet):
    address = fleet.paths.address
    kept = address.read_bytes()
    for path in (address, fleet.paths.run_address):
        path.write_bytes(b"garbage")
    try:
        code, out, err = fleet.run("status")
        assert (code, "unreadable" in out) == (5, True), f"{out}{err}"
        assert str(address) in err
        assert "down" not in out
    finally:
        for path in (address, fleet.paths.run_address):
            path.write_bytes(kept)
    assert works(fleet)
