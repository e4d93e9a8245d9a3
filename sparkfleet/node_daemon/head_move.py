"""Steps of moving the head to another node, as each node carries them out. Every step may be repeated.

kept     on any node, if the head is lost: its copy of the store, and what runs on it
out      on the old head: its controller waits from now on; a checked copy of the store
in       on the new head: store, secrets, and a second Ray with a controller that waits, beside the Ray that it has
freeze   on every node: stops the processes of the old Ray, so that none takes another's end for a failure
settle   on the new head: ends the old Ray there; the controller works
away     on the old head: its store is set aside, and it joins the new head
cancel   on every node: back to the old head
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from typing import Any

from sparkfleet.controlplane.api.api_models import JoinRequest, MoveRequest, Role
from sparkfleet.controlplane.controller_note import read_note
from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.controlplane.state.head_address import HeadMove
from sparkfleet.controlplane.store_safety.copies import copy_database, described
from sparkfleet.controlplane.store_safety.guard import StoreError, StoreFault
from sparkfleet.controlplane.store_safety.kept_copy import kept_path, move_to_backups
from sparkfleet.controlplane.store_safety.mark import StoreMark, write_mark
from sparkfleet.controlplane.store_safety.moving import begin_move, read_move
from sparkfleet.controlplane.store_safety.opening import named_errors, read_content
from sparkfleet.controlplane.store_safety.restore import restore_copy, set_aside
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.node_daemon import ray_watchdog, service_manager
from sparkfleet.node_daemon.error_answer import error_answer
from sparkfleet.node_daemon.former_head import retire
from sparkfleet.node_daemon.left_ray import left_ray
from sparkfleet.node_daemon.role_guard import read_role
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime import processes
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.node_command import node_command
from sparkfleet.runtime.ports import is_taken
from sparkfleet.runtime.process_runtime import ProcessRuntime

HELD_S = 20.0
"""Time limit for the controller to notice that it has to wait: it looks every half second, at most a round later."""
MOVED = "SPARKFLEET_MOVE"
"""Variable with the move's token in the processes that it has started on the new head."""


async def answer(request: MoveRequest) -> dict[str, Any]:
    """The result of a step as JSON, or `error` with its parts."""
    try:
        return await _carry_out(request, request.paths)
    except (SparkfleetError, OSError) as error:
        return error_answer(error)


async def _carry_out(request: MoveRequest, paths: FleetPaths) -> dict[str, Any]:
    match request.step:
        case "kept":
            return await _kept(paths)
        case "out":
            return await _out(paths, request)
        case "in":
            return await _in(paths, request)
        case "freeze":
            await processes.freeze(lambda: _old(paths, request.move))
        case "settle":
            await _settle(paths, request.move)
        case "away":
            return await _away(paths, request)
        case "cancel":
            await _cancel(paths)
            await processes.thaw(lambda: _old(paths, request.move))
    return {}


async def _kept(paths: FleetPaths) -> dict[str, Any]:
    path = kept_path(paths)
    copy = described(path) if path is not None else None
    ranks = await ProcessRuntime(paths.run, paths.label).list()
    return {
        "copy": copy.model_dump(mode="json") if copy is not None else None,
        "path": str(path or ""),
        "running": sorted({(one.id.deployment, one.id.generation) for one in ranks}),
    }


async def _out(paths: FleetPaths, request: MoveRequest) -> dict[str, Any]:
    begin_move(paths, request.move)
    try:
        api_token = paths.read_api_token()
        await _until_held(paths)
        with named_errors(paths.database):
            copy_database(paths.database, paths.moving_store)
    except BaseException:
        paths.head_move.unlink(missing_ok=True)
        raise
    copy = paths.moving_store.read_bytes()
    return {
        "path": str(paths.moving_store),
        "bytes": len(copy),
        "sha256": hashlib.sha256(copy).hexdigest(),
        "ray_token": paths.ray_token.read_text(),
        "api_token": api_token,
        "engine_secret": paths.read_engine_secret(),
        "engine_tokens": paths.read_token_secrets().text(),
    }


async def _until_held(paths: FleetPaths) -> None:
    """Returns when no controller works with the store. Raises ControlError if one does not stop."""
    deadline = asyncio.get_running_loop().time() + HELD_S
    while (note := read_note(paths)) is None or processes.carries(note.pid, {LABEL: paths.label}):
        if note is None and left_ray(paths) is None:
            return
        # Without its note, which somebody may have removed, a controller writes one as soon as it waits.
        if note is not None and note.state == "held":
            return
        if asyncio.get_running_loop().time() > deadline:
            raise ControlError(
                f"The controller still works with its store after {HELD_S:.0f} s.",
                means="The head was not moved.",
                do="`sparkfleet status` shows its state; run the same command again.",
            )
        await asyncio.sleep(0.1)


