"""State directory of a fleet on a node, and its content. Standard library only: its source is sent to nodes.

As a program with a fleet's name it prints the input of `FoundState` in `fleet/session.py`, or `{}` if the node has no state
of that fleet. A second word, `surroundings`, `keys`, `usage` or `logs`, selects the function of that name. It supports
Python 3.9 and later, for any python3 of a node.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any

WATCHDOG = b"sparkfleet.node_daemon.node_cli"
"""Module of the watchdog, a word of its command line: `python -m MODULE keep STATE_DIR`."""
RAY_LABEL = "SPARKFLEET_RAY"
"""Variable with the fleet's label in every process of Ray, and in the watchdog."""
ENDED_ROLE = "role.ended.json"
"""Name of a node's role from the begin of `down` to its end."""
_SECRET = re.compile(r"[0-9a-f]{64}")
LISTENS_S = 2.0
"""Time limit of a connection to this node itself: its kernel accepts or refuses at once."""


def state_root(fleet: str) -> Path:
    """`$SPARKFLEET_HOME/<fleet>`, or `$XDG_STATE_HOME/sparkfleet/<fleet>`, or `~/.local/state/sparkfleet/<fleet>`.

    Without symbolic links: a fleet's label is made of this path, and a home directory has two of them if it is reached by
    a link.
    """
    home = os.environ.get("SPARKFLEET_HOME")
    if home:
        return Path(os.path.realpath(os.path.expanduser(home))) / fleet
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.path.realpath(os.path.expanduser(state))) / "sparkfleet" / fleet


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
    `runs` is the number of the fleet's processes if any file is in either of them. `spoilt`, on a head: secrets that a new
    controller could not use.
    """
    unreadable: list[str] = []
    missing: list[str] = []
    role = _parsed(root / "role.json", missing, unreadable) or _parsed(root / ENDED_ROLE, [], [])
    python = role.get("python")
    address = _parsed(root / "address.json", missing, unreadable) or _in_run_directory(root, "address.json")
    token = _token(root / "api.token", missing, unreadable)
    state: dict[str, object] = {
        "root": str(root),
        "controller": _in_run_directory(root, "controller.json"),
        "unreadable": unreadable,
        "missing": missing,
        "runs": _runs(root) if missing or unreadable else 0,
    }
    if isinstance(python, str):
        state["python"] = python
    if role.get("join"):
        state["joined"] = role_of(root, set())
    if address and token is not None:
        state.update(
            address=address, api_token=token, ray=listens(str(address.get("ray"))), spoilt=_spoilt(root)
        )
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


def keys(root: Path) -> dict[str, object]:
    """The API keys in a fleet's store, for `keys list` while no controller answers: names, times and limits, no digest.

    `keys` is None if the store cannot be read; it is empty if there is none.
    """
    specs, rows = _rows(root, _SPECS), _rows(root, "SELECT * FROM keys ORDER BY since, id")
    if specs is None or rows is None:
        return {"keys": None}
    try:
        allowed = {str(one["name"]): json.loads(str(one["spec"])).get("keys") for one in specs}
        return {"keys": [_key(row, allowed) for row in rows]}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"keys": None}


_SPECS = "SELECT name, spec FROM deployments ORDER BY name"
_USAGE = "SELECT day, key, model, requests, uncounted, input, output FROM usage ORDER BY day, key, model"


def usage(root: Path) -> dict[str, object]:
    """All counts in a fleet's store, for `usage` while no controller answers: input of `UsageRow`.

    `usage` is None if the store cannot be read; it is empty if there is none.
    """
    return {"usage": _rows(root, _USAGE)}


def _rows(root: Path, query: str) -> list[dict[str, object]] | None:
    """The rows of a query of a fleet's store; none without a store, None if it cannot be read."""
    database = root / "sparkfleet.db"
    try:
        import sqlite3
    except ImportError:
        return None
    try:
        if not database.exists():
            return []
        with contextlib.closing(
            sqlite3.connect(database.as_uri() + "?mode=ro", uri=True, timeout=2)
        ) as store:
            store.row_factory = sqlite3.Row
            return [dict(row) for row in store.execute(query)]
    except (sqlite3.Error, OSError, ValueError):
        return None


def _key(row: dict[str, object], allowed: dict[str, list[str] | None]) -> dict[str, object]:
    """A row of the table as the input of `KeyRow`; older schemas lack some columns."""
    settings = json.loads(str(row.get("settings") or "{}"))
    limits = settings.get("limits") or {}
    expires = limits.get("expires")
    if not limits.get("inference", True) or (expires is not None and expires <= time.time()):
        allowed = {}
    return {
        "id": row["id"],
        "name": row["name"],
        "created": row["since"],
        "used": row.get("used"),
        "may_use": [name for name, names in allowed.items() if not names or row["name"] in names],
        "limits": limits,
        "former_until": max((one["until"] for one in _formers(settings)), default=None),
    }


