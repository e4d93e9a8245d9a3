"""`backup` and `restore`, with the program on the head as a call: what they print, ask and refuse."""

import json
from datetime import datetime

import pytest
from control_values import deployment, plan

from sparkfleet.cli.fleet import backup
from sparkfleet.controlplane.api.store_request import StoreRequest
from sparkfleet.controlplane.state.store_copies import KeptCopy
from sparkfleet.controlplane.store_safety.opening import open_store
from sparkfleet.fleet.lifecycle.kept_copies import CopyElsewhere
from sparkfleet.fleet.node_programs import NodePrograms
from sparkfleet.node_daemon import store_verbs
from sparkfleet.runtime.files.fleet_paths import FleetPaths


@pytest.fixture
def fleet(sparkfleet, monkeypatch, tmp_path):
    """fleet(verb, …): what the verb prints of a fleet on this machine, which is down."""
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path / "state"))
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")

    async def boot(programs, node, verb, request, python):
        assert (node, verb) == ("a", "store")
        answer = store_verbs.answer(StoreRequest.model_validate_json(request.model_dump_json()))
        return json.loads(json.dumps(answer))

    async def pythons(*_):
        return {"a": "python"}

    monkeypatch.setattr(NodePrograms, "_boot", boot)
    monkeypatch.setattr(NodePrograms, "pythons", pythons)
    paths = FleetPaths.default("home")
    paths.create()
    store = open_store(paths, "home")
    store.deployments.put(deployment(), plan(), "me")
    store.close()

    def fleet(*argv):
        return sparkfleet(*argv, "-i", file)

    fleet.paths = paths
    return fleet


def test_backup_names_the_copy_and_brings_it_here(fleet, tmp_path):
    code, out, _ = fleet("backup", "--to", tmp_path / "copy.db")
    assert code == 0
    assert "Copied and checked" in out
    (copy,) = fleet.paths.backups.glob("*.db")
    assert copy.name in out
    assert (tmp_path / "copy.db").read_bytes() == copy.read_bytes()
    code, out, _ = fleet("restore")
    assert (code, copy.name in out, "tiny (generation 1)" in out) == (0, True, True)
    assert json.loads(fleet("restore", "--json")[1])["copies"][0]["changes"] == 1


def test_without_any_copy(fleet):
    assert fleet("restore")[:2] == (0, "There is no copy of the store.\n")
    code, _, err = fleet("restore", "latest", "--yes")
    assert (code, 'There is no copy "latest"' in err) == (1, True)


def test_a_copy_is_put_back_after_a_question_only(fleet):
    fleet("backup")
    fleet.paths.database.unlink()
    code, _, err = fleet("restore", "latest")
    assert (code, "in place of the store?" in err) == (1, True)
    assert not fleet.paths.database.exists()
    code, out, _ = fleet("restore", "latest", "--yes")
    assert (code, "tiny (generation 1), 0 keys" in out) == (0, True)
    open_store(fleet.paths, "home").close()


def test_beginning_anew_takes_the_fleets_name(fleet):
    code, _, err = fleet("restore", "--begin-anew", "away", "--yes")
    assert (code, "This fleet is home, not away" in err) == (1, True)
    code, out, _ = fleet("restore", "--begin-anew", "home", "--yes", "--json")
    assert (code, json.loads(out)["deployments"]) == (0, [])


def test_nothing_is_adopted_if_no_controller_waits(fleet):
    code, _, err = fleet("restore", "--adopt", "--yes")
    assert (code, "No controller waits" in err) == (1, True)


def test_the_three_ways_exclude_each_other(fleet):
    code, _, err = fleet("restore", "latest", "--adopt")
    assert (code, "exclude each other" in err) == (1, True)


def test_a_fleet_without_a_store_has_nothing_to_copy(fleet):
    fleet.paths.database.unlink()
    code, _, err = fleet("backup")
    assert (code, "There is no store" in err) == (1, True)


def test_what_other_nodes_keep_is_shown_with_what_is_wrong(fleet, monkeypatch):
    newest = KeptCopy(name="20261201T003000123456Z-asked.db", bytes=9, since_s=12.0)
    at = datetime.fromtimestamp(newest.at).strftime("%Y-%m-%d %H:%M:%S")
    asked = []

    async def found(session, made=""):
        asked.append(made)
        return (
            CopyElsewhere(node="b", copy=newest, trouble="", known=True),
            CopyElsewhere(node="c", copy=newest, trouble="its disk is full", known=True),
            CopyElsewhere(node="d", copy=None, trouble="its disk is full", known=True),
            CopyElsewhere(node="e", copy=None, trouble="it does not answer", known=False),
        )

    monkeypatch.setattr(backup, "copies_elsewhere", found)
    lines = [
        f"Kept on b: the newest, of {at}, for 12 s.",
        f"Kept on c: an older one, of {at}; not the newest: its disk is full.",
        "Not on d: its disk is full.",
        "Not known of e: it does not answer.",
    ]
    assert fleet("backup")[1].splitlines()[-4:] == lines
    (copy,) = fleet.paths.backups.glob("*.db")
    assert asked == [copy.name], "the copy that was just made is waited for"
    assert fleet("restore")[1].splitlines()[1:5] == lines
    kept = json.loads(fleet("restore", "--json")[1])["kept"]
    assert kept[0] == {"node": "b", "copy": newest.model_dump(mode="json"), "trouble": ""}
    assert kept[3] == {"node": "e", "copy": None, "trouble": "it does not answer"}
