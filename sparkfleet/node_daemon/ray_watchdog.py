"""Keeps this node in its fleet: starts Ray again when it dies, and after a reboot.

The watchdog is one process per node, `python -m sparkfleet.node_daemon.node_cli keep STATE_DIR`. It reads the node's role
from `role.json`; `service_manager` starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sparkfleet.controlplane.api.api_models import JoinRequest, Role, UpRequest
from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.controlplane.sealing import sealed
from sparkfleet.controlplane.store_safety.moving import alone_moving
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.group.crash_pause import COUNTS_S, pause_s
from sparkfleet.node_daemon import node_lifecycle, pending_move, service_manager
from sparkfleet.node_daemon.controller_watch import watch_of
from sparkfleet.node_daemon.error_answer import error_answer
from sparkfleet.node_daemon.former_head import find_newer_head, join_newer_head, retire
from sparkfleet.node_daemon.left_ray import LeftRay, RayProcess, left_ray, watchdog_lock
from sparkfleet.node_daemon.node_lifecycle import alone
from sparkfleet.node_daemon.role_guard import read_role, require_joinable, require_no_other_head, write_role
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.log_limit import limit
from sparkfleet.runtime.files.spared import spared
from sparkfleet.runtime.node_command import node_command
from sparkfleet.runtime.sealed_env import EnvSealer
from sparkfleet.specs.timeouts import Timeouts

log = logging.getLogger(__name__)

PAUSES = Timeouts()
"""The pauses of engines: Ray takes about as long to start."""

LOOK_S = 0.2
LIMIT_S = 60.0
"""Seconds between two looks at the sizes of logs."""
NEWER_S = 15.0
"""Seconds between two looks of a head for a newer one."""
SETTLE_S = 600.0
"""Seconds from the start of a new head beside the Ray that its node has until it takes over. Else it ends: its move takes
a minute or two, and one that was killed begins again with a copy of the store anyway."""
WATCH_S = 2.0
"""Seconds between two readings of the role on a node that is not the head."""
START_S = 180.0
"""A start without an outcome that began longer ago has hung: another one ends it."""


def begin_up(request: UpRequest) -> dict[str, str]:
    """Starts a watchdog on the head; returns the path of its outcome, and the service that starts it after a reboot.

    The same start that is under way goes on, and the answer has its origin (`begun_by`).

    Raises:
        ControlError: this node has another head, or a stored deployment has the endpoint's port.
    """
    paths = request.paths
    require_no_other_head(paths)
    _after_a_stop(paths)
    node_lifecycle.check_declared_ports(paths, request)  # not after a reboot: most of the fleet would come up
    return _begin(paths, Role(python=sys.executable, up=_sealed(paths, request)))


def _sealed(paths: FleetPaths, request: UpRequest) -> UpRequest:
    """The request without open values of `env`: the role is a file that outlives the start."""
    if not request.apply:
        return request
    paths.create()
    sealer = EnvSealer(paths.read_engine_secret().encode())
    pairs = ((one, *sealed(one.spec, one.plan, sealer)) for one in request.apply)
    closed = tuple(one.model_copy(update={"spec": spec, "plan": plan}) for one, spec, plan in pairs)
    return request.model_copy(update={"apply": closed})


def _after_a_stop(paths: FleetPaths) -> None:
    """Waits for the end of a `down` that is under way, which would end the watchdog that starts now. One that was
    interrupted has let its lock go, and needs no repetition any more."""
    if paths.ended_role.exists():
        with alone(paths):
            paths.ended_role.unlink(missing_ok=True)


def begin_join(request: JoinRequest) -> dict[str, str]:
    """Starts a watchdog on another node. Raises ControlError if it has another head that lives."""
    replaced = require_joinable(request)
    paths = request.paths
    _after_a_stop(paths)
    paths.create()
    paths.take(
        ray_token=request.ray_token,
        engine_secret=request.engine_secret,
        engine_tokens=request.engine_tokens,
    )
    bare = request.model_copy(
        update={"ray_token": "", "engine_secret": "", "engine_tokens": "", "joined": False}
    )
    begun = _begin(paths, Role(python=sys.executable, join=bare), resumed=request.joined)
    if replaced:
        retire(paths)
    return begun


async def take_down(paths: FleetPaths) -> None:
    """Removes the node from its fleet, and stops everything of it. Its watchdog does not start at boot.

    Until the end its role is kept under another name, so that a stop that is interrupted is found and repeated. A move of
    the head that is under way ends.
    """
    service_manager.stop(paths.label)
    await pending_move.end_by_down(paths)
    with contextlib.suppress(FileNotFoundError):
        paths.role.replace(paths.ended_role)
    if paths.root.exists():  # for processes that wait for a start that is under way
        _write_outcome(paths, error_answer(taken_down()))
    await node_lifecycle.down(paths)
    paths.ended_role.unlink(missing_ok=True)


async def keep(paths: FleetPaths, next_head: bool = False) -> int:
    """Starts the node's role, and restarts it whenever it dies. Returns only if the first start fails.

    Args:
        paths: the fleet's directories.
        next_head: until the head is moved here, the role is that in `role.next.json`.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with watchdog_lock(paths) as lone, spared(paths.run.parent):
        return await _keep(paths, next_head, alone=lone)


