"""Commands of this node whose output is a reading: with a time limit, as one may hang with its driver."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

COMMAND_S = 5.0
"""Time limit. `nvidia-smi` takes 50 ms, and minutes if the driver is stuck."""


def run_here(argv: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command. Raises OSError and SubprocessError."""
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=COMMAND_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout, done.stderr
