"""Paths of a command line of pytest, which may be given in any order."""

import subprocess
import sys
from pathlib import Path

from path_order import in_order_of_the_tree

ROOT = Path(__file__).parents[1]
NESTED = "tests/gateway/http/test_server_socket.py"
ABOVE = "tests/test_units.py"
BEHIND = "tests/gateway/test_candidates.py"
"""A test whose fixtures are in `tests/gateway/conftest.py`."""


def test_a_directory_s_files_are_side_by_side(monkeypatch):
    monkeypatch.chdir(ROOT)
    given = [NESTED, ABOVE, f"{BEHIND}::test_a", "tests/cli", f"{BEHIND}::test_b"]
    assert in_order_of_the_tree(given) == [
        ABOVE,
        "tests/cli",
        f"{BEHIND}::test_a",
        f"{BEHIND}::test_b",
        NESTED,
    ]


def test_no_order_loses_a_fixture():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", NESTED, ABOVE, BEHIND]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stdout[-2000:]
