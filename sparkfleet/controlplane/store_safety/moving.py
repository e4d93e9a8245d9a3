"""The sign that a fleet's head is being moved: while it is beside a store, no controller uses that store.

It is written on both heads, so that neither of two controllers acts, whatever ends in the meantime.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from sparkfleet.controlplane.state.head_address import HeadMove
from sparkfleet.controlplane.store_safety.guard import StoreError, StoreFault
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths


def read_move(root: Path) -> HeadMove | None:
    """The move that is under way on this node; None if there is none. One that cannot be read has no destination."""
    try:
        return HeadMove.model_validate_json(FleetPaths(root).head_move.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        return HeadMove(to="?", token="")


def begin_move(paths: FleetPaths, move: HeadMove) -> None:
    """Writes the sign; it is on the disk when the call returns."""
    write_atomically(paths.head_move, move.for_disk().encode(), durable=True)


def require_here(root: Path) -> None:
    """Raises StoreError if the head is being moved, or was moved from this node."""
    move = read_move(root)
    if move is not None:
        raise StoreError(
            StoreFault.MOVED,
            f"The head of this fleet is being moved to {move.to}.",
            do=f"`sparkfleet move-head {move.to}` completes it, `sparkfleet move-head --cancel {move.to}` undoes it.",
        )
