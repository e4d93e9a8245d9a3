"""A fleet of two simulated Sparks runs another release while its engines go on, and the former one again if that fails."""

import json
import re
from importlib.util import cache_from_source
from pathlib import Path

import pytest
import yaml
from asking import Asking
from node_environment import node_environment
from on_demand_spec import on_demand
from pair_fleet import NODES

pytestmark = [pytest.mark.full, pytest.mark.any_engine]

FAILS = """
raise RuntimeError("this release was packed wrongly")
"""
STUCK = """

async def up(request):
    raise ControlError("it is not to be")
"""


def other_release(fleet, name, version="0.2.0"):
    """An environment of another version, beside the one that the fleet runs from; its interpreter."""
    python = node_environment(fleet.directory / name)
    (about,) = python.parent.parent.glob("lib/*/site-packages/sparkfleet/__init__.py")
    about.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', about.read_text()))
    # Its size is the same and its time perhaps, too: Python would take the former bytecode for up to date.
    Path(cache_from_source(about)).unlink()
    return python


def append(python, module, text):
    """Add text to a module of an environment."""
    (file,) = python.parent.parent.glob(f"lib/*/site-packages/sparkfleet/{module}")
    file.write_text(file.read_text() + text)


def run_from(fleet, python):
    """Name an environment in the inventory; returns the former one."""
    inventory = yaml.safe_load((fleet.directory / "inventory.yaml").read_text())
    former, inventory["environment"] = inventory["environment"], str(python)
    fleet.write("inventory.yaml", yaml.safe_dump(inventory))
    return former


@pytest.fixture(scope="module")
def served(pair):
    """Both Sparks serve one model with TP=2."""
    pair.serve(pair.spec("parallel: {tp: 2}\n"))
    return pair


def pids(fleet):
    return {node: fleet.engines(node).keys() for node in NODES}


def watchdogs(fleet, node):
    """Interpreters of the watchdogs of a node."""
    words = "sparkfleet.node_daemon.node_cli keep"
    return {line.split()[0] for line in fleet.listed(node).values() if words in line}


def test_engines_go_on_under_another_release(served):
    before = pids(served)
    python = other_release(served, "next")
    former = run_from(served, python)
    try:
        with Asking(served, "tiny", streams=2, tokens=8) as asking:
            done = json.loads(served.ok("upgrade", "--yes", "--json"))
            served.until(lambda: served.run("ask", "tiny", "What is a rail?")[0] == 0, timeout=60)
        assert (done["changed"], done["not_kept"], len(done["kept"])) == (True, [], 1), done
        assert pids(served) == before
        assert {node: watchdogs(served, node) for node in NODES} == {node: {str(python)} for node in NODES}
        assert asking.ends["whole"] > 0, asking.ends
        again = json.loads(served.ok("upgrade", "--yes", "--json"))
        assert (done["from"], done["to"], again["changed"]) == ("0.1.0", "0.2.0", False), (done, again)
    finally:
        run_from(served, former)
        served.ok("upgrade", "--yes", "--force")
    assert pids(served) == before


def test_a_release_that_cannot_run_changes_nothing(served):
    before = pids(served)
    python = other_release(served, "broken")
    append(python, "gateway/ray_serve.py", FAILS)
    former = run_from(served, python)
    ray = {
        node: sorted(pid for pid, line in served.listed(node).items() if "raylet" in line) for node in NODES
    }
    try:
        code, _, errors = served.run("upgrade", "--yes")
        assert (code != 0, "packed wrongly" in errors) == (True, True), errors
    finally:
        run_from(served, former)
    after = {
        node: sorted(pid for pid, line in served.listed(node).items() if "raylet" in line) for node in NODES
    }
    assert (pids(served), after) == (before, ray)
    assert served.run("ask", "tiny", "What is a rail?")[0] == 0


def test_a_release_that_does_not_start_gives_way_to_the_former_one(served):
    before = pids(served)
    python = other_release(served, "stuck")
    # It imports, and its watchdog refuses to start.
    append(python, "node_daemon/node_lifecycle.py", STUCK)
    former = run_from(served, python)
    try:
        code, _, errors = served.run("upgrade", "--yes")
        assert (code != 0, "it is not to be" in errors, "again; engines went on" in errors) == (
            True,
            True,
            True,
        ), errors
    finally:
        run_from(served, former)
    served.until(lambda: served.run("ask", "tiny", "What is a rail?")[0] == 0, timeout=60)
    assert pids(served) == before
    assert {node: watchdogs(served, node) for node in NODES} == {node: {former} for node in NODES}


def test_what_is_on_demand_starts_again_with_a_request_also_if_its_edit_did_not_start(pair):
    """Of the second one the generation before serves, under the other release and the former one."""
    for name in [one["name"] for one in pair.deployments()]:
        pair.ok("delete", "--yes", name)
    files = {
        name: on_demand(name, port, f"memory: 256 MiB\nnodes: [{node}]\n")
        for name, port, node in (("one", 5065, "spark1"), ("two", 5066, "spark2"))
    }
    for name, text in files.items():
        pair.apply(text, f"{name}.yaml")
        assert pair.chat(name).strip()
    pair.ok("unload", "one")
    pair.apply(files["one"].replace('"--start-s"', '"--no-such-option", "--start-s"'), "one.yaml")
    python = other_release(pair, "on-demand")
    former = run_from(pair, python)
    try:
        for options in ((), ("--force",)):
            assert pair.chat("one").strip()
            assert pair.chat("two").strip()
            found = {one["name"]: one for one in pair.deployments()}
            assert "generation 2 did not start; generation 1 serves" in found["one"]["detail"]
            done = json.loads(pair.ok("upgrade", "--yes", "--json", *options))
            assert (done["changed"], done["not_kept"]) == (True, []), done
            found = {one["name"]: (one["state"], one["instead"]) for one in pair.deployments()}
            assert found == {"one": ("unloaded", 1), "two": ("unloaded", None)}
            run_from(pair, former)
    finally:
        run_from(pair, former)
        pair.ok("upgrade", "--yes", "--force")
    for name in files:
        assert pair.chat(name).strip()
    assert [len(pair.engines(node)) for node in NODES] == [1, 1], "those of before have ended"
