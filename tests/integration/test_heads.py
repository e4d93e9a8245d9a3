"""The head of a real fleet: another inventory does not take it over, and a verb moves it with everything that it has."""

import contextlib
import json
import re
import signal

import pytest
import yaml
from on_terminal import OnTerminal
from pair_fleet import NODES, TINY

pytestmark = [pytest.mark.integration, pytest.mark.any_engine]

LARGE = TINY.replace("name: tiny", "name: other")


@pytest.fixture
def fleet(pair):
    """`tiny` serves from the second Spark, `other` from the head."""
    pair.serve(pair.spec("nodes: [spark2]\n"))
    pair.apply(pair.spec("nodes: [spark1]\n", text=LARGE), name="other.yaml")
    pair.until(lambda: pair.is_ready("tiny") and pair.is_ready("other"))
    return pair


def inventory(fleet):
    return yaml.safe_load((fleet.directory / "inventory.yaml").read_text())


@contextlib.contextmanager
def of_somebody(pair, /, **changes):
    """Path of another inventory."""
    path = pair.write("somebody.yaml", yaml.safe_dump({**inventory(pair), **changes}))
    yield path


def pids(fleet, status):
    return {
        one["name"]: one["groups"][0]["ranks"][0]["pid"] for one in status["deployments"] if one["groups"]
    }


@pytest.mark.full
def test_another_head_in_an_inventory_takes_nothing_over(fleet):
    """It used to start a second head, and ended the first one's controller and Ray."""
    before = pids(fleet, fleet.status())
    running = {node: set(fleet.listed(node).values()) for node in NODES}
    file = fleet.write("tiny.yaml", fleet.spec("nodes: [spark2]\n"))
    with of_somebody(fleet, head="spark2") as theirs:
        for argv in (("up",), ("down",), ("apply", "--yes", file), ("status",)):
            code, out, err = fleet.run(*argv, "-i", theirs)
            assert code == 6, (argv, out, err)
            assert re.search(
                "spark1 is the head of fleet|spark2 belongs to fleet .* of head spark1", out + err
            )
            assert "Set `head: spark1` in the inventory" in " ".join((out + err).split())
    alone = {**inventory(fleet)["nodes"]["spark2"]}
    with of_somebody(fleet, head="spark2", nodes={"spark2": alone}, links=[]) as theirs:
        code, out, err = fleet.run("up", "-i", theirs)
        assert code == 6, (out, err)
    assert {node: {word for word in running[node] if "raylet" in word} for node in NODES} == {
        node: {word for word in fleet.listed(node).values() if "raylet" in word} for node in NODES
    }, "Ray was not restarted"
    assert pids(fleet, fleet.status()) == before
    assert fleet.is_sound(fleet.chat())


@pytest.mark.full
def test_another_fleet_on_the_same_nodes_is_named(fleet):
    file = fleet.write("tiny.yaml", fleet.spec("nodes: [spark2]\n"))
    name = inventory(fleet)["fleet"]
    with of_somebody(fleet, fleet="theirs") as theirs:
        _, out, err = fleet.run("plan", file, "-i", theirs)
        assert f"Fleet {name} (head spark1) also runs on spark1, spark2" in out + err
        told = json.loads(fleet.run("status", "--json", "-i", theirs)[1])
    assert {node: [one["fleet"] for one in told["other_fleets"][node]] for node in NODES} == {
        node: [name] for node in NODES
    }
    assert fleet.status()["other_fleets"] == {}


@pytest.mark.full
def test_the_head_is_moved_with_deployments_and_keys_and_engines_live_on(fleet):
    before, status = pids(fleet, fleet.status()), fleet.status()
    generations = {one["name"]: one["generation"] for one in status["deployments"]}
    try:
        out = fleet.ok("move-head", "spark2", "--yes")
        assert "spark2 is the head" in out
        assert inventory(fleet)["head"] == "spark2"
        fleet.until(lambda: all_ready(fleet), timeout=120)
        after = fleet.status()
        assert pids(fleet, after) == before, "no engine was started again"
        assert {one["name"]: one["generation"] for one in after["deployments"]} == generations
        assert all(one["groups"][0]["adopted"] for one in after["deployments"])
        assert re.search(
            r"\w",
            fleet.ok("ask", "tiny", "What is a rail?", "--key", "@" + fleet.write("asking.key", fleet.key)),
        )
        controllers = {node: commands(fleet, node, "ray::ControllerActor") for node in NODES}
        assert controllers == {"spark1": 0, "spark2": 1}
        assert {node: commands(fleet, node, "raylet/raylet ") for node in NODES} == dict.fromkeys(NODES, 1)
        with of_somebody(fleet, head="spark1") as stale:
            code, out, err = fleet.run("up", "-i", stale)
            assert (code, "head spark2" in out + err) == (6, True), (out, err)
    finally:
        if inventory(fleet)["head"] == "spark2":
            fleet.ok("move-head", "spark1", "--yes")
    fleet.until(lambda: all_ready(fleet), timeout=120)
    assert pids(fleet, fleet.status()) == before
    assert fleet.is_sound(fleet.chat())


