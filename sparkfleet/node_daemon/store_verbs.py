"""Verbs on the store of this head: lists, makes and restores copies, with or without a controller."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkfleet.controlplane.api.store_request import StoreRequest
from sparkfleet.controlplane.controller_note import read_note
from sparkfleet.controlplane.state.desired import Generation
from sparkfleet.controlplane.store_safety import restore
from sparkfleet.controlplane.store_safety.copies import copies, find_copy, take_copy
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.node_daemon.error_answer import error_answer
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.state_probe import RAY_LABEL


def answer(request: StoreRequest) -> dict[str, Any]:
    """The result of a verb as JSON, or `error` with its parts."""
    try:
        with _only_one(request.paths):
            return _carry_out(request, request.paths)
    except (SparkfleetError, OSError) as error:
        return error_answer(error)


@contextlib.contextmanager
def _only_one(paths: FleetPaths) -> Iterator[None]:
    """Refuses a second verb on the store at the same time: both would write the same new file."""
    paths.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (paths.root / "store.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ControlError(
                "Another command works on the store of this head.",
                means="Nothing was changed by this one.",
                do="Run it again when the other one has ended.",
            ) from error
        yield


def _carry_out(request: StoreRequest, paths: FleetPaths) -> dict[str, Any]:
    match request.verb:
        case "list":
            return {"copies": [copy.model_dump(mode="json") for copy in copies(paths)]}
        case "copy":
            made = take_copy(paths, "asked")
            return {"path": str(made), **_shown(paths, made)}
        case "restore":
            copy = find_copy(paths, request.name)
            if request.dry:
                return _shown(paths, copy)
            done = restore.restore_copy(paths, request.fleet, copy, _running(paths))
        case "adopt":
            if request.dry:
                return {"running": _require_held(paths)}
            done = restore.adopt_running(paths, request.fleet, _require_held(paths))
        case "begin_anew":
            done = restore.begin_anew(paths, request.fleet, request.name, _running(paths), dry=request.dry)
    return done.model_dump(mode="json")


def _shown(paths: FleetPaths, copy: Path) -> dict[str, Any]:
    return next(one for one in copies(paths) if one.name == copy.name).model_dump(mode="json")


def _require_held(paths: FleetPaths) -> tuple[Generation, ...]:
    """The generations that run, from the note of a controller that waits. Raises ControlError if none waits."""
    note = read_note(paths)
    if note is None or note.state != "held" or not _lives(paths, note.pid):
        raise ControlError(
            "No controller waits for its store, so there is nothing to adopt.",
            means="Either it works with its store, or the fleet is down.",
            do="`sparkfleet status` shows which; `sparkfleet up` brings a fleet up.",
        )
    return note.running


def _running(paths: FleetPaths) -> tuple[Generation, ...]:
    note = read_note(paths)
    return note.running if note is not None and _lives(paths, note.pid) else ()


def _lives(paths: FleetPaths, pid: int) -> bool:
    from sparkfleet.runtime import processes  # with asyncio, which a list of copies does without

    return os.path.exists(f"/proc/{pid}") and processes.carries(pid, {RAY_LABEL: paths.label})
