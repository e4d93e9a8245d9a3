import io
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import PurePosixPath

import pytest

from sparkfleet.install.release import NOT_ON_NODES, ON_NODES, release


@pytest.fixture(scope="module")
def made():
    return release.__wrapped__()


def test_the_same_sparkfleet_makes_the_same_release(made):
    assert release.__wrapped__() == made


def test_the_wheel_is_whole(made, tmp_path):
    names = zipfile.ZipFile(io.BytesIO(made.wheel)).namelist()
    assert "sparkfleet/node_daemon/node_cli.py" in names
    assert "sparkfleet/knowledge/rules/rules.yaml" in names
    assert not any("__pycache__" in name for name in names)
    assert not [name for name in names if re.search(r"fake\w*\.py$", name)], "fakes are for tests"
    left = {name.removeprefix("sparkfleet/") for name in names if name.startswith("sparkfleet/")}
    needed = {*ON_NODES, *(f"{PurePosixPath(one).parent}/__init__.py" for one in ON_NODES)}
    assert {name for name in left if name.startswith(NOT_ON_NODES)} == needed
    record = (
        zipfile.ZipFile(io.BytesIO(made.wheel)).read(next(n for n in names if n.endswith("RECORD"))).decode()
    )
    assert {line.partition(",")[0] for line in record.splitlines()} == set(names)


IMPORT_ALL = """
import importlib, pkgutil, sparkfleet
for module in pkgutil.walk_packages(sparkfleet.__path__, "sparkfleet."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(sparkfleet.__file__)
"""


def test_every_released_module_imports_without_the_excluded_parts(made, tmp_path):
    zipfile.ZipFile(io.BytesIO(made.wheel)).extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(str(tmp_path))


def test_installed_versions_are_pinned(made):
    assert f"ray=={metadata.version('ray')}" in made.pins
    assert any(pin.startswith("uvloop==") for pin in made.pins)
    assert not any(pin.startswith(("sparkfleet==", "torch==", "mypy==")) for pin in made.pins)


def test_a_node_gets_the_same_from_a_machine_without_ray(made, monkeypatch):
    """The versions of constraints.txt, which are installed here, are those that were tested."""
    monkeypatch.setattr("sparkfleet.install.release.find_spec", lambda name: None)
    monkeypatch.setattr("sparkfleet.install.release.pins_of", lambda extras: iter(["rich==99.0"]))
    assert release.__wrapped__() == made


@pytest.mark.full  # in every change the fleet of two Sparks is installed so
def test_pip_installs_the_wheel_and_runs_from_its_own(made, tmp_path):
    wheel, pip = tmp_path / made.wheel_name, tmp_path / "pip-any-py3-none-any.whl"
    wheel.write_bytes(made.wheel)
    pip.write_bytes(made.pip)
    target = tmp_path / "target"
    argv = [
        sys.executable,
        f"{pip}/pip",
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
        str(wheel),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    code = "import sparkfleet, sys; print(sparkfleet.__file__)"
    seen = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout.strip().startswith(str(target))
