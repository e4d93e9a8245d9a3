"""Command line of our program on a node, `node_daemon/node_cli.py`, which every layer above starts."""

from __future__ import annotations

import os

from sparkfleet.runtime.files.state_probe import WATCHDOG


def node_command(python: str, verb: str, *words: str) -> tuple[str, ...]:
    """Runs a verb with this interpreter; `-P` keeps the working directory out of its imports."""
    return (python, "-P", "-m", os.fsdecode(WATCHDOG), verb, *words)
