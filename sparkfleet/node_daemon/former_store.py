"""Gives the former release a store that it can open, on the way back of an upgrade."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from sparkfleet.controlplane.store_safety.copies import described
from sparkfleet.controlplane.store_safety.mark import StoreMark, write_mark
from sparkfleet.controlplane.store_safety.opening import named_errors, read_content
from sparkfleet.controlplane.store_safety.restore import set_aside
from sparkfleet.runtime.files.fleet_paths import FleetPaths

READ_S = 30.0
_READ = """
import sys
from pathlib import Path
from sparkfleet.controlplane.store_safety.opening import read_content, require_known_fields
read_content(Path(sys.argv[1]))
require_known_fields(Path(sys.argv[1]))
"""
"""The checks of `open_store`, which change nothing, for the interpreter of another release. Both functions keep their
names: of one that has them no more, the store counts as refused."""


def put_store_back(paths: FleetPaths, python: str) -> dict[str, Any]:
    """Puts the former release's store back, unless that release reads the present one, which has what was applied since.

    Args:
        paths: the fleet's directories.
        python: the interpreter of the former release. One that cannot be run counts as one that refuses the store.

    Returns:
        {} if the present store stays; else `set_aside`, the path of what was the present one, and `lost`, the deployments
        that were changed in it since the upgrade began.
    """
    former = paths.former_store
    if not former.exists() or _reads(python, paths.database):
        return {}
    newer = _deployments(paths.database)
    with named_errors(former):
        aside = set_aside(paths)
        shutil.copyfile(former, paths.database)
        paths.database.chmod(0o600)
        found = read_content(paths.database)
    if found is not None and found.identity is not None:
        one = found.identity
        mark = StoreMark(id=one.id, fleet=one.fleet, changes=one.changes, generations=found.generations)
        write_mark(paths, mark)
    return {"set_aside": str(aside or ""), "lost": _changed(_deployments(paths.database), newer)}


def _reads(python: str, database: Path) -> bool:
    """True if the sparkfleet of an interpreter reads a store, which is not changed."""
    argv = (python, "-P", "-c", _READ, str(database))
    try:
        done = subprocess.run(
            argv, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=READ_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _deployments(database: Path) -> frozenset[str] | None:
    """Deployments of a store with their generations, in words; None if it cannot be read."""
    try:
        found = described(database)
    except FileNotFoundError:
        return None
    return None if found.trouble else frozenset(found.deployments)


def _changed(former: frozenset[str] | None, newer: frozenset[str] | None) -> list[str]:
    """Names of deployments that differ; none if that is not known."""
    differing = frozenset[str]() if former is None or newer is None else former ^ newer
    return sorted({one.partition(" ")[0] for one in differing})
