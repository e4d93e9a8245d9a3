"""A node installs the wheels that were tested, and runs no code of a package to install it: real pip, small packages."""

import asyncio
import base64
import hashlib
import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from sparkfleet.errors import NodeError
from sparkfleet.install import environment
from sparkfleet.install.environment import PROGRAM, install
from sparkfleet.install.release import Release, _pip_wheel, _zip, hashes_of, pins_of, release
from sparkfleet.remote.agent import ProgramError, call
from sparkfleet.remote.local import LocalChannel

PIP = _pip_wheel()


def wheel(name, *requires, says="tested"):
    """A wheel of one module."""
    info = f"{name}-1.0.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    content = {
        f"{name}.py": f"says = {says!r}\n".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return _zip(content, f"{info}/RECORD")


OURS = wheel("ours", "needed")
TESTED = wheel("needed")
HASHED = f"needed==1.0 --hash=sha256:{'0' * 64} --hash=sha256:{hashlib.sha256(TESTED).hexdigest()}"


@pytest.fixture
def index(tmp_path):
    """A directory in place of a package index."""
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


@pytest.fixture
def node(tmp_path, index):
    """A node whose home and whose pip configuration are the test's."""
    channel = LocalChannel("a")

    class Node:
        node = "a"

        async def run(self, argv, **more):
            env = {
                "HOME": str(tmp_path),
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(index),
                "PIP_CONFIG_FILE": "/dev/null",
            }
            return await channel.run((sys.executable, *argv[1:]), env=env, **more)

    return Node()


async def make(node, hashes=(HASHED,), wheels=None):
    order = {
        "name": "abc", "python": sys.executable, "wheel_name": "ours-1.0-py3-none-any.whl", "wheels": wheels,
        "wheel": base64.b64encode(OURS).decode(), "pip": base64.b64encode(PIP).decode(), "pins": ["needed==1.0"],
    }  # fmt: skip
    made = await call(node, PROGRAM, {"verb": "make", "hashes": list(hashes), **order}, timeout_s=300)
    code = "import needed, ours; print(needed.says)"
    done = await asyncio.to_thread(
        subprocess.run, [made["python"], "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def put(index, content):
    (index / "needed-1.0-py3-none-any.whl").write_bytes(content)


async def test_the_wheels_that_were_tested_are_installed(node, index):
    put(index, TESTED)
    assert await make(node) == "tested"


async def test_another_file_of_the_same_version_is_not_and_the_node_is_named(
    node, index, tmp_path, monkeypatch
):
    put(index, wheel("needed", says="something else"))
    made = Release(
        digest="abc", wheel=OURS, wheel_name="ours-1.0-py3-none-any.whl", pip=PIP, pins=("needed==1.0",), hashes=(HASHED,)
    )  # fmt: skip
    monkeypatch.setattr(environment, "release", lambda: made)
    with pytest.raises(NodeError, match="a: its package index gives another file") as failed:
        await install({"a": node}, None, lambda name, step: None)
    assert "needed==1.0 from file://" in failed.value.means
    assert "Got" in failed.value.means
    assert "`pip config list`" in failed.value.do
    (lock,) = (tmp_path / ".local/share/sparkfleet/env").glob("abc-py3.*.lock")
    assert not (lock.with_suffix("") / "complete").exists()


async def test_no_code_of_a_package_runs_to_build_it(node, index, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in {
            "setup.py": f"open({str(tmp_path / 'it-ran')!r}, 'w')",
            "PKG-INFO": "Metadata-Version: 2.1\nName: needed\nVersion: 1.0\n",
        }.items():
            entry = tarfile.TarInfo(f"needed-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    (index / "needed-1.0.tar.gz").write_bytes(buffer.getvalue())
    with pytest.raises(ProgramError, match="needed"):
        await make(node, hashes=())
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.full
async def test_a_directory_of_wheels_is_its_owners(node, index, tmp_path):
    (tmp_path / "own").mkdir()
    put(tmp_path / "own", wheel("needed", says="built here"))
    assert await make(node, wheels=str(tmp_path / "own")) == "built here"


def test_every_tested_version_has_its_hashes():
    """With the versions of constraints.txt, which are installed here, `up` checks them."""
    made = release()
    assert {*made.pins} <= {line.partition(" ")[0] for line in made.hashes}
    assert all(re.fullmatch(r"[a-z0-9.-]+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in made.hashes)
    native = next(line for line in made.hashes if line.startswith("ray=="))
    assert native.count("--hash=") == 6, "three Pythons on two processors"


def test_a_version_that_nobody_tested_has_none():
    assert hashes_of(("ray==0.0.1",)) == ()


ROOT = Path(__file__).parents[2]


def needed(*extras):
    """Pins of all that sparkfleet brings here with these extras, but for those that no file can have.

    torch's build for CPUs differs between indexes, some have only the one for CUDA, and an environment may be made with a
    setuptools of its own.
    """
    found = set(pins_of(frozenset(extras)))
    assert len(found) > 50
    others = re.compile(r"(torch|setuptools|triton|(nvidia|cuda)-.*)==")
    return {pin for pin in found if not others.match(pin)}


def pins(path):
    """`name==version` of each line, the name as an index has it."""
    lines = [line for line in (ROOT / path).read_text().splitlines() if line and not line.startswith("#")]
    parts = [line.split()[0].partition("==") for line in lines]
    return [f"{canonicalize_name(name)}=={version}" for name, _, version in parts]


def test_setup_checks_every_package():
    """A package that changes in constraints.txt and not here would be installed by its version alone."""
    files = ["sparkfleet/install/hashes.txt", "scripts/hashes-local.txt", "scripts/hashes-dev.txt"]
    node, local, dev = (pins(file) for file in files)
    assert sorted([*node, *local, *dev]) == sorted(pins("constraints.txt"))
    assert needed("head", "dev") <= {*node, *local, *dev}
    assert needed("local") <= {*node, *local}
    for file in files:
        lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
        assert all(re.search(r"( --hash=sha256:[0-9a-f]{64})+$", line) for line in lines)


def test_no_script_builds_a_package():
    for script in ("setup", "setup-sglang"):
        assert "export PIP_ONLY_BINARY=:all:" in (ROOT / "scripts" / script).read_text()
