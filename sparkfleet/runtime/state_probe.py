"""State directory of a fleet on a node, and its content. Standard library only: its text is sent to nodes.

Run as a program with a fleet's name, it prints what `FoundState` in `fleet/session.py` reads, or `{}` where the node knows
nothing of that fleet. It runs on Pythons down to 3.9, whatever the node's python3 is.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

LISTENS_S = 2.0
"""How long a connection to this node itself may take: its kernel accepts or refuses at once."""


def state_root(fleet: str) -> Path:
    """`$SPARKFLEET_HOME/<fleet>`, or `$XDG_STATE_HOME/sparkfleet/<fleet>`, or `~/.local/state/sparkfleet/<fleet>`."""
    home = os.environ.get("SPARKFLEET_HOME")
    if home:
        return Path(os.path.abspath(os.path.expanduser(home))) / fleet
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.path.abspath(os.path.expanduser(state))) / "sparkfleet" / fleet


def found(root: Path) -> dict[str, object]:
    """The address and the API token of a fleet's head, and the interpreter that a node's keeper runs in.

    Also whether the head's Ray listens: then a controller that does not answer is about to.
    """
    said: dict[str, object] = {}
    try:
        said["python"] = json.loads((root / "role.json").read_text())["python"]
        said["address"] = address = json.loads((root / "address.json").read_text())
        said["api_token"] = (root / "api.token").read_text()
        said["ray"] = listens(address["ray"])
    except (OSError, ValueError, KeyError):
        pass  # a node that is not the head has the first only
    return said


def listens(address: str) -> bool:
    """True if anything accepts connections at an address of this node, `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=LISTENS_S):
            return True
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    print(json.dumps(found(state_root(sys.argv[1]))))