@pytest.mark.full
def test_the_address_of_the_gateway_moves_with_the_head(fleet):
    """It stayed that of the old head, on which nothing could listen on the new one: the move was undone."""
    addresses = {node.name: node.address for node in fleet.lab.nodes}
    with fleet.listening_at(host=addresses["spark1"]):
        for new in ("spark2", "spark1"):
            out = fleet.ok("move-head", new, "--yes")
            assert f"`gateway: {{host: {addresses[new]}}}`" in " ".join(out.split())
            assert inventory(fleet)["gateway"]["host"] == addresses[new]
            fleet.until(lambda: all_ready(fleet), timeout=120)
            assert fleet.status()["endpoint"].startswith(f"http://{addresses[new]}:")
            key = "@" + fleet.write("asking.key", fleet.key)
            assert re.search(r"\w", fleet.ok("ask", "tiny", "What is a rail?", "--key", key))


@pytest.mark.full
@pytest.mark.parametrize("then", ["complete", "cancel"])
def test_a_move_whose_command_is_killed_is_completed_or_cancelled(fleet, then):
    """Meanwhile no controller acts, `status` names what to do, and the engines serve."""
    before = pids(fleet, fleet.status())
    try:
        with OnTerminal(fleet, "move-head", "spark2", "--yes") as moving:
            moving.until_shown("starting Ray")
            moving.end(signal.SIGKILL)
        code, out, err = fleet.run("status")
        assert code == 5, (out, err)
        assert "`sparkfleet move-head spark2` completes it" in " ".join((out + err).split())
        if then == "cancel":
            fleet.ok("move-head", "spark2", "--cancel")
            assert inventory(fleet)["head"] == "spark1"
        else:
            fleet.ok("move-head", "spark2", "--yes")
            assert inventory(fleet)["head"] == "spark2"
        fleet.until(lambda: all_ready(fleet), timeout=120)
        assert pids(fleet, fleet.status()) == before
        controllers = [commands(fleet, node, "ray::ControllerActor") for node in NODES]
        assert controllers == ([1, 0] if then == "cancel" else [0, 1])
    finally:
        if inventory(fleet)["head"] == "spark2":
            fleet.ok("move-head", "spark1", "--yes")


def all_ready(fleet):
    deployments = fleet.status()["deployments"]
    return len(deployments) == 2 and all(one["state"] == "ready" for one in deployments)


def commands(fleet, node, word):
    return len([one for one in fleet.listed(node).values() if word in one])


@pytest.mark.full
def test_another_hostname_and_no_more_sudo_end_nothing_and_stop_no_restart(fleet):
    """Nodes are known by their names in the inventory, and root only saves time."""
    before = pids(fleet, fleet.status())
    raylet = next(pid for pid, line in fleet.listed("spark2").items() if "raylet/raylet " in line)
    try:
        for node in NODES:
            fleet.lab.set(node, sudo="no")
            assert fleet.lab.exec(node, ["hostname", f"renamed-{node}"], root=True).returncode == 0
        fleet.lab.exec("spark2", ["kill", "-9", str(raylet)], root=True)
        fleet.until(lambda: joined_again(fleet, raylet), timeout=120)
        fleet.until(lambda: all_ready(fleet), timeout=120)
        assert pids(fleet, fleet.status()) == before
        fleet.serve(fleet.anew(fleet.spec("nodes: [spark2]\n")))
        assert fleet.is_sound(fleet.chat())
        assert "Already running" in fleet.ok("up")
    finally:
        for node in NODES:
            fleet.lab.exec(node, ["hostname", node], root=True)


def joined_again(fleet, raylet):
    runs = any("raylet/raylet " in line for pid, line in fleet.listed("spark2").items() if pid != raylet)
    return runs and all(node["joined"] for node in fleet.status()["nodes"])
