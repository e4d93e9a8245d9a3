"""Runs the host's commands. Always argv, never a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence

from sparkfleet.lab.errors import LabError

_PATIENCE_S = 60.0


def run(argv: Sequence[str], *, stdin: str = "") -> str:
    """Output of `argv`. Raises LabError if the program is missing, fails or does not end within a minute."""
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except FileNotFoundError:
        raise LabError(
            f"The lab needs the command {argv[0]!r}, which is not installed.",
            do="Install iproute2, util-linux, openssh-server, openssh-client and cron.",
        ) from None
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(argv)}` did not end within {_PATIENCE_S:.0f} s.") from None
    if done.returncode:
        printed = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise LabError(f"`{' '.join(argv)}` failed: {' '.join(printed) or done.returncode}")
    return done.stdout


def ip_batch(namespace: str | None, commands: Iterable[Sequence[str]]) -> None:
    """Runs many `ip` commands in one process, in a namespace or (None) on the host. Raises LabError."""
    lines = "".join(" ".join(command) + "\n" for command in commands)
    where = ("-n", namespace) if namespace else ()
    run(("ip", *where, "-batch", "-"), stdin=lines)