async def _keep(paths: FleetPaths, next_head: bool, *, alone: bool) -> int:
    # A role that is to be started has no outcome yet. With one, only the watchdog starts again: Ray may run on.
    resumed = paths.outcome.exists()
    if resumed and not alone:
        return 0
    ends, first = 0, True
    while True:
        began = time.monotonic()
        try:
            ray = await _start(paths, first, next_head, resumed=resumed and first)
        except SparkfleetError as error:
            _write_outcome(paths, error_answer(error))
            log.error("%s", error)
            if first:
                return error.exit_code
        except Exception as error:
            log.exception("this node did not start")
            _write_outcome(
                paths, {"error": {"what": f"The fleet did not start: {error!r}", "means": "", "do": ""}}
            )
            if first:
                return 1
        else:
            if isinstance(ray, LeftRay) and not alone:  # another watchdog has just started it
                return 0
            if ray is None:  # it runs already: another watchdog keeps it, or has left it
                ray = await asyncio.to_thread(left_ray, paths) if alone else None
                if ray is None:
                    return 0
            first = False
            code = await _watch_until_end(paths, ray, next_head)
            log.warning("Ray ended with exit code %s", code)
            if next_head and await _is_ordinary(paths):
                return 0  # the head was not moved here, and another watchdog keeps the node
        # After a long run of Ray the next pause is a short one again.
        ends = 1 if time.monotonic() - began > COUNTS_S else max(ends + 1, 2)
        pause = pause_s(ends, PAUSES)
        log.info("starting again in %.0f s", pause)
        await asyncio.sleep(pause)


async def _start(paths: FleetPaths, first: bool, next_head: bool, *, resumed: bool) -> RayProcess | None:
    coming = next_head and paths.next_role.exists()
    if not coming:
        await pending_move.end_if_left(paths)
    role = Role.model_validate_json(paths.next_role.read_text()) if coming else read_role(paths)
    if role is None:
        raise taken_down()
    if role.up is not None and not coming and (newer := await find_newer_head(paths, role.up)):
        role = join_newer_head(paths, role, newer)
    if role.join is not None:
        ray = await node_lifecycle.join(role.join, resumed)
        _write_outcome(paths, {})
        return ray
    assert role.up is not None
    address, head = await node_lifecycle.up(role.up)
    if not coming and not paths.role.exists():
        await node_lifecycle.down(paths)
        raise taken_down()
    if role.up.apply:  # the deployments are in the store now, and may change there
        write_role(paths, role.model_copy(update={"up": role.up.model_copy(update={"apply": ()})}))
    if first:
        _write_outcome(paths, address.model_dump())
    return head


async def _watch_until_end(paths: FleetPaths, ray: RayProcess, next_head: bool) -> int:
    """Waits for the end of Ray, and keeps the controller alive until then if this is the head; Ray's exit code."""
    logs = (paths.logs / "boot.log", paths.logs / "ray.log")
    works = [
        asyncio.create_task(one) for one in (_watch_controller(paths), _limit_logs(logs), _give_way(paths))
    ]
    if next_head:
        works.append(asyncio.create_task(_until_settled(paths)))
    try:
        return await _until_ended(ray)
    finally:
        for work in works:
            work.cancel()


async def _until_settled(paths: FleetPaths) -> None:
    """Ends the start of a head here that does not take over in time."""
    await asyncio.sleep(SETTLE_S)
    while paths.next_role.exists():
        try:
            # Ray ends by that, and this task with it.
            await asyncio.shield(pending_move.end_unsettled(paths))
        except OSError:
            log.exception("the move of the head to this node has not ended")
        await asyncio.sleep(NEWER_S)


