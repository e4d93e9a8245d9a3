"""State directory of a fleet on a node, and its content. Standard library only: its source is sent to nodes.

As a program with a fleet's name it prints the input of `FoundState` in `fleet/session.py`, or `{}` if the node has no state
of that fleet. It supports Python 3.9 and later, for any python3 of a node.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from pathlib import Path

RAY_LABEL = "SPARKFLEET_RAY"
"""Variable with the fleet's label in every process of Ray, and in the watchdog."""
LISTENS_S = 2.0
"""Time limit of a connection to this node itself: its kernel accepts or refuses at once."""


def state_root(fleet: str) -> Path:
    """`$SPARKFLEET_HOME/<fleet>`, or `$XDG_STATE_HOME/sparkfleet/<fleet>`, or `~/.local/state/sparkfleet/<fleet>`."""
    home = os.environ.get("SPARKFLEET_HOME")
    if home:
        return Path(os.path.abspath(os.path.expanduser(home))) / fleet
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.path.abspath(os.path.expanduser(state))) / "sparkfleet" / fleet


def fleet_label(root: Path) -> str:
    """Name of a fleet on this machine, unique by its state directory."""
    return f"{root.name}-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"


def run_directory(root: Path) -> Path:
    """Directory for the sockets of a fleet. Short: a Unix socket's path has 107 bytes, and Ray's own part of it takes 70."""
    return Path("/tmp") / f"sparkfleet-{os.getuid()}" / fleet_label(root)[-8:]  # noqa: S108 (0700, owner checked)


def found(root: Path) -> dict[str, object]:
    """The address and the API token of a fleet's head, and the interpreter of a node's watchdog.

    Also shows if the head's Ray listens: then a controller that does not answer is about to. A file that does not exist is
    in `missing`, as on a node that is not the head; one that exists and cannot be read is in `unreadable`, with the reason.
    `runs` is the number of the fleet's processes if any file is in either of them.
    """
    unreadable: list[str] = []
    missing: list[str] = []
    python = _parsed(root / "role.json", missing, unreadable).get("python")
    address = _parsed(root / "address.json", missing, unreadable) or _in_run_directory(root, "address.json")
    token = _text(root / "api.token", missing, unreadable)
    state: dict[str, object] = {
        "controller": _in_run_directory(root, "controller.json"),
        "unreadable": unreadable,
        "missing": missing,
        "runs": _runs(root) if missing or unreadable else 0,
    }
    if isinstance(python, str):
        state["python"] = python
    if address and token is not None:
        state.update(address=address, api_token=token, ray=listens(str(address.get("ray"))))
    return state


def _text(path: Path, missing: list[str], unreadable: list[str]) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        missing.append(str(path))
    except (OSError, ValueError) as error:
        unreadable.append(f"{path}: {getattr(error, 'strerror', None) or error}")
    return None


def _parsed(path: Path, missing: list[str], unreadable: list[str]) -> dict[str, object]:
    text = _text(path, missing, unreadable)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if isinstance(content, dict):
        return content
    unreadable.append(f"{path}: its content is not what sparkfleet wrote")
    return {}


def _in_run_directory(root: Path, name: str) -> dict[str, object]:
    """A file of the run directory; empty if it cannot be read: it only adds words."""
    try:
        content = json.loads((run_directory(root) / name).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _runs(root: Path) -> int:
    """Number of processes of Ray that belong to this state directory."""
    label = f"{RAY_LABEL}={fleet_label(root)}".encode()
    count = 0
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and label in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                count += 1
        except OSError:
            pass  # it ended, or is another user's
    return count


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
