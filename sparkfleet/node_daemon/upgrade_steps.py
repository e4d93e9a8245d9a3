"""Steps of an upgrade, as each node carries them out with the interpreter of the new release. Every step may be repeated.

try      returns the versions of sparkfleet and Ray; on the head it reads the store, which the new release has to know
freeze   stops the processes of Ray, so that none takes another's end for a failure; keeps the role of the former release;
         they continue by themselves if no other step comes within a minute
thaw     lets them continue
end      ends them, engines go on; on the head it keeps the store as the former release left it
back     ends what the new release has started, and starts the former one with what was kept
settle   removes what was kept
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from sparkfleet import __version__
from sparkfleet.controlplane.api.api_models import Role, UpgradeRequest
from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.controlplane.store_safety.copies import copy_database
from sparkfleet.controlplane.store_safety.mark import StoreMark, write_mark
from sparkfleet.controlplane.store_safety.opening import named_errors, read_content, require_known_fields
from sparkfleet.controlplane.store_safety.restore import set_aside
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.node_daemon.error_answer import error_answer
from sparkfleet.node_daemon.ray_watchdog import start_watchdog
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime import processes, thaw_guard
from sparkfleet.runtime.files.fleet_paths import FleetPaths

NEEDED = (
    "sparkfleet.controlplane.ray.controller_actor",
    "sparkfleet.controlplane.ray.node_actor",
    "sparkfleet.gateway.ray_serve",
    "sparkfleet.group.group",
)
"""Modules that Ray's processes import on a node: a package that is missing is found before anything ends."""


async def answer(request: UpgradeRequest) -> dict[str, Any]:
    """The result of a step as JSON, or `error` with its parts."""
    try:
        return await _carry_out(request, request.paths)
    except (SparkfleetError, OSError) as error:
        return error_answer(error)


async def _carry_out(request: UpgradeRequest, paths: FleetPaths) -> dict[str, Any]:
    match request.step:
        case "try":
            return _tried(paths)
        case "freeze":
            _keep_role(paths)
            # A command that is killed now, or loses its connection, could not let them continue.
            await thaw_guard.start(LABEL, paths.label)
            await processes.freeze(lambda: _of_ray(paths))
        case "thaw":
            await processes.thaw(lambda: _of_ray(paths))
            await thaw_guard.end(paths.label)
        case "end":
            await _end(paths)
        case "back":
            return await _back(paths)
        case "settle":
            _settle(paths)
    return {}


def _tried(paths: FleetPaths) -> dict[str, Any]:
    """Versions of this release, after an import of everything that Ray's processes import.

    A fleet that serves has ended its last upgrade, if with an interrupted command: what that kept is not the way back.
    """
    _settle(paths)
    read_content(paths.database)
    require_known_fields(paths.database)
    try:
        for name in NEEDED:
            import_module(name)
        ray = metadata.version("ray")
    except (ImportError, metadata.PackageNotFoundError) as error:
        raise ControlError(
            f"The new release cannot run here: {error}.",
            means="Nothing was changed.",
            do="`pip install 'sparkfleet[head]'` in the environment of the new release.",
        ) from error
    return {"version": __version__, "ray": ray}


def _keep_role(paths: FleetPaths) -> None:
    """Keeps the role before any node is ended, so that also one that is lost then has a way back."""
    # The first of several tries has the former release's role.
    if paths.role.exists() and not paths.former_role.exists():
        write_atomically(paths.former_role, paths.role.read_bytes(), durable=True)


async def _end(paths: FleetPaths) -> None:
    _keep_role(paths)
    await processes.kill_all(lambda: _of_ray(paths), grace_s=0.0)
    await thaw_guard.end(paths.label)
    if paths.database.exists() and not paths.former_store.exists():
        with named_errors(paths.database):
            copy_database(paths.database, paths.former_store)


async def _back(paths: FleetPaths) -> dict[str, Any]:
    await processes.kill_all(lambda: _of_ray(paths), grace_s=0.0)
    await thaw_guard.end(paths.label)
    if not paths.former_role.exists():
        return {}
    _put_store_back(paths)
    content = paths.former_role.read_bytes()
    role = Role.model_validate_json(content)
    write_atomically(paths.role, content, durable=True)
    paths.outcome.unlink(missing_ok=True)
    start_watchdog(paths, role)
    _settle(paths)
    return {"outcome": str(paths.outcome)}


def _put_store_back(paths: FleetPaths) -> None:
    """Puts the former release's store back if the new one has changed its schema, which the former one does not know."""
    former = paths.former_store
    if not former.exists() or _schema(former) == _schema(paths.database):
        return
    with named_errors(former):
        set_aside(paths)
        shutil.copyfile(former, paths.database)
        paths.database.chmod(0o600)
        found = read_content(paths.database)
    if found is not None and found.identity is not None:
        one = found.identity
        mark = StoreMark(id=one.id, fleet=one.fleet, changes=one.changes, generations=found.generations)
        write_mark(paths, mark)


def _schema(database: Path) -> int:
    """The version of the schema; -1 if it cannot be read."""
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as db,
    ):
        (version,) = db.execute("PRAGMA user_version").fetchone()
        return int(version)
    return -1


def _settle(paths: FleetPaths) -> None:
    paths.former_role.unlink(missing_ok=True)
    paths.former_store.unlink(missing_ok=True)


def _of_ray(paths: FleetPaths) -> list[processes.Process]:
    """Processes of Ray and its watchdog on this node, without this one. Engines and their supervisors have another label."""
    return [one for one in processes.labelled({LABEL: paths.label}) if one.pid != os.getpid()]
