import json

import pytest
import statuses
from open_client import OpenClient

from sparkfleet.controlplane.api.client_errors import Held
from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.errors import UnreachableError, UnreadableStateError, WrongFleetError
from sparkfleet.fleet import session as module
from sparkfleet.fleet.controller_finder import NoControllerError
from sparkfleet.fleet.nodes.surroundings import NodeSurroundings, OtherFleet

UP = statuses.fleet(
    DeploymentStatus(
        name="m", generation=1, state="starting", detail="", who="me", since=0.0, plan=None, groups=()
    ),
    endpoint="http://127.0.0.1:8000/v1",
)


class Controller(OpenClient):
    """One that answers."""

    async def fleet(self):
        return UP

    async def all_events(self, name=None, after=0):
        return []


@pytest.fixture
def status(sparkfleet, monkeypatch, tmp_path):
    """status(client, *argv): what the verb prints where such a controller is found."""
    file = tmp_path / "inventory.yaml"
    key = "SHA256:" + 43 * "A"
    nodes = f"  a: {{address: local}}\n  b: {{address: 10.0.0.2, user: u, host_key: '{key}'}}\n"
    file.write_text(f"fleet: home\nhead: a\nnodes:\n{nodes}")

    def status(client, *argv):
        async def found(_):
            if isinstance(client, Exception):
                raise client
            return client

        async def around(*_):
            return status.around

        monkeypatch.setattr(module.Session, "find_controller", found)
        monkeypatch.setattr("sparkfleet.cli.fleet.status.surroundings_of", around)
        return sparkfleet("status", "-i", file, *argv)

    status.around = {}
    return status


def test_another_fleet_on_the_same_nodes_is_named(status):
    other = OtherFleet(fleet="lab", root="/x/lab")
    status.around = {"a": NodeSurroundings(others=(other,)), "b": NodeSurroundings()}
    code, _, err = status(Controller())
    assert code == 0
    assert "Fleet lab (state in /x/lab) also runs on a: " in err
    _, out, err = status(Controller(), "--json")
    assert json.loads(out)["other_fleets"] == {"a": [{"fleet": "lab", "root": "/x/lab", "role": None}]}
    assert err == ""


def test_a_fleet_that_is_down_is_told_with_what_to_do(status):
    status.around = {"a": NodeSurroundings(generations={})}
    code, out, err = status(None)
    assert (code, err) == (0, "")
    words = "Fleet home is down. `sparkfleet apply FILE` or `sparkfleet up` starts it."
    assert " ".join(out.split()) == words
    status.around = {"a": NodeSurroundings(generations={"m": 4})}
    assert "`sparkfleet up` starts it again with m (generation 4)." in status(None)[1]


def test_a_name_that_the_store_of_a_fleet_that_is_down_does_not_have(status):
    status.around = {"a": NodeSurroundings(generations={"m": 4})}
    code, out, err = status(None, "n")
    assert (code, out) == (1, "")
    assert err.split("\n")[:2] == ['error: There is no deployment "n".', "Deployments: m."]
    assert status(None, "m")[0] == 0
    status.around = {"a": NodeSurroundings()}  # its store could not be read
    assert status(None, "n")[0] == 0


def test_one_deployment_by_name(status):
    code, out, _ = status(Controller(), "m")
    assert (code, out) == (0, "m · starting\n")
    code, out, _ = status(Controller(), "m", "--json")
    assert [one["name"] for one in json.loads(out)["deployments"]] == ["m"]
    code, _, err = status(Controller(), "n")
    assert code == 1
    assert 'There is no deployment "n"' in err


def test_watching_ends_with_ctrl_c_and_prints_what_changed(status, monkeypatch):
    shown = []

    class Changing(Controller):
        async def fleet(self):
            shown.append(1)
            if len(shown) == 3:
                raise KeyboardInterrupt
            state = ("starting", "ready")[len(shown) - 1]
            one = UP.deployments[0].model_copy(update={"state": state})
            return UP.model_copy(update={"deployments": (one,)})

    monkeypatch.setattr("sparkfleet.cli.fleet.status.EVERY_S", 0.0)
    code, out, _ = status(Changing(), "m", "--watch")
    assert (code, out.splitlines()) == (130, ["m · starting", "m · ready"])
    code, _, err = status(Controller(), "--watch", "--json")
    assert code == 1
    assert "--watch is for people" in err


def test_json_has_the_same_fields_up_and_down(status):
    code, out, err = status(Controller(), "--json")
    assert (code, err) == (0, "")
    up = json.loads(out)
    code, out, err = status(None, "--json")
    assert (code, err) == (0, "")
    down = json.loads(out)
    assert up.keys() == down.keys()
    assert (up["up"], up["version"], [one["name"] for one in up["deployments"]]) == (True, 1, ["m"])
    assert (down["up"], down["version"], down["fleet"], down["deployments"]) == (False, 1, "home", [])
    assert [(node["name"], node["joined"]) for node in down["nodes"]] == [("a", False), ("b", False)]


def test_for_people(status):
    code, out, _ = status(Controller())
    assert code == 0
    assert "endpoint http://127.0.0.1:8000/v1" in out
    assert "m · starting" in out


@pytest.mark.parametrize(
    ("error", "condition", "code"),
    [
        (UnreachableError("no route", do="Switch it on."), "unreachable", 4),
        (UnreadableStateError("garbage", do="Repair it."), "unreadable", 5),
        (Held("The store is missing.", do="Restore it."), "held", 5),
        (NoControllerError("It is gone.", do="Run up."), "no controller", 5),
        (WrongFleetError("another one", do="Look."), "wrong fleet", 6),
    ],
)
def test_what_is_not_known_is_not_called_down_and_is_no_success(status, error, condition, code):
    found, out, err = status(error)
    assert found == code
    assert out == f"Fleet home: {condition}.\n"
    assert error.what in err
    assert error.do in err
    found, out, err = status(error, "--json")
    assert (found, err) == (code, "")
    told = json.loads(out)
    assert (told["up"], told["condition"], told["reason"]["what"]) == (False, condition, error.what)


def test_warnings_are_shown_on_standard_error(status):
    class Troubled(Controller):
        async def fleet(self):
            return UP.model_copy(update={"warnings": ("The disk is full.",)})

    code, _, err = status(Troubled())
    assert (code, err) == (0, "warning: The disk is full.\n")
