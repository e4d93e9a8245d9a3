"""`scripts/setup` on a machine that lacks what it needs."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("script", ["setup", "setup-sglang"])
def test_a_python_that_cannot_make_an_environment_is_not_taken(tmp_path, script):
    """Ubuntu's, without python3-venv: an environment without pip was left behind, and the next run failed at it."""
    (tmp_path / "ensurepip.py").write_text("raise ImportError('no ensurepip')\n")
    venv = tmp_path / "venv"
    argument = [] if script == "setup" else [str(venv)]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "SPARKFLEET_VENV": str(venv)}
    done = subprocess.run(
        ["bash", f"scripts/{script}", *argument],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "sudo apt install python3-venv" in done.stderr
    assert not venv.exists()
