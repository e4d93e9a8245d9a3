"""A second head is refused before anything changes, and other fleets on the same nodes are named."""

import json
import socket
import subprocess
import sys

import pytest
from control_values import inventory as two

from sparkfleet.errors import ControlError, WrongFleetError
from sparkfleet.fleet.nodes.surroundings import (
    NodeRole,
    NodeSurroundings,
    OtherFleet,
    other_fleet_lines,
    require_free,
    surroundings_of,
)
from sparkfleet.fleet.session import Session
from sparkfleet.runtime.files import state_probe


def inventory(head):
    """Two nodes, one of them the head."""
    return two("a", "b").model_copy(update={"head": head})


def head(node="a", live=True, term=0):
    role = NodeRole(verb="up", node=node, head=node, ray="10.0.0.1:6379", live=live, term=term)
    return NodeSurroundings(id="one", role=role, store=True)


def member(node="b", of="a", live=True, fleet_id="one"):
    role = NodeRole(verb="join", node=node, head=of, ray="10.0.0.1:6379", live=live)
    return NodeSurroundings(id=fleet_id, role=role)


NEW = NodeSurroundings()


@pytest.mark.parametrize(
    ("named", "a", "b", "words"),
    [
        ("b", head(), member(), "a is the head of fleet home, which is running"),
        ("b", head(live=False), member(live=False), "a is the head of fleet home, which is not running now"),
        (
            "b",
            NodeSurroundings(store=True),
            NEW,
            "a has the state of fleet home: it was its head, and b has none",
        ),
        ("b", NEW, member(of="c"), "b belongs to fleet home of head c, which is running"),
        ("a", NEW, member(of="c"), "b belongs to fleet home of head c, which is running"),
        ("a", head(), member(of="", fleet_id="two"), r"b belongs to fleet home of head 10\.0\.0\.1:6379"),
        ("a", member("a", "b"), head("b"), "a belongs to fleet home of head b, which is running"),
        ("b", head(term=2), head("b", term=2), "a is the head of fleet home, which is running"),
        ("a", head(term=1), head("b", term=2), "b is the head of fleet home, which is running"),
    ],
)
def test_a_node_with_another_head_is_refused_with_that_head(named, a, b, words):
    with pytest.raises(ControlError, match=words) as caught:
        require_free(inventory(named), {"a": a, "b": b})
    assert "Nothing was changed" in caught.value.means
    assert "fleet:" in caught.value.do


@pytest.mark.parametrize(
    ("named", "a", "b"),
    [
        ("a", NEW, NEW),
        ("a", head(), member()),
        ("a", head(live=False), member(live=False)),
        ("a", NEW, member(of="c", live=False)),
        ("a", head(), member(of="")),
        ("a", NEW, member(of="a")),
        ("b", NodeSurroundings(store=True), NodeSurroundings(store=True)),
        ("b", head(term=1), head("b", term=2)),
    ],
)
def test_a_fleets_own_nodes_are_free(named, a, b):
    require_free(inventory(named), {"a": a, "b": b})


def test_down_of_another_head_is_refused_while_that_lives_and_helps_afterwards():
    with pytest.raises(ControlError, match="a is the head"):
        require_free(inventory("b"), {"a": head(), "b": member()}, verb="stops")
    require_free(inventory("b"), {"a": head(live=False), "b": member(live=False)}, verb="stops")


def test_a_node_that_is_not_reached_is_not_judged():
    require_free(inventory("b"), {"b": NEW})


def test_other_fleets_are_named_with_their_nodes():
    lab = OtherFleet(fleet="lab", root="/x/lab", role=member(of="c").role)
    unread = OtherFleet(fleet="mine", root="/home/x/mine")
    around = {"a": NodeSurroundings(others=(lab, lab)), "b": NodeSurroundings(others=(lab, unread))}
    first, second = other_fleet_lines(around)
    assert first.startswith("Fleet lab (head c) also runs on a, b: ")
    assert first.endswith("with its inventory (`fleet: lab`, `head: c`) stops it.")
    assert second.startswith("Fleet mine (state in /home/x/mine) also runs on b: ")


@pytest.fixture
def states(tmp_path, monkeypatch):
    """State directories of fleets on this machine."""
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path))

    def make(fleet, role, ray=None):
        root = tmp_path / fleet
        root.mkdir()
        (root / "role.json").write_text(json.dumps(role))
        (root / "ray.token").write_text("secret")
        if ray:
            (root / "address.json").write_text(json.dumps({"ray": ray}))
        return root

    return make


UP = {"python": "p", "up": {"inventory": {"head": "this"}}, "join": None}


async def test_the_state_on_this_machine_has_its_role_and_what_lives_beside_it(states, tmp_path):
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    with socket.create_server(("127.0.0.1", 0)) as ray:
        address = f"127.0.0.1:{ray.getsockname()[1]}"
        states("home", {"python": "p", "up": None, "join": {"node": "this", "ray": address}})
        states("lab", UP, address)
        states("old", UP, "127.0.0.1:1")
        async with Session(file) as session:
            around = await surroundings_of(session.inventory, session.channels)
    assert around["this"].role == NodeRole(verb="join", node="this", head="", ray=address, live=True)
    assert (around["this"].store, around["this"].generations) == (False, {})
    beside = {one.fleet for one in around["this"].others if one.root.startswith(str(tmp_path))}
    assert beside == {"lab"}, "what does not run takes no memory"
    with pytest.raises(ControlError, match="this belongs to fleet home of head 127"):
        require_free(session.inventory, around)


def test_a_fleet_whose_watchdog_runs_lives_between_two_starts_of_ray(states):
    root = states("lab", UP, "127.0.0.1:1")
    assert state_probe.role_of(root, state_probe.watchdogs())["live"] is False
    # It prints, because the words of a new process can be read only a moment after it was made.
    code = "print(flush=True); input()"
    argv = [sys.executable, "-c", code, "sparkfleet.node_daemon.node_cli", "keep", str(root)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watchdog:
        watchdog.stdout.readline()
        assert root in state_probe.watchdogs()
        assert state_probe.role_of(root, state_probe.watchdogs())["live"] is True
        others = state_probe.surroundings(root.parent / "home")["others"]
        assert [one["fleet"] for one in others if one["root"] == str(root)] == ["lab"]
        watchdog.communicate(b"\n")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"up": null, "join": null}', '{"join": {}}'])
def test_a_role_that_cannot_be_read_is_none(states, text):
    root = states("home", {})
    (root / "role.json").write_text(text)
    assert state_probe.surroundings(root)["role"] is None


async def test_every_verb_names_the_head_that_the_inventorys_node_has_joined(states, tmp_path):
    """Its missing address was taken for an unreadable state, and the message asked a person to repair it."""
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    joined = {"node": "this", "head": "b", "ray": "127.0.0.1:1"}
    with socket.create_server(("127.0.0.1", 0)) as ray:
        live = {**joined, "ray": f"127.0.0.1:{ray.getsockname()[1]}"}
        root = states("home", {"python": "p", "up": None, "join": live})
        async with Session(file) as session:
            with pytest.raises(
                WrongFleetError, match="this belongs to fleet home of head b, which is running"
            ):
                await session.find_controller()
            (root / "role.json").write_text(json.dumps({"python": "p", "up": None, "join": joined}))
            assert await session.find_controller() is None, "its head is gone"
