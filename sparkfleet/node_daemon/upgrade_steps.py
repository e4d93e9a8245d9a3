"""Steps of an upgrade, as each node carries them out with the interpreter of the new release. Every step may be repeated.

try      returns the versions of sparkfleet and Ray; on the head it reads the store, which the new release has to know
begin    claims the node for this upgrade, the head first: no other one may change the fleet meanwhile
freeze   stops the processes of Ray, so that none takes another's end for a failure; keeps the role of the former release;
         they continue by themselves if no other step comes within a minute
thaw     lets them continue, and removes the claim
end      ends them, engines go on; on the head it keeps the store as the former release left it
back     ends what the new release has started, and starts the former one with what was kept
settle   removes what was kept, and the claim
"""

from __future__ import annotations

import os
from importlib import import_module, metadata
from typing import Any

from sparkfleet import __version__
from sparkfleet.controlplane.api.api_models import Role, UpgradeRequest
from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.controlplane.store_safety.copies import copy_database
from sparkfleet.controlplane.store_safety.opening import named_errors, read_content, require_known_fields
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.node_daemon.error_answer import error_answer
from sparkfleet.node_daemon.former_store import put_store_back
from sparkfleet.node_daemon.ray_watchdog import start_watchdog
from sparkfleet.node_daemon.upgrade_claim import (
    UpgradeClaim,
    holds_claim,
    require_claim,
    require_unclaimed,
    take_claim,
)
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
    claim = UpgradeClaim(token=request.token, who=request.who)
    match request.step:
        case "try":
            require_unclaimed(paths, claim)
            return _tried(paths)
        case "begin":
            if take_claim(paths, claim, granted=request.granted):
                # Of an upgrade whose command was killed: weeks later it would be no way back.
                _forget_former(paths)
        case "freeze":
            require_claim(paths, claim)
            _keep_role(paths)
            # A command that is killed now, or loses its connection, could not let them continue.
            await thaw_guard.start(LABEL, paths.label)
            await processes.freeze(lambda: _of_ray(paths))
        case "thaw":
            if holds_claim(paths, claim):
                await processes.thaw(lambda: _of_ray(paths))
                await thaw_guard.end(paths.label)
                _settle(paths)
        case "end":
            require_claim(paths, claim)
            await _end(paths)
        case "back":
            require_claim(paths, claim)
            return await _back(paths)
        case "settle":
            if holds_claim(paths, claim):
                _settle(paths)
    return {}


def _tried(paths: FleetPaths) -> dict[str, Any]:
    """Versions of this release, after an import of everything that Ray's processes import."""
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
        _settle(paths)
        return {}
    content = paths.former_role.read_bytes()
    role = Role.model_validate_json(content)
    replaced = put_store_back(paths, role.python)
    write_atomically(paths.role, content, durable=True)
    paths.outcome.unlink(missing_ok=True)
    start_watchdog(paths, role)
    _settle(paths)
    return {"outcome": str(paths.outcome), **replaced}


def _settle(paths: FleetPaths) -> None:
    _forget_former(paths)
    paths.upgrade_claim.unlink(missing_ok=True)


def _forget_former(paths: FleetPaths) -> None:
    paths.former_role.unlink(missing_ok=True)
    paths.former_store.unlink(missing_ok=True)


def _of_ray(paths: FleetPaths) -> list[processes.Process]:
    """Processes of Ray and its watchdog on this node, without this one. Engines and their supervisors have another label."""
    return [one for one in processes.labelled({LABEL: paths.label}) if one.pid != os.getpid()]
