"""Checked copies of the store, made while it is in use: one after each change and one an hour, the last seven of each."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from sparkfleet.controlplane.state.store_copies import COPY_NAME, Occasion, StoreCopy, named_moment
from sparkfleet.controlplane.store_safety.guard import StoreError, StoreFault
from sparkfleet.controlplane.store_safety.mark import read_mark
from sparkfleet.controlplane.store_safety.opening import named_errors, read_content, require_known_fields
from sparkfleet.errors import ControlError
from sparkfleet.group.group_name import GroupKey
from sparkfleet.remote.atomic_write import sync_directory
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.fields import quote

KEPT = 7
"""Copies kept of each occasion."""
HOURLY_S = 3600.0
PART_S = 3600.0
"""Age of a part of a copy that nothing writes any more."""


def take_copy(paths: FleetPaths, occasion: Occasion, now: float | None = None) -> Path:
    """Copies the store, checks the copy, and drops old ones of the same occasion. The store may be in use meanwhile.

    Raises:
        StoreError: there is no store, it cannot be read, or the copy is not sound.
        OSError: the copy cannot be written.
    """
    if not paths.database.exists():
        if read_mark(paths) is None:
            raise ControlError(
                "There is no store to copy: this fleet was never started.",
                do="`sparkfleet apply FILE` or `sparkfleet up` starts it.",
            )
        raise StoreError(StoreFault.MISSING, f"There is no store {paths.database} to copy.")
    paths.backups.mkdir(mode=0o700, exist_ok=True)
    at = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    path = paths.backups / f"{at:%Y%m%dT%H%M%S%fZ}-{occasion}.db"
    beside = paths.backups / f".{path.name}"
    try:
        with named_errors(paths.database):
            copy_database(paths.database, beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    # Never the new one: an empty store that was made without its mark has fewer changes than its copies.
    others = [other for other in _of(paths, occasion) if other != path]
    for old in sorted(others, key=_age, reverse=True)[KEPT - 1 :]:
        old.unlink(missing_ok=True)
    return path


def remove_parts(paths: FleetPaths) -> None:
    """Removes parts of copies whose program was killed: those of the controller, and others after an hour.

    To be called by the controller before it copies; `sparkfleet backup` may be copying.
    """
    before = time.time() - PART_S
    for path in paths.backups.glob(".*.db*"):
        own = any(f"-{occasion}.db" in path.name for occasion in ("change", "hourly"))
        with contextlib.suppress(OSError):
            if own or path.stat().st_mtime < before:
                path.unlink()


def copy_database(source: Path, target: Path) -> None:
    """Copies a database as a whole, and checks the copy; it is on the disk when the call returns.

    Raises:
        sqlite3.Error: it cannot be read or written.
        StoreError: the copy is damaged.
    """
    target.unlink(missing_ok=True)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with (
        contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as db,
        contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy,
    ):
        db.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # a copy is one file
        (verdict,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise StoreError(StoreFault.UNREADABLE, f"The store {source} is damaged: {verdict}.")
    with target.open("rb") as file:
        os.fsync(file.fileno())
    sync_directory(target.parent)


def copies(paths: FleetPaths) -> tuple[StoreCopy, ...]:
    """All copies, each checked. One that is dropped meanwhile is left out.

    The newest are first: those with the most changes, which rise across restorations, and of equal ones by the clock. A
    clock that was ahead for a while would make an old copy the newest for as long.
    """
    found = []
    for path in _of(paths):
        with contextlib.suppress(FileNotFoundError):
            found.append(described(path))
    return tuple(sorted(found, key=lambda one: (one.changes, one.at), reverse=True))


def most_changes(paths: FleetPaths) -> int:
    """The highest number of changes in any copy; 0 without one."""
    return max((0, *(_age(path)[0] for path in _of(paths))))


def newest_copy(paths: FleetPaths, id_: str) -> StoreCopy | None:
    """The newest sound copy that was made of the store with this id; None if there is none."""
    for path in sorted(_of(paths), key=_age, reverse=True):
        if COPY_NAME.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # dropped meanwhile
                copy = described(path)
                if copy.id == id_ and not copy.trouble:
                    return copy
    return None


def find_copy(paths: FleetPaths, name: str) -> Path:
    """A copy by its name, or "latest". Raises StoreError if there is none, naming those that exist."""
    found = {path.name: path for path in _of(paths)}
    sound = (one.name for one in copies(paths) if not one.trouble) if name == "latest" else iter(())
    path = found.get(next(sound, name)) or found.get(f"{name}.db")
    if path is None:
        raise StoreError(
            StoreFault.MISSING,
            f"There is no copy {quote(name)} of the store.",
            means="",
            do=f"Copies: {', '.join(found) or 'none'}.",
        )
    return path


def _of(paths: FleetPaths, occasion: Occasion | None = None) -> list[Path]:
    ending = f"-{occasion}.db" if occasion else ".db"
    found = (path for path in paths.backups.glob(f"*{ending}") if not path.name.startswith("."))
    return sorted(found, key=_taken, reverse=True)


def _taken(path: Path) -> float:
    """The moment in a copy's name, Unix seconds: times of files change if somebody copies them."""
    at = named_moment(path.name)
    return path.stat().st_mtime if at is None else at


def starts_in(path: Path) -> frozenset[GroupKey]:
    """Groups whose start is under way in a copy; none if it cannot be read."""
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db,
    ):
        found = db.execute("SELECT DISTINCT name, generation, replica FROM starts")
        return frozenset((name, generation, replica) for name, generation, replica in found)
    return frozenset()


def _age(path: Path) -> tuple[int, float]:
    """Changes in a copy, and the moment in its name; -1 changes for one that cannot be read."""
    changes = -1
    with (
        contextlib.suppress(sqlite3.Error, TypeError),  # TypeError: without a row
        contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db,
    ):
        (changes,) = db.execute("SELECT changes FROM identity").fetchone()
    try:
        return changes, _taken(path)
    except OSError:  # dropped meanwhile
        return changes, 0.0


def described(path: Path) -> StoreCopy:
    """A copy by its content, checked. Raises FileNotFoundError if it is gone."""
    occasion = path.stem.rpartition("-")[2]
    known: Occasion = occasion if occasion in ("change", "hourly", "asked") else "other"  # type: ignore[assignment]
    copy = StoreCopy(name=path.name, at=_taken(path), occasion=known, bytes=path.stat().st_size)
    try:
        content = read_content(path)
        if content is None:
            return copy.model_copy(update={"trouble": "it is empty"})
        if content.identity is not None:
            copy = copy.model_copy(update=content.identity.model_dump())
        require_known_fields(path)
        return copy.model_copy(update={"deployments": tuple(_deployments(path))})
    except StoreError as error:
        return copy.model_copy(update={"trouble": error.what})


def _deployments(path: Path) -> Iterator[str]:
    with (
        named_errors(path),
        contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db,
    ):
        for name, generation in db.execute("SELECT name, generation FROM deployments ORDER BY name"):
            yield f"{name} (generation {generation})"
