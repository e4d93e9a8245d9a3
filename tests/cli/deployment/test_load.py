"""`load` and `unload` print what has happened, and change nothing that is so already."""

import pytest
import statuses
from open_client import OpenClient

from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.fleet import session as module


class Controller(OpenClient):
    """A controller with one deployment on demand, which starts or ends with the next look."""

    def __init__(self):
        self.state = "unloaded"
        self.fails = self.waits = False

    async def fleet(self):
        one = DeploymentStatus(
            name="m", generation=1, state=self.state, detail="", who="me", since=0.0, plan=None, groups=()
        )
        return statuses.fleet(one)

    async def events(self, after, deployment=None, wait_s=0):
        if not self.waits:
            return []
        return [Event(id=99, at=0.0, deployment="m", generation=1, subject="", kind="load", message="")]

    async def load(self, name, who):
        self.state = "failed" if self.fails else "ready"

    async def unload(self, name, who):
        was, self.state = self.state, "unloaded"
        return was == "ready"


@pytest.fixture
def controller():
    return Controller()


@pytest.fixture
def run(sparkfleet, monkeypatch, tmp_path, controller):
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")

    async def found(_):
        return controller

    monkeypatch.setattr(module.Session, "find_controller", found)
    monkeypatch.setenv("HOME", str(tmp_path))
    return lambda verb: sparkfleet(verb, "m", "-i", file)


def test_it_is_loaded_and_unloaded_once(run):
    assert run("load")[::2] == (0, "")
    assert run("load") == (0, "No change: m is loaded.\n", "")
    code, out, _ = run("unload")
    assert (code, out.splitlines()[-1]) == (
        0,
        "m is unloaded: its memory is free. Its next request starts it.",
    )
    assert run("unload") == (0, "No change: m is not loaded.\n", "")


def test_one_that_does_not_start_is_an_error(run, controller):
    controller.fails = True
    code, _, err = run("load")
    assert (code, "m failed" in err) == (1, True)


def test_one_that_a_request_waits_for_is_named(run, controller):
    controller.state, controller.waits = "ready", True
    assert run("unload")[1].splitlines()[-1] == "m was unloaded, and starts again: a request waits for it."
