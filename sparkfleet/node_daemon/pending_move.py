"""Ends a move of the head on this node before the new head has taken over: what it has brought or started here goes."""

from __future__ import annotations

import logging

from sparkfleet.controlplane.api.api_models import Role
from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.controlplane.store_safety.moving import alone_moving, read_move, release_head
from sparkfleet.errors import ControlError
from sparkfleet.node_daemon.former_head import retire
from sparkfleet.node_daemon.role_guard import read_role
from sparkfleet.runtime import processes
from sparkfleet.runtime.files.fleet_paths import FleetPaths

log = logging.getLogger(__name__)

MOVED = "SPARKFLEET_MOVE"
"""Variable with the move's token in the processes that it has started on the new head."""


async def undo_here(paths: FleetPaths, *, certain: bool = True) -> None:
    """Ends the move that is under way here, if there is one. The caller holds `alone_moving`.

    The old head works again. The new one is an ordinary node again, unless it has taken over: then it is the head.

    Args:
        paths: of one of the two heads, or any other node.
        certain: see `release_head`.
    """
    move = read_move(paths.root)
    if move is None:
        return
    role = role_if_readable(paths)
    if role is not None and role.up is not None and move.arriving:
        paths.next_role.unlink(missing_ok=True)
        paths.head_move.unlink(missing_ok=True)
    elif move.arriving or (role is not None and role.join is not None):
        await processes.kill_all(
            lambda: processes.labelled({LABEL: paths.label, MOVED: move.token}), grace_s=0.0
        )
        retire(paths, paths.next_role)
    else:
        paths.moving_store.unlink(missing_ok=True)
        release_head(paths, certain=certain)


async def end_by_down(paths: FleetPaths) -> None:
    """Ends the move that is under way on a node that is taken down. It does not matter to `down` if that fails."""
    try:
        async with alone_moving(paths):
            move = read_move(paths.root)
            await undo_here(paths, certain=move is not None and move.stage != "given")
    except OSError as error:
        log.error("a move of the head that was under way here has not ended: %s", error)


async def end_if_left(paths: FleetPaths) -> None:
    """Ends the move to this node if nothing runs of what it has started: this node has booted since, as an ordinary one."""
    move = read_move(paths.root)
    if move is None or not move.arriving:
        return
    try:
        async with alone_moving(paths):
            role = role_if_readable(paths)
            if role is None or role.join is None or _runs(paths):
                return
            log.warning(
                "the head was to be moved here, and this node has started again since: it is not moved"
            )
            await undo_here(paths)
    except OSError as error:
        log.error("the move of the head to this node has not ended: %s", error)


async def end_unsettled(paths: FleetPaths) -> None:
    """Ends the move to this node if it has not taken over by now: its command does not reach this node any more."""
    async with alone_moving(paths):
        role = role_if_readable(paths)
        if role is not None and role.join is not None and read_move(paths.root) is not None:
            log.warning("the head was to be moved here, and nobody has completed that: it is not moved")
            await undo_here(paths)


def role_if_readable(paths: FleetPaths) -> Role | None:
    """The node's role; None also if it cannot be read: a move is ended all the same."""
    try:
        return read_role(paths)
    except ControlError:
        return None


def _runs(paths: FleetPaths) -> bool:
    move = read_move(paths.root)
    return move is not None and bool(processes.labelled({LABEL: paths.label, MOVED: move.token}))
