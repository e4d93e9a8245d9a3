"""Names of nodes, deployments and keys for completion in a shell, read without a connection. Imports little: TAB waits.

Nodes are those of the inventory. Deployments and keys are those of the last status that a verb on this machine has read.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.state_probe import state_root

MAX_BYTES = 1 << 20
"""Longer files are no inventory and no list of names."""
_FLEET = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""A fleet's name as a part of a path."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
"""Names that a shell takes as one word, and as nothing else."""


def remember_names(
    fleet: str, *, deployments: Iterable[str] | None = None, keys: Iterable[str] | None = None
) -> None:
    """Keep names for completion, in a file that only this user reads. None keeps the names that are known.

    A file that cannot be written is no error: completion has fewer names.
    """
    path = _file(fleet)
    if path is None:
        return
    known = _names(path)
    for kind, names in (("deployments", deployments), ("keys", keys)):
        if names is not None:
            known[kind] = sorted(filter(_NAME.fullmatch, names))
    if known != _names(path):
        with contextlib.suppress(OSError):
            write_atomically(path, json.dumps(known).encode())


def known_names(kind: str, inventory: Path) -> list[str]:
    """Names of a kind; empty if none are known, and if a file cannot be read. `kind`: `nodes`, `deployments` or `keys`."""
    fleet, nodes = _inventory(inventory)
    if kind == "nodes":
        return nodes
    path = _file(fleet)
    return [] if path is None else _names(path).get(kind, [])


def _inventory(path: Path) -> tuple[str, list[str]]:
    import yaml

    try:
        with path.open("rb") as file:
            found = yaml.safe_load(file.read(MAX_BYTES))
        return str(found["fleet"]), sorted(filter(_NAME.fullmatch, map(str, found["nodes"])))
    except (OSError, ValueError, TypeError, KeyError, RecursionError, yaml.YAMLError):
        return "", []


def _file(fleet: str) -> Path | None:
    return state_root(fleet) / "names.json" if _FLEET.fullmatch(fleet) else None


def _names(path: Path) -> dict[str, list[str]]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_BYTES))
        return {kind: [name for name in found[kind] if _NAME.fullmatch(name)] for kind in found}
    except (OSError, ValueError, TypeError):
        return {}
