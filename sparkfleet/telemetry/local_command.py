"""Commands of this node whose output is a reading: with a time limit, as one may hang with its driver."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence

COMMAND_S = 5.0
"""Usual time limit. `nvidia-smi` takes 50 ms, and minutes if the driver is stuck."""

END_S = 1.0
"""Time that a killed one has to end: another one of its program may follow at once."""

_stuck: dict[str, subprocess.Popen[str]] = {}
"""Commands, by their program, that had to be killed and may live on: one that waits in its driver ends with that."""


def run_here(argv: Sequence[str], limit_s: float = COMMAND_S) -> tuple[int, str, str]:
    """Exit code, output and errors of a command. Raises OSError and SubprocessError.

    Returns within its time limit even if the command cannot be killed; then it is not started a second time beside it.
    """
    key = argv[0]
    for ended in [one for one, process in _stuck.items() if process.poll() is not None]:
        del _stuck[ended]
    if key in _stuck:
        raise subprocess.TimeoutExpired(argv, limit_s)
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(argv, stdin=none, stdout=pipe, stderr=pipe, text=True, errors="replace")
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        _stuck[key] = process
        raise
    return process.returncode, out, err
