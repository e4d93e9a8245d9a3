"""Logs and keys of a fleet whose controller does not answer, from the disks of its nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from control_values import deployment, plan
from open_client import OpenClient

from sparkfleet.controlplane.state.store import Store
from sparkfleet.errors import ControlError, UnreadableStateError
from sparkfleet.fleet import rank_logs
from sparkfleet.fleet.events import TroubleFound
from sparkfleet.fleet.rank_logs import LoggedRank, rank_log
from sparkfleet.fleet.session import Session
from sparkfleet.fleet.without_controller import stored_keys, stored_usage
from sparkfleet.gateway.access.keys import generate, rotate
from sparkfleet.gateway.report import KeyUsage
from sparkfleet.gateway.routing_table import KeyLimits
from sparkfleet.runtime.files import state_probe
from sparkfleet.runtime.files.fleet_paths import FleetPaths


@pytest.fixture
def paths(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path / "state"))
    found = FleetPaths.default("home")
    found.create()
    return found


@pytest.fixture
def session(paths, tmp_path):
    """A session with a fleet on this machine that is down; `lines` has the troubles that it reported."""
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    lines = []
    made = Session(file, lambda event: lines.append(event.line) if isinstance(event, TroubleFound) else None)
    made.lines = lines
    # A fleet that was up and is down has no address.json.
    return made


def log(paths, name, text, at=0):
    path = paths.rank_log(f"{paths.label}_{name}")
    path.write_text(text)
    os.utime(path, (at, at))


async def read(session, name, tail=100, **which):
    try:
        pieces = rank_log(session, LoggedRank(name, **which), tail=tail)
        return b"".join([piece async for piece in pieces]).decode()
    finally:
        await session.close()


async def test_the_newest_generations_log_is_read_without_a_controller(session, paths):
    log(paths, "tiny_g9_0_0", "old\n", at=99)
    log(paths, "tiny_g10_0_0", "one\ntwo\n", at=50)
    log(paths, "tiny_g10_1_0", "another replica\n")
    log(paths, "tiny_g1_0_0_g12_0_0", "a deployment with such a name\n")
    (paths.logs / "other-01234567_tiny_g20_0_0.log").write_text("another fleet\n")
    assert await read(session, "tiny") == "one\ntwo\n"
    assert session.lines == ["Fleet home is down: no controller answers. The log of tiny/g10/0 is shown."]
    assert await read(session, "tiny", replica=1) == "another replica\n"
    assert await read(session, "tiny", tail=1) == "two\n"
    assert await read(session, "tiny", replica=0, generation=9) == "old\n"


async def test_the_replicas_that_are_left_need_not_begin_with_0(session, paths):
    log(paths, "tiny_g1_0_0", "oldest\n")
    log(paths, "tiny_g9_1_0", "new\n")
    log(paths, "tiny_g9_2_0", "another replica\n")
    assert await read(session, "tiny") == "new\n"
    with pytest.raises(ControlError, match=r"no log of rank 0 of replica 3 on a\."):
        await read(session, "tiny", replica=3)


@pytest.mark.parametrize(
    ("deployed", "which", "line"),
    [
        (True, {"generation": 1, "replica": 0}, "tiny/g1/0 has ended. The log of tiny/g1/0 is shown."),
        (False, {}, "tiny was deleted. The log of tiny/g1/0 is shown."),
    ],
)
async def test_the_log_of_what_has_ended_is_read_while_the_fleet_is_up(
    session, paths, monkeypatch, deployed, which, line
):
    """It needed `sparkfleet down`: while a controller answered, only groups that run had a log."""
    log(paths, "tiny_g1_0_0", "its end\n")
    monkeypatch.setattr(rank_logs, "client_or_trouble", up_with("tiny" if deployed else "other"))
    assert await read(session, "tiny", **which) == "its end\n"
    assert session.lines == [line]


async def test_a_deployment_that_has_no_log_yet_has_not_that_of_an_earlier_generation(
    session, paths, monkeypatch
):
    log(paths, "tiny_g1_0_0", "old\n")
    monkeypatch.setattr(rank_logs, "client_or_trouble", up_with("tiny"))
    with pytest.raises(ControlError, match="has no log yet for rank 0"):
        await read(session, "tiny")
    with pytest.raises(ControlError, match="has no log yet for rank 0 of tiny/g2/0"):
        await read(session, "tiny", generation=2, replica=0)


def up_with(name):
    """A controller with a deployment of that name, of which no group has a log, and with the history of another one."""

    class Client(OpenClient):
        async def fleet(self):
            one = SimpleNamespace(name=name, groups=())
            return SimpleNamespace(
                deployments=(one,), paused=False, named=lambda asked: one if asked == name else None
            )

        async def history(self, _):
            return ("a generation",)

    async def found(_):
        return Client(), None

    return found


@pytest.mark.parametrize("name", ["tino", "../tiny", "t.ny", ".*"])
async def test_a_log_of_a_deployment_that_does_not_exist(session, paths, name):
    log(paths, "tony_g1_0_0", "another one\n")
    filled(paths)
    with pytest.raises(ControlError) as raised:
        await read(session, name)
    assert str(raised.value).splitlines() == [f'There is no deployment "{name}".', "Deployments: tiny, tony."]


@pytest.mark.parametrize("which", [{"name": "tiny"}, {"name": "tony", "rank": 1}])
async def test_a_deployment_without_a_log(session, paths, which):
    log(paths, "tony_g1_0_0", "another one\n")
    filled(paths)
    with pytest.raises(ControlError, match=r"has no log of rank . on a\.") as raised:
        await read(session, **which)
    assert "is down" in raised.value.means
    assert "sparkfleet up" in raised.value.do


async def test_a_log_of_a_name_that_may_exist(session, paths):
    paths.database.write_bytes(b"this is no database, but it is long enough to be taken for one" * 20)
    with pytest.raises(ControlError, match="is down"):
        await read(session, "tiny")


def test_a_fleet_that_never_was_up_has_no_logs(tmp_path):
    assert state_probe.logs(tmp_path / "none")["logs"] == []


def filled(paths):
    store = Store(paths.database)
    store.deployments.put(deployment(), plan(), "me")
    limits = KeyLimits(requests_per_minute=60)
    _, key = generate("ci", limits)
    store.keys.add(key)
    store.keys.change(rotate(key, 4e9, 0.0)[1])
    store.keys.use({key.id: 1e9})
    digests = {key.sha256, store.keys.all()[0].sha256}
    store.close()
    return key.id, digests


async def test_keys_are_read_from_the_store_without_their_digests(session, paths):
    id_, digests = filled(paths)
    assert len(digests) == 2
    (row,) = await stored_keys(session, session.is_down())
    assert (row.id, row.name, row.used, row.may_use, row.former_until) == (id_, "ci", 1e9, ("tiny",), 4e9)
    assert row.limits.requests_per_minute == 60
    assert session.lines == ["Fleet home is down: no controller answers. The keys are those of its store."]
    text = json.dumps(state_probe.keys(paths.root))
    assert not [digest for digest in digests if digest in text]


def test_a_key_is_listed_with_the_deployments_that_name_it(paths):
    store = Store(paths.database)
    store.deployments.put(deployment().model_copy(update={"keys": ("ci",)}), plan(), "me")
    store.keys.add(generate("ci")[1])
    store.keys.add(generate("web")[1])
    store.close()
    assert [row["may_use"] for row in state_probe.keys(paths.root)["keys"]] == [["tiny"], []]


def test_the_probes_as_a_program(paths):
    """As they run on another node: no package of ours, one file."""
    filled(paths)
    log(paths, "tiny_g1_0_0", "x\n", at=5)
    for word in ("keys", "usage", "logs"):
        done = subprocess.run(
            [sys.executable, "-I", state_probe.__file__, "home", word],
            env=dict(os.environ),
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout) == getattr(state_probe, word)(paths.root)


async def test_usage_is_read_from_the_store(session, paths):
    """It was refused, although the counts are on the disk."""
    totals = KeyUsage(key="ci", model="tiny", requests=3, uncounted=1, input=20, output=40)
    for replica, days_ago in (("gateway", 0), ("older", 40)):
        store = Store(paths.database, clock=lambda ago=days_ago: time.time() - ago * 86400)
        store.usage.add(replica, [totals])
        store.close()
    found = await stored_usage(session, 30, session.is_down())
    assert [(one.key, one.model, one.requests, one.uncounted, one.input, one.output) for one in found] == [
        ("ci", "tiny", 3, 1, 20, 40)
    ]
    assert len(await stored_usage(session, 60, session.is_down())) == 2
    assert session.lines[0] == "Fleet home is down: no controller answers. The counts are those of its store."


async def test_a_fleet_without_a_store_has_no_keys_and_no_usage(session):
    assert await stored_keys(session, session.is_down()) == ()
    assert await stored_usage(session, 30, session.is_down()) == ()


async def test_a_store_that_cannot_be_read_is_not_taken_for_no_keys(session, paths):
    paths.database.write_bytes(b"this is no database, but it is long enough to be taken for one" * 20)
    with pytest.raises(ControlError, match="is down"):
        await stored_keys(session, session.is_down())
    with pytest.raises(ControlError, match="is down"):
        await stored_usage(session, 30, session.is_down())


async def test_a_controller_in_trouble_does_not_hide_logs(session, paths, monkeypatch):
    async def none():
        raise UnreadableStateError("The controller waits for its store.")

    monkeypatch.setattr(session, "find_controller", none)
    log(paths, "tiny_g1_0_0", "x\n")
    assert await read(session, "tiny") == "x\n"
    assert session.lines == ["The controller waits for its store. The log of tiny/g1/0 is shown."]