async def _is_ordinary(paths: FleetPaths) -> bool:
    """True if this node is an ordinary one and is not to become the head; False if its role cannot be read."""
    async with alone_moving(paths):  # after the end of a move that is ending
        role = pending_move.role_if_readable(paths)
        return role is not None and role.join is not None and not paths.next_role.exists()


async def _limit_logs(logs: Sequence[Path]) -> None:
    while True:
        limit(logs)
        await asyncio.sleep(LIMIT_S)


async def _watch_controller(paths: FleetPaths) -> None:
    while (request := _as_head(paths)) is None:
        await asyncio.sleep(WATCH_S)  # another node than the head, which it may become
    await watch_of(paths, request).run()


async def _give_way(paths: FleetPaths) -> None:
    """Ends Ray of a head that was replaced: at its next start it joins the newer one."""
    while True:
        await asyncio.sleep(NEWER_S)
        try:
            request = _as_head(paths)
            if request is not None and (newer := await find_newer_head(paths, request)):
                log.warning("%s is the head of this fleet now: Ray ends here", newer.node)
                await node_lifecycle.clear_leftovers(paths)
        except Exception:  # the next look may work
            log.exception("it is not known if there is a newer head")


def _as_head(paths: FleetPaths) -> UpRequest | None:
    """The request of this node's role if it is the head. None also if the role cannot be read: it may come back."""
    try:
        role = read_role(paths)
    except ControlError as error:
        log.error("%s", error.what)
        return None
    return role.up if role is not None else None


async def _until_ended(ray: RayProcess) -> int:
    while (code := ray.poll()) is None:
        await asyncio.sleep(LOOK_S)
    return code


def _begin(paths: FleetPaths, role: Role, *, resumed: bool = False) -> dict[str, str]:
    paths.create()
    begun_by = _begun_by(paths, role)
    if begun_by is None:
        if not resumed:
            paths.outcome.unlink(missing_ok=True)
        write_role(paths, role)
    comes_back = start_watchdog(paths, role, again=begun_by is None)
    return {"outcome": str(paths.outcome), "comes_back": comes_back, "begun_by": begun_by or ""}


def _begun_by(paths: FleetPaths, role: Role) -> str | None:
    """Origin of the start of this role that is under way, "" on a node that is not the head; None if there is none.

    Deployments do not count: the command that applies them sends them to the controller, too, once it answers.
    """
    try:
        stored = read_role(paths)
        began = paths.role.stat().st_mtime
    except (ControlError, OSError):
        return None
    if stored is None or paths.outcome.exists() or time.time() - began > START_S:
        return None
    if _bare(stored) != _bare(role):
        return None
    return stored.up.who if stored.up is not None else ""


def _bare(role: Role) -> Role:
    """The role without its origin and its deployments."""
    if role.up is None:
        return role
    return role.model_copy(update={"up": role.up.model_copy(update={"who": "", "apply": ()})})


def resume(paths: FleetPaths) -> None:
    """Starts the watchdog of a node again that has ended by itself; it adopts Ray if that runs. Nothing without a role."""
    role = read_role(paths)
    if role is None:
        return
    start_watchdog(paths, role)
    if not paths.role.exists():  # `down` has removed the service before this start put it back
        service_manager.stop(paths.label)


def start_watchdog(paths: FleetPaths, role: Role, *, again: bool = True) -> str:
    """Starts the watchdog of a role that is stored; returns the service that starts it after a reboot, "" for none.

    Args:
        paths: the fleet's directories.
        role: of this node.
        again: end one that runs.
    """
    argv = node_command(role.python, "keep", str(paths.root))
    log_file = paths.logs / "boot.log"
    return service_manager.start(paths.label, argv, {LABEL: paths.label}, log_file, again=again)


def taken_down() -> ControlError:
    """Error of a start that `down` has ended."""
    return ControlError(
        "The fleet was taken down while it started.",
        means="Nothing is served; what was applied before is kept.",
        do="`sparkfleet up` starts it.",
    )


def _write_outcome(paths: FleetPaths, outcome: dict[str, object]) -> None:
    """Records the outcome of a start for those that wait. Without room for it the node is still kept, or stopped."""
    try:
        write_atomically(paths.outcome, json.dumps(outcome).encode())
    except OSError as error:
        log.error("%s could not be written: %s", paths.outcome, error.strerror)
