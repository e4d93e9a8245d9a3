"""Declarations of the package about Python, against its own code and files."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SUPPORTED = ("3.11", "3.12", "3.13")
OLDEST = (3, 11)


def sources():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "sparkfleet", "scripts", "benchmarks"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [
        ROOT / name for name in listed.stdout.split("\0") if name.endswith(".py") and (ROOT / name).exists()
    ]


def test_the_declared_versions_agree():
    needed = SpecifierSet(PROJECT["project"]["requires-python"])
    tried = [f"3.{minor}" for minor in range(9, 16)]
    assert tuple(one for one in tried if f"{one}.5" in needed) == SUPPORTED
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert tuple(named) == SUPPORTED
    first = f"py{''.join(map(str, OLDEST))}"
    assert PROJECT["tool"]["ruff"]["target-version"] == first
    assert PROJECT["tool"]["mypy"]["python_version"] == SUPPORTED[0]


def test_no_module_has_syntax_of_a_later_python():
    """Under a later Python, too, which would accept more."""
    for path in sources():
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=OLDEST)


# Python 3.12 and later parse nested quotes of an f-string whatever `feature_version` is; tests run on 3.11 first.
@pytest.mark.parametrize(
    "source",
    ["type Name = int", "def first[T](of: list[T]) -> T: ..."]
    + (["def f(): return f'{'a'}'"] if sys.version_info < (3, 12) else []),
)
def test_later_syntax_is_recognised(source):
    with pytest.raises(SyntaxError):
        ast.parse(source, feature_version=OLDEST)
    assert OLDEST == (3, 11)
