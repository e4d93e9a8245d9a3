"""`up` and `down`: what they say, to people and to programs. What they do is tried on live fleets."""

import json

import pytest
import statuses

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.fleet import session as module
from sparkfleet.fleet.events import FleetStep, StepRunning
from sparkfleet.fleet.node_starts import FleetLifecycle, TakenDown

ADDRESS = HeadAddress(
    ray="127.0.0.2:1", api="http://127.0.0.1:1", gateway_host="127.0.0.1", gateway_port=8000
)


@pytest.fixture
def fleet(sparkfleet, monkeypatch, tmp_path):
    """fleet(verb, …, running=): what the verb prints of a fleet that is up, or is brought up."""
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    client = FleetClient(ADDRESS, "secret")

    async def brought_up(lifecycle, apply, on_event, wheels, joined):
        on_event(StepRunning(step=FleetStep.STARTING_RAY))
        lifecycle.left_by_a_reboot = ("a",)
        lifecycle.ended_by_a_logout = ("a",)
        return client

    async def status(_):
        return statuses.fleet()

    async def joined(*_):
        return {"a": fleet.lacks_nothing}

    async def taken_down(_):
        return fleet.found

    def fleet(*argv, running=False):
        async def found(_):
            return client if running else None

        monkeypatch.setattr(module.Session, "find_controller", found)
        return sparkfleet(*argv, "-i", file)

    monkeypatch.setattr(FleetClient, "fleet", status)
    monkeypatch.setattr(FleetLifecycle, "bring_up", brought_up)
    monkeypatch.setattr(FleetLifecycle, "joined", joined)
    monkeypatch.setattr(FleetLifecycle, "take_down", taken_down)
    fleet.lacks_nothing = True
    fleet.found = TakenDown(was_up=True, has_run=True, deployments={"tiny": 3})
    return fleet


@pytest.mark.parametrize("running", [False, True])
def test_up_for_people(fleet, running):
    code, out, err = fleet("up", running=running)
    assert (code, err) == (0, "")
    first, *advice = out.splitlines()
    assert first == f"{'Already running' if running else 'Up'}. Endpoint: http://127.0.0.1:8000/v1"
    assert [line[:16] for line in advice] == ([] if running else ["a: has neither s", "a: systemd ends "])


def test_up_of_a_fleet_that_lacks_a_file_writes_it_again(fleet):
    """`status` named the command, and it did nothing."""
    fleet.lacks_nothing = False
    code, out, _ = fleet("up", running=True)
    assert (code, out.splitlines()[0]) == (0, "Up. Endpoint: http://127.0.0.1:8000/v1")


@pytest.mark.parametrize("running", [False, True])
def test_up_for_programs(fleet, running):
    code, out, err = fleet("up", "--json", running=running)
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "version": 1,
        "fleet": "home",
        "up": True,
        "endpoint": "http://127.0.0.1:8000/v1",
        "changed": not running,
        "left_by_a_reboot": [] if running else ["a"],
        "ended_by_a_logout": [] if running else ["a"],
        "without_nodes": "",
    }


STARTS = "`sparkfleet apply FILE` or `sparkfleet up` starts it."


@pytest.mark.parametrize(
    ("was_up", "has_run", "deployments", "lines"),
    [
        (
            True, True, {"tiny": 3, "big": 1},
            ["Fleet home is down.", "`sparkfleet up` starts it again with big (generation 1), tiny (generation 3)."],
        ),
        (True, True, {}, ["Fleet home is down.", STARTS]),
        (
            False, True, {"tiny": 3},
            [
                "Fleet home was down already: nothing was stopped.",
                "`sparkfleet up` starts it again with tiny (generation 3).",
            ],
        ),
        (False, False, {}, ["Fleet home has never run on these nodes: nothing was stopped.", STARTS]),
        (
            False, True, None,
            [
                "Fleet home was down already: nothing was stopped.",
                "The deployments that it had are not known: the head's store could not be read.",
                STARTS,
            ],
        ),
    ],
    ids=["up", "up without deployments", "down", "never ran", "unreadable"],
)  # fmt: skip
def test_down_for_people(fleet, was_up, has_run, deployments, lines):
    """It promised to start deployments of a fleet that never had any."""
    fleet.found = TakenDown(was_up=was_up, has_run=has_run, deployments=deployments)
    assert fleet("down") == (0, "\n".join([*lines, ""]), "")


def test_down_for_programs(fleet):
    code, out, _ = fleet("down", "--json")
    assert (code, json.loads(out)) == (0, {"version": 1, "fleet": "home", "up": False, "changed": True})


def test_down_of_a_fleet_that_never_ran(sparkfleet, tmp_path):
    """With the real session, on this machine."""
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: nothing\nhead: a\nnodes:\n  a: {address: local}\n")
    code, out, err = sparkfleet("down", "-i", file)
    assert (code, err) == (0, "")
    assert out.splitlines() == ["Fleet nothing has never run on these nodes: nothing was stopped.", STARTS]