async def _in(paths: FleetPaths, request: MoveRequest) -> dict[str, Any]:
    role = read_role(paths)
    if role is not None and role.up is not None:
        raise ControlError("This node is the head already.")
    await _cancel(paths)
    _take_store(paths, request)
    for path, secret in (
        (paths.ray_token, request.ray_token),
        (paths.api_token, request.api_token),
        (paths.engine_secret, request.engine_secret),
        (paths.engine_tokens, request.engine_tokens),
    ):
        if secret:
            write_atomically(path, secret.encode(), durable=True)
    begin_move(paths, request.move)
    if request.up is None:
        return {}
    joined = role.join if role is not None else None
    port = _port_of_lost(joined) if joined is not None and request.running is not None else 0
    up = request.up.model_copy(update={"term": joined.term + 1 if joined else 1, "ray_port": port})
    next_role = Role(python=sys.executable, up=up)
    write_atomically(paths.next_role, next_role.for_disk().encode(), durable=True)
    paths.outcome.unlink(missing_ok=True)
    argv = node_command(sys.executable, "keep", str(paths.root), "next")
    environment = {LABEL: paths.label, MOVED: request.move.token}
    await asyncio.to_thread(service_manager.spawn, argv, environment, paths.logs / "boot.log")
    return {"outcome": str(paths.outcome), "at_its_port": bool(port)}


def _port_of_lost(joined: JoinRequest) -> int:
    """The port of the lost head's Ray, on which it looks for a newer one when it comes back; 0 if it is taken here."""
    port = int(joined.ray.rpartition(":")[2])
    return 0 if is_taken(port, joined.host) else port


def _take_store(paths: FleetPaths, request: MoveRequest) -> None:
    """Puts the store that was brought in place, after comparing it with what was sent.

    That of a lost head gets an identity of its own, and generations above those that run: it may be older than they are.
    """
    paths.create()
    content = paths.moving_store.read_bytes()
    if hashlib.sha256(content).hexdigest() != request.sha256:
        raise StoreError(
            StoreFault.UNREADABLE, "The store arrived damaged.", means="The head was not moved.", do=""
        )
    found = read_content(paths.moving_store)
    if found is None or found.identity is None or found.identity.fleet not in ("", request.fleet):
        raise StoreError(
            StoreFault.FOREIGN, f"The store that arrived is not one of fleet {request.fleet}.", do=""
        )
    if request.running is not None:
        restore_copy(paths, request.fleet, paths.moving_store, request.running)
        paths.moving_store.unlink()
        return
    set_aside(paths)
    paths.moving_store.replace(paths.database)
    identity = found.identity
    write_mark(
        paths,
        StoreMark(
            id=identity.id, fleet=identity.fleet, changes=identity.changes, generations=found.generations
        ),
    )


async def _settle(paths: FleetPaths, move: HeadMove) -> None:
    if not paths.next_role.exists():  # the fleet is down: it has a store now, and no role until `up`
        paths.head_move.unlink(missing_ok=True)
        return
    await _kill(paths, move)
    role = Role.model_validate_json(paths.next_role.read_text())
    assert role.up is not None
    settled = role.model_copy(update={"up": role.up.model_copy(update={"beside": False})})
    write_atomically(paths.role, settled.for_disk().encode(), durable=True)
    move_to_backups(paths)  # not before: a move that is undone may be repeated
    paths.next_role.unlink()
    paths.head_move.unlink(missing_ok=True)  # as the last one: until then the step is repeated


async def _away(paths: FleetPaths, request: MoveRequest) -> dict[str, Any]:
    await _kill(paths, request.move)
    begun: dict[str, Any] = {}
    if request.join is not None:
        begun = ray_watchdog.begin_join(request.join)
    else:
        await ray_watchdog.take_down(paths)
    retire(paths, paths.moving_store)
    return begun


async def _cancel(paths: FleetPaths) -> None:
    """Removes everything that a move has brought or started here. Does nothing on a head that has taken over."""
    move = read_move(paths.root)
    if move is None:
        return
    role = read_role(paths)
    if role is None or role.up is None:
        await processes.kill_all(
            lambda: processes.labelled({LABEL: paths.label, MOVED: move.token}), grace_s=0.0
        )
        retire(paths, paths.next_role)
    else:
        paths.moving_store.unlink(missing_ok=True)
        paths.head_move.unlink(missing_ok=True)


async def _kill(paths: FleetPaths, move: HeadMove) -> None:
    await processes.kill_all(lambda: _old(paths, move), grace_s=0.0)


def _old(paths: FleetPaths, move: HeadMove) -> list[processes.Process]:
    """Processes of Ray on this node, but for those that the move has started, and this one."""
    return [
        one
        for one in processes.labelled({LABEL: paths.label})
        if one.pid != os.getpid() and not processes.carries(one.pid, {MOVED: move.token})
    ]