def _formers(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The texts of a key before its present one; stores of earlier releases have one at most."""
    return [one for one in (settings.get("former"), *(settings.get("earlier") or ())) if one]


def logs(root: Path) -> dict[str, object]:
    """Directory and label of a fleet's rank logs, and the name of each with the time of its last line, Unix seconds."""
    found = []
    with contextlib.suppress(OSError):  # a node that was never part of the fleet
        for entry in os.scandir(root / "logs"):
            with contextlib.suppress(OSError):  # removed meanwhile
                found.append([entry.name, entry.stat().st_mtime])
    return {"directory": str(root / "logs"), "label": fleet_label(root), "logs": found}


def _text(path: Path, missing: list[str], unreadable: list[str]) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        missing.append(str(path))
    except (OSError, ValueError) as error:
        unreadable.append(f"{path}: {getattr(error, 'strerror', None) or error}{_owner(path, error)}")
    return None


def _owner(path: Path, error: Exception) -> str:
    """Another user whose file or directory may not be read, in words: a command with `sudo` leaves some of root's."""
    for place in (path, *path.parents) if isinstance(error, PermissionError) else ():
        with contextlib.suppress(OSError):
            uid = os.stat(place).st_uid
            return "" if uid == os.geteuid() else f" ({place} belongs to {_name(uid)})"
    return ""


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _token(path: Path, missing: list[str], unreadable: list[str]) -> str | None:
    """The token of the controller's API, without the newline of `openssl` or an editor: no header can have one."""
    text = _text(path, missing, unreadable)
    if text is None or _SECRET.fullmatch(text.strip()):
        return text and text.strip()
    unreadable.append(f"{path}: it does not have 64 hexadecimal digits")
    return None


def _spoilt(root: Path) -> list[str]:
    """Secrets without which no controller starts, and that cannot be used, each with the reason."""
    troubles: list[str] = []
    for name in ("engine.secret", "ray.token"):
        text = _text(root / name, [], troubles)
        if text is None and not any(name in line for line in troubles):
            troubles.append(f"{root / name} is missing")
        elif text is not None and not _SECRET.fullmatch(text.strip()):
            troubles.append(f"{root / name} does not have 64 hexadecimal digits")
    return troubles


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


def surroundings(root: Path) -> dict[str, object]:
    """The node's part in a fleet, and other fleets on it: input of `NodeSurroundings` in `fleet/nodes/surroundings.py`."""
    watched = set(watchdogs())
    return {
        "root": str(root),
        "id": fleet_id(root),
        "role": role_of(root, watched),
        "store": os.path.exists(
            root / "sparkfleet.db"
        ),  # False also if that may not be read: Path raises then
        "generations": generations(root / "sparkfleet.db"),
        "others": [
            {"fleet": other.name, "root": str(other), "role": role_of(other, watched)}
            for other in sorted({*_siblings(root), *watched} - {root})
        ],
    }


def fleet_id(root: Path) -> str:
    """Name of the fleet by the secret that its nodes share, which moves with its head; "" if there is none."""
    try:
        return hashlib.sha256((root / "ray.token").read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def role_of(root: Path, watched: set[Path]) -> dict[str, object] | None:
    """The node's role in a fleet, the fleet's head, and if that lives as seen from here; None if it has none."""
    try:
        role = json.loads((root / "role.json").read_text())
        up, join = role.get("up"), role.get("join")
        if join:
            ray, head = join["ray"], join.get("head", "")
            term = join.get("term", 0)
            return {
                "verb": "join",
                "node": join["node"],
                "head": head,
                "ray": ray,
                "term": term,
                "live": listens(ray),
            }
        exists = (root / "address.json").exists()
        address = json.loads((root / "address.json").read_text()) if exists else {"ray": ""}
        ray, term = address["ray"], address.get("term", 0)
        head = up["inventory"]["head"]
        live = root in watched or listens(ray)
        return {"verb": "up", "node": head, "head": head, "ray": ray, "term": term, "live": live}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def watchdogs() -> dict[Path, int]:
    """State directories of all fleets, of any user, whose watchdog runs on this node, with its process id."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (root := _root_of_watchdog(int(entry))) is not None:
            found[root] = int(entry)
    return found


def is_watchdog_of(root: Path, pid: int) -> bool:
    """True if a process is the watchdog of a fleet."""
    return _root_of_watchdog(pid) == root


def _root_of_watchdog(pid: int) -> Path | None:
    """State directory of the fleet whose watchdog a process is; None if it is none, or has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    if WATCHDOG not in words or words[words.index(WATCHDOG) + 1 :][:1] != [b"keep"]:
        return None
    return Path(os.fsdecode(words[words.index(WATCHDOG) + 2])) if _is_of_this_machine(pid) else None


def _is_of_this_machine(pid: int) -> bool:
    """False for a process in a container or in a simulated Spark: its memory is ours, its ports and files are not."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


def _siblings(root: Path) -> list[Path]:
    """State directories beside this one whose fleet has a role here and lives."""
    try:
        beside = [path for path in root.parent.iterdir() if os.path.exists(path / "role.json")]
    except OSError:
        return []
    return [path for path in beside if (role_of(path, set()) or {}).get("live")]


if __name__ == "__main__":
    probes = {"surroundings": surroundings, "keys": keys, "usage": usage, "logs": logs}
    probe = probes[sys.argv[2]] if sys.argv[2:] else found
    print(json.dumps(probe(state_root(sys.argv[1]))))
