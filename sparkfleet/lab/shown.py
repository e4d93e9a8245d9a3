"""Waits until nodes show in /sys what was done to them: their first processes write it, a little later."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection
from pathlib import Path

from sparkfleet.lab.errors import LabError
from sparkfleet.lab.inside.simulated_state import ANSWERED, ASKED, REFRESH
from sparkfleet.lab.state import State, replace_file

_WAIT_S = 30.0
_STEP_S = 0.005


def await_shown(state: State, nodes: Collection[str] | None = None) -> None:
    """Lets running nodes, or those of `nodes` that run, update their /sys, and waits for it. Raises LabError."""
    token = secrets.token_hex(8)
    asked = [node for node in state.powered if nodes is None or node in nodes]
    for node in asked:
        replace_file(state.node_path(node, "state", ASKED.name), token)
        os.kill(state.inits[node].pid, REFRESH)
    end = time.monotonic() + _WAIT_S
    for node in asked:
        answer = state.node_path(node, "state", ANSWERED.name)
        while _read(answer) != token and state.inits[node].alive:
            if time.monotonic() > end:
                raise LabError(
                    f"/sys of {node} does not show the change after {_WAIT_S:.0f} s.",
                    do=f"Its first process, {state.inits[node].pid}, may be stopped.",
                )
            time.sleep(_STEP_S)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
