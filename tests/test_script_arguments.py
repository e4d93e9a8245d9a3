"""Arguments of scripts: `--help` prints the usage, and a typo starts and writes nothing."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHELL = ("demo", "pictures", "check", "test", "test-full", "test-pythons", "setup-lab")
PYTHON = sorted(
    file
    for file in (ROOT / "scripts").glob("*.py")
    if file.stem != "arguments" and '__name__ == "__main__"' in file.read_text()
)


@pytest.fixture
def copy(tmp_path):
    """Scripts without those that set up: none of them gets that far."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("setup", "setup-lab", "setup-sglang"):
        (tmp_path / "scripts" / f"other-{name}").write_bytes((tmp_path / "scripts" / name).read_bytes())
        (tmp_path / "scripts" / name).write_text("#!/bin/sh\necho begun\nexit 9\n")
    return tmp_path


def run(copy, name, *arguments):
    file = "other-setup-lab" if name == "setup-lab" else name
    return subprocess.run(
        ["bash", f"scripts/{file}", *arguments],
        cwd=copy, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", SHELL)
def test_help_is_the_comment_at_the_head(copy, name):
    done = run(copy, name, "--help")
    comment = (ROOT / "scripts" / name).read_text().splitlines()[1].removeprefix("# ")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(comment)
    assert "set -euo" not in done.stdout


@pytest.mark.parametrize("name", ["demo", "pictures", "check", "setup-lab"])
def test_an_unknown_argument_starts_nothing(copy, name):
    done = run(copy, name, "--halp")
    assert (done.returncode, done.stdout) == (1, "")
    assert "unknown argument: --halp" in done.stderr


@pytest.mark.parametrize("file", PYTHON, ids=lambda file: file.stem)
def test_every_script_in_python_checks_its_arguments(file):
    assert re.search(r"check_arguments\(|ArgumentParser\(", file.read_text())


def test_a_typo_writes_nothing():
    for arguments, code in ((["--help"], 0), (["--chek"], 1)):
        done = subprocess.run(
            [sys.executable, "scripts/sbom.py", *arguments],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code
        assert "--check" in done.stdout + done.stderr
        assert "wrote" not in done.stdout
