"""Updates /sys of running nodes after a change. By themselves their first processes write it up to a second later."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection
from contextlib import suppress

from sparkfleet.lab.errors import LabError
from sparkfleet.lab.inside.node_settings import ANSWERED, ASKED, REFRESH, token_of
from sparkfleet.lab.state import State, replace_file

_WAIT_S = 30.0
_STEP_S = 0.005


def refresh_sys(state: State, nodes: Collection[str] | None = None) -> None:
    """Updates /sys of all running nodes, or of those of `nodes` that run, and waits for it. Raises LabError."""
    token = secrets.token_hex(8)
    asked = [node for node in state.powered if nodes is None or node in nodes]
    for node in asked:
        replace_file(state.node_path(node, "state", ASKED.name), token)
        with suppress(ProcessLookupError):  # it has lost its power meanwhile
            os.kill(state.inits[node].pid, REFRESH)
    end = time.monotonic() + _WAIT_S
    for node in asked:
        answer = state.node_path(node, "state", ANSWERED.name)
        while token_of(answer) != token and state.inits[node].alive:
            if time.monotonic() > end:
                raise LabError(
                    f"/sys of {node} does not show the change after {_WAIT_S:.0f} s.",
                    do=f"Its first process may be stopped: kill -CONT {state.inits[node].pid}",
                )
            time.sleep(_STEP_S)
