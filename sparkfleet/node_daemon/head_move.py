"""Steps of moving the head to another node, as each node carries them out. Each may be repeated while its move is under way.

kept     on any node, if the head is lost: its copy of the store, and what runs on it
out      on the old head: its controller waits from now on; a checked copy of the store
in       on the new head: store, secrets, and a second Ray with a controller that waits, beside the Ray that it has
freeze   on every node: stops the processes of the old Ray, so that none takes another's end for a failure; they continue by
         themselves if no other step comes within a minute
give     on the old head: from now on the new one may have taken over
settle   on the new head: ends the old Ray there; the controller works
away     on the old head: its store is set aside, and it joins the new head
cancel   on every node: back to the old head

Of two moves to one node the later one goes on, and the earlier one is refused its next step; one to another node is refused.
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
from sparkfleet.controlplane.state.head_address import HeadMove, read_address
from sparkfleet.controlplane.store_safety.copies import copy_database, described
from sparkfleet.controlplane.store_safety.guard import StoreError, StoreFault
from sparkfleet.controlplane.store_safety.kept_copy import kept_path, move_to_backups
from sparkfleet.controlplane.store_safety.mark import StoreMark, write_mark
from sparkfleet.controlplane.store_safety.moving import (
    UNREADABLE,
    alone_moving,
    begin_move,
    give_head,
    read_move,
    release_head,
    require_no_other_move,
    require_under_way,
)
from sparkfleet.controlplane.store_safety.opening import named_errors, read_content
from sparkfleet.controlplane.store_safety.restore import restore_copy, set_aside
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.node_daemon import ray_watchdog, service_manager
from sparkfleet.node_daemon.error_answer import error_answer
from sparkfleet.node_daemon.former_head import retire
from sparkfleet.node_daemon.left_ray import left_ray
from sparkfleet.node_daemon.pending_move import MOVED, role_if_readable, undo_here
from sparkfleet.node_daemon.role_guard import read_role
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime import processes, thaw_guard
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.node_command import node_command
from sparkfleet.runtime.ports import is_taken
from sparkfleet.runtime.process_runtime import ProcessRuntime

HELD_S = 20.0
"""Time limit for the controller to notice that it has to wait: it looks every half second, at most a round later."""


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
        case "away":
            return await _away(paths, request)
    if request.step == "in":
        paths.create()
    async with alone_moving(paths):
        match request.step:
            case "in":
                return await _in(paths, request)
            case "freeze":
                await _freeze(paths, request.move)
            case "give":
                require_under_way(paths.root, request.move)
                give_head(paths)
            case "settle":
                await _settle(paths, request.move)
            case "cancel":
                return await _cancel(paths, request)
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
    async with alone_moving(paths):
        require_no_other_move(paths.root, request.move)
        begin_move(paths, request.move)
    try:
        api_token = paths.read_api_token()
        await _until_held(paths)
        require_under_way(paths.root, request.move)
        with named_errors(paths.database):
            copy_database(paths.database, paths.moving_store)
    except BaseException:
        if (now := read_move(paths.root)) is not None and now.token == request.move.token:
            release_head(paths)
        raise
    copy = paths.moving_store.read_bytes()
    address = read_address(paths)
    return {
        "path": str(paths.moving_store),
        "bytes": len(copy),
        "sha256": hashlib.sha256(copy).hexdigest(),
        "ray_token": paths.ray_token.read_text(),
        "api_token": api_token,
        "engine_secret": paths.read_engine_secret(),
        "engine_tokens": paths.read_token_secrets().text(),
        "term": address.term if address is not None else 0,
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
    require_no_other_move(paths.root, request.move)
    await undo_here(paths)
    _take_store(paths, request)
    for path, secret in (
        (paths.ray_token, request.ray_token),
        (paths.api_token, request.api_token),
        (paths.engine_secret, request.engine_secret),
        (paths.engine_tokens, request.engine_tokens),
    ):
        if secret:
            write_atomically(path, secret.encode(), durable=True)
    begin_move(paths, request.move, arriving=True)
    if request.up is None:
        return {}
    joined = role.join if role is not None else None
    port = _fleets_port(joined) if joined is not None else 0
    before = read_address(paths)
    terms = (request.term, joined.term if joined else 0, before.term if before else 0)
    # Of a time when this node was the head: its port would be taken again.
    for path in (paths.address, paths.run_address):
        path.unlink(missing_ok=True)
    up = request.up.model_copy(update={"term": max(terms) + 1, "ray_port": port})
    next_role = Role(python=sys.executable, up=up)
    write_atomically(paths.next_role, next_role.for_disk().encode(), durable=True)
    paths.outcome.unlink(missing_ok=True)
    argv = node_command(sys.executable, "keep", str(paths.root), "next")
    environment = {LABEL: paths.label, MOVED: request.move.token}
    await asyncio.to_thread(service_manager.spawn, argv, environment, paths.logs / "boot.log")
    return {"outcome": str(paths.outcome), "at_its_port": bool(port)}


def _fleets_port(joined: JoinRequest) -> int:
    """The port of the present head's Ray; 0 if it is taken here.

    A head that was lost looks for newer ones there when it comes back, however often the head has moved since.
    """
    port = int(joined.ray.rpartition(":")[2])
    return 0 if is_taken(port, joined.host) else port


def _take_store(paths: FleetPaths, request: MoveRequest) -> None:
    """Puts the store that was brought in place, after comparing it with what was sent.

    That of a lost head gets an identity of its own, and generations above those that run: it may be older than they are.
    """
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


async def _freeze(paths: FleetPaths, move: HeadMove) -> None:
    role = read_role(paths)
    if role is None:
        raise ControlError(
            "A node has no role in the fleet: `sparkfleet down` has ended it there.",
            means="The head was not moved.",
            do="`sparkfleet up` starts the fleet.",
        )
    is_new = role.join is not None and role.join.node == move.to
    if role.up is not None or is_new or read_move(paths.root) is not None:
        require_under_way(paths.root, move)
    await thaw_guard.start(LABEL, paths.label)  # a command that is killed now could not let them continue
    await processes.freeze(lambda: _old(paths, move))


async def _settle(paths: FleetPaths, move: HeadMove) -> None:
    before = read_role(paths)
    if before is not None and before.up is not None:  # it has taken over, perhaps not to the end
        require_no_other_move(paths.root, move)
        _complete(paths)
        return
    require_under_way(paths.root, move)
    if before is None and not paths.next_role.exists():
        paths.head_move.unlink()  # the fleet is down: it has a store now, and no role until `up`
        return
    await _kill(paths, move)
    role = Role.model_validate_json(paths.next_role.read_text())
    assert role.up is not None
    settled = role.model_copy(update={"up": role.up.model_copy(update={"beside": False})})
    write_atomically(paths.role, settled.for_disk().encode(), durable=True)
    _complete(paths)


def _complete(paths: FleetPaths) -> None:
    """Removes what the move has left on the new head, whose role is that of a head already."""
    if read_move(paths.root) is None:
        return
    move_to_backups(paths)  # not before: a move that is undone may be repeated
    paths.next_role.unlink(missing_ok=True)
    paths.head_move.unlink(missing_ok=True)  # as the last one: until then the step is repeated


async def _away(paths: FleetPaths, request: MoveRequest) -> dict[str, Any]:
    require_no_other_move(paths.root, request.move)
    await _kill(paths, request.move)
    begun: dict[str, Any] = {}
    if request.join is not None:
        begun = ray_watchdog.begin_join(request.join)
    else:
        retire(paths, paths.moving_store)  # first: `down` ends a move that is under way
        await ray_watchdog.take_down(paths)
    retire(paths, paths.moving_store)
    return begun


async def _cancel(paths: FleetPaths, request: MoveRequest) -> dict[str, Any]:
    """Ends the move here, or any move to that node for a request without a token. `head`: the new head has taken over."""
    move, role, found = request.move, role_if_readable(paths), read_move(paths.root)
    if role is not None and role.up is not None and role.up.inventory.head == move.to:
        return {"head": True}
    if found is not None:
        if move.token and found.token != move.token:
            return {}
        if found.to != UNREADABLE:
            require_no_other_move(paths.root, move)
        if found.stage == "given" and not request.certain:
            raise _may_have_taken_over(move)
        await undo_here(paths)
    await processes.thaw(lambda: _old(paths, move))
    await thaw_guard.end(paths.label)
    return {}


def _may_have_taken_over(move: HeadMove) -> ControlError:
    return ControlError(
        f"{move.to} is not reached, and it is not known if it is the head: the move got as far as that.",
        means="The old head keeps waiting, so that no two heads act.",
        do=f"Once {move.to} is reached: `sparkfleet move-head {move.to}` completes the move. If it is lost for good:"
        " `sparkfleet down`, then `sparkfleet up`, with the present head in the inventory.",
    )


async def _kill(paths: FleetPaths, move: HeadMove) -> None:
    await processes.kill_all(lambda: _old(paths, move), grace_s=0.0)
    await thaw_guard.end(paths.label)


def _old(paths: FleetPaths, move: HeadMove) -> list[processes.Process]:
    """Processes of Ray on this node, but for those that the move has started, and this one."""
    return [
        one
        for one in processes.labelled({LABEL: paths.label})
        if one.pid != os.getpid() and not processes.carries(one.pid, {MOVED: move.token})
    ]
