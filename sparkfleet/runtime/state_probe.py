"""State directory of a fleet on a node, and its content. Standard library only: its source is sent to nodes.

As a program with a fleet's name it prints the input of `FoundState` in `fleet/session.py`, or `{}` if the node has no state
of that fleet. It supports Python 3.9 and later, for any python3 of a node.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

LISTENS_S = 2.0
"""Time limit of a connection to this node itself: its kernel accepts or refuses at once."""


def state_root(fleet: str) -> Path:
    """`$SPARKFLEET_HOME/<fleet>`, or `$XDG_STATE_HOME/sparkfleet/<fleet>`, or `~/.local/state/sparkfleet/<fleet>`."""
    home = os.environ.get("SPARKFLEET_HOME")
    if home:
        return Path(os.path.abspath(os.path.expanduser(home))) / fleet
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.path.abspath(os.path.expanduser(state))) / "sparkfleet" / fleet


def found(root: Path) -> dict[str, object]:
    """The address and the API token of a fleet's head, and the interpreter of a node's watchdog.

    Also shows if the head's Ray listens: then a controller that does not answer is about to.
    """
    state: dict[str, object] = {"generations": generations(root / "sparkfleet.db")}
    try:
        state["python"] = json.loads((root / "role.json").read_text())["python"]
        state["address"] = address = json.loads((root / "address.json").read_text())
        state["api_token"] = (root / "api.token").read_text()
        state["ray"] = listens(address["ray"])
    except (OSError, ValueError, KeyError):
        pass  # a node that is not the head has only the first
    return state


def generations(database: Path) -> dict[str, int] | None:
    """The desired generation of each deployment in a fleet's store, empty if there is none; None if it cannot be read."""
    try:
        import sqlite3  # a python3 without it does everything else
    except ImportError:
        return None
    try:
        if not database.exists():
            return {}
        with contextlib.closing(
            sqlite3.connect(database.as_uri() + "?mode=ro", uri=True, timeout=2)
        ) as store:
            return dict(store.execute("SELECT name, generation FROM deployments"))
    except (sqlite3.Error, OSError, ValueError):
        return None


def listens(address: str) -> bool:
    """True if a program accepts connections at an address of this node, `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=LISTENS_S):
            return True
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    print(json.dumps(found(state_root(sys.argv[1]))))
