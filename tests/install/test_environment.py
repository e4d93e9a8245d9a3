import asyncio
import base64
import io
import json
import os
import subprocess
import sys
import zipfile

import pytest
from fake_channel import FakeChannel, program_request, program_result

from sparkfleet.errors import NodeError
from sparkfleet.install import release as release_module
from sparkfleet.install.environment import PROGRAM, install, python_version
from sparkfleet.remote.agent import ProgramError, call
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.local import LocalChannel
from sparkfleet.remote.unreachable import Suspected

OWN = f"3.{sys.version_info.minor}"


def node(name, *pythons, made="/home/me/env/bin/python", steps=()):
    """A node with these Pythons, on which everything works."""

    def answer(call):
        request = program_request(call)
        if request["verb"] == "look":
            found = [[version, f"/usr/bin/python{version}"] for version in pythons]
            return said(program_result({"pythons": found}))
        node.launches[name] = request
        events = ({"event": "step", "text": step} for step in steps)
        return said(program_result({"python": made, "fresh": True}, *events))

    return FakeChannel(name, {PROGRAM.argv: answer})


@pytest.fixture
def without_ray(monkeypatch):
    """A Python with the command line only."""
    monkeypatch.setattr(release_module, "find_spec", lambda name: None)
    release_module.release.cache_clear()
    yield
    release_module.release.cache_clear()


def said(stdout, exit_code=0):
    return Completed(argv=PROGRAM.argv, exit_code=exit_code, stdout=stdout, stderr="")


node.launches = {}


async def test_every_node_gets_the_same_with_a_python_that_all_have():
    channels = {"a": node("a", "3.12", "3.11"), "b": node("b", "3.11", "3.13")}
    pythons, unreached = await install(channels, None, lambda name, step: None)
    assert unreached == {}
    assert pythons == {"a": "/home/me/env/bin/python", "b": "/home/me/env/bin/python"}
    assert {order["python"] for order in node.launches.values()} == {"/usr/bin/python3.11"}
    assert node.launches["a"]["name"] == node.launches["b"]["name"]


async def test_another_choice_of_nodes_has_an_environment_of_its_own_python():
    """With b away a's was made of 3.12, and used again when b came back with 3.11 only: b never joined."""
    await install({"a": node("a", "3.12", "3.11")}, None, lambda name, step: None)
    alone = node.launches["a"]
    both = {"a": node("a", "3.12", "3.11"), "b": node("b", "3.11")}
    await install(both, None, lambda name, step: None)
    together = node.launches["a"]
    assert (alone["python"], together["python"]) == ("/usr/bin/python3.12", "/usr/bin/python3.11")
    assert [one["name"].partition("-")[2] for one in (alone, together)] == ["py3.12", "py3.11"]


async def test_the_python_that_the_fleet_runs_on_is_taken_if_all_have_it():
    await install({"a": node("a", "3.12", "3.11")}, None, lambda name, step: None, "3.11")
    assert node.launches["a"]["python"] == "/usr/bin/python3.11"
    await install({"a": node("a", "3.12")}, None, lambda name, step: None, "3.11")
    assert node.launches["a"]["python"] == "/usr/bin/python3.12"


@pytest.mark.parametrize(
    ("python", "version"),
    [
        ("/home/me/.local/share/sparkfleet/env/0123456789ab-py3.12/bin/python", "3.12"),
        ("/home/me/.local/share/sparkfleet/env/0123456789ab/bin/python", ""),
        ("/usr/bin/python3.12", ""),
    ],
)
def test_the_version_of_an_environment_is_in_its_name(python, version):
    assert python_version(python) == version


async def test_this_machine_uses_the_environment_that_runs():
    channels = {"a": LocalChannel("a")}
    assert await install(channels, None, lambda name, step: None) == ({"a": sys.executable}, {})


async def test_a_node_that_is_off_keeps_no_other_one_without_an_environment():
    """One of eight without power: nothing could be started, staged or applied on the seven others."""
    off = FakeChannel("b", {PROGRAM.argv: Suspected("b: no answer within 10 s")})
    node.launches.clear()
    pythons, unreached = await install(
        {"a": node("a", "3.12"), "b": off, "c": node("c", "3.12")}, None, lambda name, step: None
    )
    assert (list(pythons), list(unreached), list(node.launches)) == (["a", "c"], ["b"], ["a", "c"])
    with pytest.raises(Suspected):
        await install({"b": off}, None, lambda name, step: None)


