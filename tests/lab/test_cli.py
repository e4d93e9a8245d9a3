"""Refusals of the command line of labs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("root")]
REPOSITORY = Path(__file__).parents[2]


def test_users_without_root_get_an_error() -> None:
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-m", "sparkfleet.lab", "up"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "A lab needs root." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "argv",
    [["exec", "spark1", "--name", "nolab"], ["cut", "a/b"],
     ["set", "spark1", "x=y", "--name", "nolab"], ["down", "--name", "A;B"],
     ["up", "--nodes", "99"], ["up", "--name", "x y"], ["up", "--share", "/nowhere"], ["up", "--dir", "/etc"],
     ["up", "--dir", "/tmp/a b"]],
)  # fmt: skip
def test_errors_have_no_traceback(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sparkfleet.lab", *argv],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()
