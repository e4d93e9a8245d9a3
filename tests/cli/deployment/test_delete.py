import json

import pytest
import statuses
from open_client import OpenClient

from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.fleet import session as module


class Controller(OpenClient):
    """A controller that serves `m` until a request deletes it."""

    def __init__(self):
        self.names = ["m"]

    async def fleet(self):
        deployments = tuple(
            DeploymentStatus(
                name=name, generation=1, state="ready", detail="", who="me", since=0.0, plan=None, groups=()
            )
            for name in self.names
        )
        return statuses.fleet(*deployments)

    async def history(self, name):
        return ("a generation",) if name in {"m", "old"} else ()

    async def delete(self, name, who):
        self.names.remove(name)


@pytest.fixture
def controller():
    return Controller()


@pytest.fixture
def delete(sparkfleet, monkeypatch, tmp_path, controller):
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")

    async def found(_):
        return controller

    monkeypatch.setattr(module.Session, "find_controller", found)
    return lambda *argv: sparkfleet("delete", "-i", file, *argv)


def test_for_people(delete, controller):
    assert delete("m", "--yes") == (0, "m was deleted.\n", "")
    assert controller.names == []


def test_for_programs(delete, controller):
    code, out, err = delete("m", "--yes", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"version": 1, "fleet": "home", "deleted": "m"}


def test_nothing_is_deleted_unasked(delete, controller):
    code, out, err = delete("m", "--json")
    assert (code, json.loads(out)["exit_code"]) == (1, 1)
    assert err.startswith("Delete m?\nerror: Nothing was changed: this needs a confirmation")
    assert controller.names == ["m"]


def test_a_name_that_is_none(delete):
    code, _, err = delete("n", "--yes")
    assert code == 1
    assert 'There is no deployment "n".\nDeployments: m.' in err


def test_one_that_was_deleted_has_the_command_that_brings_it_back(delete):
    """It was "There is no deployment", and for a fleet without another one "None is known"."""
    code, _, err = delete("old", "--yes")
    assert code == 1
    assert "old was deleted.\n`sparkfleet rollback old` brings it back" in err