@pytest.mark.usefixtures("without_ray")
async def test_this_machine_is_no_node_without_ray():
    with pytest.raises(NodeError, match="a is this machine, and Ray is not installed") as caught:
        await install({"a": LocalChannel("a"), "b": node("b", OWN)}, None, lambda name, step: None)
    assert "pip install 'sparkfleet[local]'" in caught.value.do


@pytest.mark.usefixtures("without_ray")
async def test_other_machines_are_nodes_without_ray_here():
    node.launches.clear()
    await install({"b": node("b", OWN)}, None, lambda name, step: None)
    assert any(pin.startswith("ray==") for pin in node.launches["b"]["pins"])


async def test_beside_this_machine_its_own_python_counts():
    channels = {"a": LocalChannel("a"), "b": node("b", "3.99", OWN)}
    await install(channels, None, lambda name, step: None)
    assert node.launches["b"]["python"] == f"/usr/bin/python{OWN}"


async def test_nodes_without_a_common_python_are_an_error():
    channels = {"a": node("a", "3.12"), "b": node("b", "3.11"), "c": node("c")}
    with pytest.raises(NodeError, match="no Python version in common") as caught:
        await install(channels, None, lambda name, step: None)
    assert "a has 3.12" in caught.value.what
    assert "c has none" in caught.value.what


async def test_a_failure_has_the_output_of_pip():
    def answer(call):
        if program_request(call)["verb"] == "look":
            return said(program_result({"pythons": [["3.12", "/p"]]}))
        means = "No matching distribution found for ray"
        return said(json.dumps({"event": "error", "what": "pip install failed", "means": means}) + "\n", 1)

    with pytest.raises(NodeError, match="pip install failed") as caught:
        await install({"a": FakeChannel("a", {PROGRAM.argv: answer})}, None, lambda name, step: None)
    assert "No matching distribution" in caught.value.means
    assert "--wheels" in caught.value.do


@pytest.mark.parametrize("said", ["", "Welcome to spark1!", "[1, 2]", '"text"'])
async def test_a_node_with_unexpected_output_is_an_error(said):
    channel = FakeChannel("a", {PROGRAM.argv: said})
    with pytest.raises(NodeError, match="its Python did not make sparkfleet's environment"):
        await install({"a": channel}, None, lambda name, step: None)


async def remote(home, **order):
    """The result of the real program, in a home of its own."""
    channel = LocalChannel("a")

    class AtHome:
        node = "a"

        async def run(self, argv, **more):
            return await channel.run((sys.executable, *argv[1:]), env={"HOME": str(home)}, **more)

    return await call(AtHome(), PROGRAM, {"verb": "make", "pins": [], "wheels": None, **order})


async def test_an_interrupted_environment_is_made_again(tmp_path):
    """An environment without its `complete` file is thrown away; here the order fails, and the answer is an error."""
    half = tmp_path / ".local/share/sparkfleet/env/abc"
    half.mkdir(parents=True)
    (half / "leftover").touch()
    order = {"name": "abc", "python": "/no/such/python", "wheel_name": "x.whl", "wheel": "", "pip": ""}
    with pytest.raises(ProgramError, match="/no/such/python"):
        await remote(tmp_path, **order)
    assert not (half / "leftover").exists()


def begun(home, request):
    """The real program, which works on a request."""
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    program = subprocess.Popen([sys.executable, *PROGRAM.argv[1:]], env=env, stdin=subprocess.PIPE)
    program.stdin.write(PROGRAM.order(request))
    program.stdin.close()
    return program


async def test_a_killed_program_whose_command_goes_on_is_waited_for(tmp_path):
    """The next one used to delete and fill the directory in which the pip of the killed one was still writing."""
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(f"#!/bin/sh\necho begins >> {log}\nsleep 1\necho ends >> {log}\nexit 1\n")
    python.chmod(0o755)
    order = {"name": "abc", "python": str(python), "wheel_name": "x.whl", "wheel": "", "pip": ""}
    first = begun(tmp_path, {"verb": "make", "pins": [], "wheels": None, **order})
    async with asyncio.timeout(30):
        while not log.exists():
            await asyncio.sleep(0.02)
    first.kill()
    first.wait()
    with pytest.raises(ProgramError, match="exit code 1"):
        await remote(tmp_path, **order)
    assert log.read_text().split() == ["begins", "ends", "begins", "ends"]


