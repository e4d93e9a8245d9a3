"""The mark of a store: a file beside it that names the store which belongs there, and how far it had come.

It is written twice, in the state directory and in the run directory on another file system: a store that is missing together
with its mark is still known to have existed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from sparkfleet.controlplane.state.store import Store
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.values import Value

log = logging.getLogger(__name__)


class StoreMark(Value):
    """Identity of the store that belongs in a state directory. An empty `id` matches every store."""

    id: str = ""
    fleet: str = ""
    changes: int = 0
    """Changes that it had when the mark was written: a file with fewer is an older copy."""
    generations: Mapping[str, int] = Field(default_factory=dict)
    """Newest generation ever given to each name."""


def mark_of(store: Store) -> StoreMark:
    """The mark of an open store."""
    identity = store.identity()
    return StoreMark(
        id=identity.id,
        fleet=identity.fleet,
        changes=identity.changes,
        generations=store.deployments.generations(),
    )


def read_mark(paths: FleetPaths) -> StoreMark | None:
    """The newest mark that can be read. One that is there and cannot be read matches every store; None: there is none."""
    return newest([*map(_read, (paths.store_mark, paths.run_store_mark))])


def newest(marks: Iterable[StoreMark | None]) -> StoreMark | None:
    """The mark with the most changes; None if all are None. One with an id precedes one without."""
    known = [mark for mark in marks if mark is not None]
    return max(known, key=lambda mark: (bool(mark.id), mark.changes), default=None)


def write_mark(paths: FleetPaths, mark: StoreMark) -> None:
    """Writes both files, the one in the state directory first, and the other one also if that cannot be written.

    Raises OSError.
    """
    text = mark.for_disk().encode()
    try:
        write_atomically(paths.store_mark, text, durable=True)
    finally:
        write_atomically(paths.run_store_mark, text)


def is_kept(paths: FleetPaths) -> bool:
    """True if both files can be read."""
    marks = [*map(_read, (paths.store_mark, paths.run_store_mark))]
    return all(mark is not None and mark.id for mark in marks)


def follow(store: Store, paths: FleetPaths) -> None:
    """Writes the mark of an open store now and after each of its changes.

    A mark that cannot be written (a full disk) stays behind the store, which is harmless: only a store with fewer changes
    than its mark is refused.
    """

    def write() -> None:
        try:
            write_mark(paths, mark_of(store))
        except OSError as error:
            log.warning("the mark of the store could not be written: %s", error)

    store.on_change = write
    write()


def _read(path: Path) -> StoreMark | None:
    try:
        return StoreMark.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        return StoreMark()
