"""`up` and `down`: what they say, to people and to programs. What they do is tried on live fleets."""

import json

import pytest

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.fleet import session as module
from sparkfleet.fleet.events import FleetStep, StepRunning

ADDRESS = HeadAddress(
    ray="127.0.0.2:1", api="http://127.0.0.1:1", gateway_host="127.0.0.1", gateway_port=8000
)


@pytest.fixture
def fleet(sparkfleet, monkeypatch, tmp_path):
    """fleet(verb, …, running=): what the verb prints of a fleet that is up, or is brought up."""
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    client = FleetClient(ADDRESS, "secret")

    async def brought_up(session, apply, on_event, wheels):
        on_event(StepRunning(step=FleetStep.STARTING_RAY))
        session.left_by_a_reboot = ("a",)
        return client

    async def complete(*_):
        return True

    async def taken_down(_):
        pass

    def fleet(*argv, running=False):
        async def found(_):
            return client if running else None

        monkeypatch.setattr(module.Session, "find_controller", found)
        return sparkfleet(*argv, "-i", file)

    monkeypatch.setattr(module.Session, "bring_up", brought_up)
    monkeypatch.setattr(module.Session, "is_complete", complete)
    monkeypatch.setattr(module.Session, "take_down", taken_down)
    return fleet


@pytest.mark.parametrize("running", [False, True])
def test_up_for_people(fleet, running):
    code, out, err = fleet("up", running=running)
    assert (code, err) == (0, "")
    first, *advice = out.splitlines()
    assert first == f"{'Already running' if running else 'Up'}. Endpoint: http://127.0.0.1:8000/v1"
    assert [line[:16] for line in advice] == ([] if running else ["a: has neither s"])


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
    }


def test_down(fleet):
    assert fleet("down") == (0, "Down. `sparkfleet up` starts the deployments again.\n", "")
    code, out, _ = fleet("down", "--json")
    assert (code, json.loads(out)) == (0, {"version": 1, "fleet": "home", "up": False})
