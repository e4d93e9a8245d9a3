import json
import subprocess
import sys
from importlib.resources import files

import pytest

from sparkfleet.errors import NodeError
from sparkfleet.nodes.base import Completed
from sparkfleet.nodes.fake import FakeChannel
from sparkfleet.nodes.install.environment import install
from sparkfleet.nodes.local import LocalChannel

OWN = f"3.{sys.version_info.minor}"


def node(name, *pythons, made="/home/me/env/bin/python", steps=()):
    """A node with these Pythons, on which everything works."""

    def answer(call):
        if call.argv[-1] == "look":
            lines = [{"pythons": [[version, f"/usr/bin/python{version}"] for version in pythons]}]
        else:
            node.orders[name] = json.loads(call.stdin)
            lines = [*({"step": step} for step in steps), {"python": made, "fresh": True}]
        return Completed(argv=call.argv, exit_code=0, stdout="\n".join(map(json.dumps, lines)), stderr="")

    return FakeChannel(name, {("python3", "-c"): answer})


node.orders = {}


async def test_every_node_gets_the_same_with_a_python_that_all_have():
    channels = {"a": node("a", "3.12", "3.11"), "b": node("b", "3.11", "3.13")}
    pythons = await install(channels, None, lambda name, step: None)
    assert pythons == {"a": "/home/me/env/bin/python", "b": "/home/me/env/bin/python"}
    assert {order["python"] for order in node.orders.values()} == {"/usr/bin/python3.11"}
    assert node.orders["a"]["digest"] == node.orders["b"]["digest"]


async def test_this_machine_uses_the_environment_that_runs():
    channels = {"a": LocalChannel("a")}
    assert await install(channels, None, lambda name, step: None) == {"a": sys.executable}


async def test_beside_this_machine_its_own_python_counts():
    channels = {"a": LocalChannel("a"), "b": node("b", "3.99", OWN)}
    await install(channels, None, lambda name, step: None)
    assert node.orders["b"]["python"] == f"/usr/bin/python{OWN}"


async def test_nodes_without_a_python_in_common_are_told():
    channels = {"a": node("a", "3.12"), "b": node("b", "3.11"), "c": node("c")}
    with pytest.raises(NodeError, match="no Python in common") as caught:
        await install(channels, None, lambda name, step: None)
    assert "a has 3.12" in caught.value.what
    assert "c has none" in caught.value.what


async def test_a_failure_says_what_pip_said():
    def answer(call):
        if call.argv[-1] == "look":
            return Completed(argv=call.argv, exit_code=0, stdout='{"pythons": [["3.12", "/p"]]}', stderr="")
        line = json.dumps({"error": "pip install failed", "log": ["No matching distribution found for ray"]})
        return Completed(argv=call.argv, exit_code=1, stdout=line, stderr="")

    with pytest.raises(NodeError, match="pip install failed") as caught:
        await install({"a": FakeChannel("a", {("python3", "-c"): answer})}, None, lambda name, step: None)
    assert "No matching distribution" in caught.value.means
    assert "--wheels" in caught.value.do


@pytest.mark.parametrize("said", ["", "Welcome to spark1!", "[1, 2]", '"text"'])
async def test_a_node_that_says_something_else_is_told(said):
    channel = FakeChannel("a", {("python3", "-c"): said})
    with pytest.raises(NodeError, match="python3 did not answer"):
        await install({"a": channel}, None, lambda name, step: None)


def remote(verb, home, stdin=""):
    source = (files("sparkfleet.nodes.install") / "remote.py").read_text()
    return subprocess.run(
        [sys.executable, "-c", source, verb],
        input=stdin,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_interrupted_environment_is_made_again(tmp_path):
    """What has no `complete` file is thrown away; here the order cannot be carried out, and that is said."""
    half = tmp_path / ".local/share/sparkfleet/env/abc"
    half.mkdir(parents=True)
    (half / "leftover").touch()
    order = {"digest": "abc", "python": "/no/such/python", "wheel_name": "x.whl", "wheel": "", "pip": ""}
    done = remote("make", tmp_path, json.dumps({**order, "pins": [], "wheels": None}))
    assert done.returncode != 0
    assert not (half / "leftover").exists()


def test_one_that_is_there_is_used(tmp_path):
    there = tmp_path / ".local/share/sparkfleet/env/abc"
    there.mkdir(parents=True)
    (there / "complete").touch()
    done = remote("make", tmp_path, json.dumps({"digest": "abc"}))
    answer = json.loads(done.stdout)
    assert answer == {"python": str(there / "bin" / "python"), "fresh": False}