def wheel(name, *needs):
    """The bytes of a package of that name, 1.0, with an empty module."""
    info, content = f"{name}-1.0.dist-info", io.BytesIO()
    fields = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", "Provides-Extra: head"]
    fields += [f"Requires-Dist: {one}" for one in needs]
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(content, "w") as packed:
        packed.writestr(f"{name}.py", "")
        packed.writestr(f"{info}/METADATA", "\n".join(fields) + "\n")
        packed.writestr(f"{info}/WHEEL", tags)
        packed.writestr(f"{info}/RECORD", "")
    return content.getvalue()


async def test_packages_and_settings_of_the_login_do_not_count(tmp_path, monkeypatch):
    """A package in PYTHONPATH was left out of the environment; `user = true` of a pip.conf ended the installation."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/needed-1.0-py3-none-any.whl").write_bytes(wheel("needed"))
    with zipfile.ZipFile(io.BytesIO(wheel("needed"))) as packed:
        packed.extractall(tmp_path / "of-the-login")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "of-the-login"))
    monkeypatch.setenv("PIP_USER", "1")
    made = await remote(
        tmp_path,
        name="abc",
        python=sys.executable,
        wheel_name="top-1.0-py3-none-any.whl",
        wheel=base64.b64encode(wheel("top", "needed")).decode(),
        pip=base64.b64encode(release_module._pip_wheel()).decode(),
        hashes=[],
        wheels=str(tmp_path / "wheels"),
    )
    monkeypatch.delenv("PYTHONPATH")
    done = await LocalChannel("a").run((made["python"], "-c", "import top, needed"))
    assert done.exit_code == 0, done.stderr


def environment(home, python):
    """A complete environment with this interpreter."""
    there = home / ".local/share/sparkfleet/env/abc"
    (there / "bin").mkdir(parents=True)
    (there / "complete").touch()
    (there / "bin/python").symlink_to(python)
    return there


def ends(home, words):
    """An interpreter that ends in this way."""
    python = home / "python"
    python.write_text(f"#!/bin/sh\n{words}\n")
    python.chmod(0o755)
    return python


async def test_one_that_is_there_is_used(tmp_path):
    there = environment(tmp_path, ends(tmp_path, "exit 0"))
    answer = await remote(tmp_path, name="abc")
    assert answer == {"python": str(there / "bin" / "python"), "fresh": False}


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "another version"])
async def test_one_whose_python_is_gone_or_finds_no_sparkfleet_is_made_again(tmp_path, is_gone):
    """After an upgrade of the system it was used for good."""
    there = environment(tmp_path, tmp_path / "gone" if is_gone else ends(tmp_path, "exit 1"))
    order = {"python": "/no/such/python", "wheel_name": "x.whl", "wheel": "", "pip": ""}
    with pytest.raises(ProgramError, match="/no/such/python"):
        await remote(tmp_path, name="abc", **order)
    assert not (there / "complete").exists()


async def test_one_whose_python_is_killed_is_not_deleted(tmp_path):
    """Without free memory nothing is known about it, and the fleet may run from it."""
    there = environment(tmp_path, ends(tmp_path, "kill -9 $$"))
    with pytest.raises(ProgramError, match="ended by signal 9"):
        await remote(tmp_path, name="abc")
    assert (there / "complete").exists()


async def test_steps_are_reported_in_any_chunks_of_output():
    steps = ("creating the Python environment", "installing sparkfleet and Ray")
    text = program_result({"python": "/p", "fresh": True}, *({"event": "step", "text": s} for s in steps))
    looked = program_result({"pythons": [["3.12", "/p"]]})

    class InPieces(FakeChannel):
        async def run(self, argv, *, stdin=b"", on_output=None, **more):
            whole = looked if json.loads(stdin)["request"]["verb"] == "look" else text
            for start in range(0, len(whole), 7):
                on_output(whole[start : start + 7].encode())
            return said(whole)

    heard = []
    await install({"a": InPieces("a")}, None, lambda name, step: heard.append(step))
    assert heard == list(steps)
