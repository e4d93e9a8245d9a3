"""The sign that a fleet's head is being moved: while it is beside a store, no controller uses that store.

It is written on both heads, so that neither of two controllers acts, whatever ends in the meantime. The old head keeps the
tokens of moves that were undone in a file of their own: a new head that never took over is no newer head.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from sparkfleet.controlplane.state.head_address import HeadMove
from sparkfleet.controlplane.store_safety.guard import StoreError, StoreFault
from sparkfleet.errors import ControlError
from sparkfleet.remote.atomic_write import sync_directory, write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.values import Value

LOOK_S = 0.05
KEPT_TOKENS = 16
"""Undone moves that the old head remembers: each leaves at most one new head that is not reached, for ten minutes."""
UNREADABLE = "?"
"""Destination of a move whose sign cannot be read."""


class MoveMark(HeadMove):
    """A move as a head records it, in `head-move.json`."""

    stage: Literal["under way", "given"] = "under way"
    """On the old head. "given": the new head may have taken over, from now on."""
    arriving: bool = False
    """True on the new head."""


class UndoneMoves(Value):
    """Moves from this head that were undone, in `moves-undone.json`."""

    tokens: tuple[str, ...] = ()
    """Oldest first. Each is that of a new head that never took over."""


def read_move(root: Path) -> MoveMark | None:
    """The move that is under way on this node; None if there is none. One that cannot be read has no destination."""
    try:
        return MoveMark.model_validate_json(FleetPaths(root).head_move.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        return MoveMark(to=UNREADABLE, token="")


def void_moves(root: Path) -> frozenset[str]:
    """Tokens of moves from this head that were undone. Empty if they cannot be read: then a head may give way to a new one
    that never took over, which is less than two heads."""
    return frozenset(_read_undone(root))


def begin_move(paths: FleetPaths, move: HeadMove, *, arriving: bool = False) -> None:
    """Writes the sign; it is on the disk when the call returns.

    Args:
        paths: of one of the two heads.
        move: the move.
        arriving: this node becomes the head.
    """
    if not arriving:
        _remember_undone(paths, read_move(paths.root))
    _write(paths, MoveMark(to=move.to, token=move.token, arriving=arriving))


def give_head(paths: FleetPaths) -> None:
    """Records on the old head that the new one may have taken over, from now on."""
    mark = read_move(paths.root)
    assert mark is not None
    _write(paths, mark.model_copy(update={"stage": "given"}))


def release_head(paths: FleetPaths, *, certain: bool = True) -> None:
    """Ends a move on the old head, whose controller works again.

    Args:
        paths: of the old head.
        certain: the new head has not taken over, and never will.
    """
    move = read_move(paths.root)
    if move is None:
        return
    if certain:
        _remember_undone(paths, move)
    paths.head_move.unlink(missing_ok=True)
    sync_directory(paths.root)


def require_here(root: Path) -> None:
    """Raises StoreError if the head is being moved, or was moved from this node."""
    move = read_move(root)
    if move is not None:
        raise StoreError(
            StoreFault.MOVED,
            f"The head of this fleet is being moved to {move.to}.",
            do=f"`sparkfleet move-head {move.to}` completes it, `sparkfleet move-head --cancel {move.to}` undoes it.",
        )


def require_no_other_move(root: Path, move: HeadMove) -> None:
    """Raises ControlError if a move to another node is under way here. A later one to the same node takes its place."""
    found = read_move(root)
    if found is not None and found.to != move.to:
        raise _other_move(found, move)


def require_under_way(root: Path, move: HeadMove) -> None:
    """Raises ControlError if this very move is not under way here: another one is, or it was cancelled."""
    found = read_move(root)
    if found is None:
        raise ControlError(
            f"The move of the head to {move.to} has ended on a node: it was cancelled there, or by `sparkfleet down`.",
            means="The head was not moved.",
            do=f"`sparkfleet status` shows the fleet; `sparkfleet move-head {move.to}` begins again.",
        )
    if (found.to, found.token) != (move.to, move.token):
        raise _other_move(found, move)


@contextlib.asynccontextmanager
async def alone_moving(paths: FleetPaths) -> AsyncIterator[None]:
    """Lock of a step of a move on this node, against another one and `down`. Without a directory, or room, there is none."""
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(OSError):
            file = opened.enter_context((paths.root / "move.lock").open("w"))
            while not _locked(file.fileno()):
                await asyncio.sleep(LOOK_S)
        yield


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _other_move(found: MoveMark, move: HeadMove) -> ControlError:
    to = move.to if found.to == UNREADABLE else found.to
    words = (
        "Another move of the head" if found.to == UNREADABLE else f"Another move of the head, to {found.to},"
    )
    return ControlError(
        f"{words} is under way.",
        means="Two moves at once could make two heads.",
        do=f"Wait for its end, or end it: `sparkfleet move-head --cancel {to}`.",
    )


def _read_undone(root: Path) -> tuple[str, ...]:
    try:
        return UndoneMoves.model_validate_json(FleetPaths(root).undone_moves.read_bytes()).tokens
    except (OSError, ValidationError):
        return ()


def _remember_undone(paths: FleetPaths, move: MoveMark | None) -> None:
    before = _read_undone(paths.root)
    if move is None or not move.token or move.token in before:
        return
    undone = UndoneMoves(tokens=(*before, move.token)[-KEPT_TOKENS:])
    write_atomically(paths.undone_moves, undone.for_disk().encode(), durable=True)


def _write(paths: FleetPaths, mark: MoveMark) -> None:
    write_atomically(paths.head_move, mark.for_disk().encode(), durable=True)
