"""Opens the store of a fleet, or raises the reason for not using it. Nothing is made or changed before that is decided."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path

from pydantic import ValidationError

from sparkfleet.controlplane.state.desired import Generation, Standing
from sparkfleet.controlplane.state.schema import IDENTITY_SINCE, SCHEMAS
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.store_rows import StoreIdentity, desired_of, unknown_parts
from sparkfleet.controlplane.store_safety.guard import (
    KEEPS,
    StoreContent,
    StoreError,
    StoreFault,
    judge,
)
from sparkfleet.controlplane.store_safety.mark import StoreMark, follow, newest, read_mark
from sparkfleet.controlplane.store_safety.moving import require_here
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.units import MIB

FULL_BYTES = 1 * MIB
"""Free bytes below which a failed write is attributed to the disk: SQLite needs a page, its log a few."""
CORRUPT = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
"""Error names, with their extensions, of a file whose content is wrong: waiting does not help."""


def open_store(
    paths: FleetPaths,
    fleet: str,
    running: Collection[Generation] = (),
    known: StoreMark | None = None,
) -> Store:
    """Opens the fleet's store, and keeps its mark from now on. Makes one if no sign of an earlier one exists.

    Args:
        running: generations of applications or ranks that exist now.
        known: a mark that the caller remembers, if the files of it are gone.

    Raises:
        StoreError: the store cannot be used.
    """
    require_here(paths.root)
    content = read_content(paths.database)
    error = judge(fleet, paths.database, content, newest([read_mark(paths), known]), running)
    if error is not None:
        raise error
    require_known_fields(paths.database)
    with named_errors(paths.database):
        if content is not None and content.schema < len(SCHEMAS):
            _copy_before_migration(paths)
        store = Store(paths.database)
        try:
            identity = store.identity()
            if identity.fleet != fleet:
                store.identify(identity.model_copy(update={"fleet": fleet}))
        except BaseException:
            store.close()
            raise
    follow(store, paths)
    return store


def read_content(path: Path) -> StoreContent | None:
    """The identity of a database file, which is not changed; None if it does not exist, or is empty.

    Raises:
        StoreError: it cannot be read, is damaged, or was written by a newer release.
    """
    with named_errors(path):
        try:
            if path.stat().st_size == 0:
                return None
        except FileNotFoundError:
            return None
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            (schema,) = db.execute("PRAGMA user_version").fetchone()
            if schema > len(SCHEMAS):
                raise newer_release(path, schema)
            if schema == 0 and db.execute("SELECT 1 FROM sqlite_schema").fetchone() is None:
                return None  # its creation was interrupted
            (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise StoreError(StoreFault.UNREADABLE, f"The store {path} is damaged: {verdict}.")
            generations = dict(db.execute("SELECT name, last FROM generations"))
            return StoreContent(schema, _identity(db, schema), generations)


def _identity(db: sqlite3.Connection, schema: int) -> StoreIdentity | None:
    if schema < IDENTITY_SINCE:
        return None
    id_, fleet, changes = db.execute("SELECT id, fleet, changes FROM identity").fetchone()
    return StoreIdentity(id=id_, fleet=fleet, changes=changes)


def require_known_fields(path: Path) -> None:
    """Checks that this release reads every deployment of a store, which is not changed. A file without any is sound.

    Raises:
        StoreError: a newer release stored a field or a value that this one does not know.
    """
    if not path.exists():
        return
    with (
        named_errors(path),
        contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db,
    ):
        (schema,) = db.execute("PRAGMA user_version").fetchone()
        if schema != len(SCHEMAS):
            return  # empty, or of an older release, which stored nothing newer
        for name, *row in db.execute(
            "SELECT name, spec, plan, generation, who, since, members FROM deployments"
        ):
            with _known(path, name):
                desired_of(tuple(row))
        for name, standing in db.execute("SELECT name, standing FROM standings"):
            with _known(path, name):
                Standing.model_validate_json(standing)


@contextlib.contextmanager
def _known(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise StoreError(
            StoreFault.NEWER_RELEASE,
            f"The store {path} was written by a newer sparkfleet: this release does not know {unknown_parts(error)} of"
            f" deployment {name}.",
            means=KEEPS,
            do="Run `sparkfleet up` with the newer release, and there apply the deployment without them, if you want this"
            " one; or put a copy back that this release wrote: `sparkfleet restore` lists them.",
        ) from error


def _copy_before_migration(paths: FleetPaths) -> None:
    """Keeps the file as the older release wrote it, so that this release can be taken back.

    It replaces the copy of an earlier migration that was taken back: the older release has written more since.
    """
    paths.backups.mkdir(mode=0o700, exist_ok=True)
    kept = paths.backups / f"before-schema-{len(SCHEMAS)}.db"
    beside = kept.with_name(f".{kept.name}")
    beside.unlink(missing_ok=True)  # of a copy that was interrupted
    with (
        contextlib.closing(sqlite3.connect(paths.database)) as source,
        contextlib.closing(sqlite3.connect(beside)) as copy,
    ):
        source.backup(copy)
    beside.replace(kept)


def newer_release(path: Path, schema: int) -> StoreError:
    """Error about a store that a newer release wrote."""
    return StoreError(
        StoreFault.NEWER_RELEASE,
        f"The store {path} was written by a newer sparkfleet: its schema is {schema}, this release reads up to"
        f" {len(SCHEMAS)}.",
        means=KEEPS,
        do="Run `sparkfleet up` with the newer release, or put a copy back that this release wrote:"
        " `sparkfleet restore` lists them.",
    )


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and of the file system into a StoreError with the file and the reason."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: Exception) -> StoreError:
    """Error about a store that cannot be read or written, with the reason and what helps."""
    return StoreError(
        StoreFault.UNREADABLE, f"The store {path} cannot be used: {reason(path, error)}.", do=_remedy(path)
    )


def reason(path: Path, error: Exception) -> str:
    """The reason of a failure, for people: SQLite only reports that it was unable to open a file."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if is_corrupt(error):
        return f"its content is no store ({error})"
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return "this user may not read and write it"
    if not os.access(path.parent, os.R_OK | os.W_OK | os.X_OK):
        return "this user may not read and write its directory"
    if is_full(path):
        return f"its disk is full ({error})"
    return str(error)


def is_corrupt(error: Exception) -> bool:
    """True if the content of the file is wrong."""
    return getattr(error, "sqlite_errorname", "").startswith(CORRUPT)


def is_full(path: Path) -> bool:
    """True if the disk of a file has no room left."""
    try:
        return shutil.disk_usage(path.parent).free < FULL_BYTES
    except OSError:
        return False


def _remedy(path: Path) -> str:
    if is_full(path):
        return f"Free space on the head's disk with {path.parent}; the controller continues within seconds."
    return (
        f"Look at it on the head with `ls -l {path}`; the controller continues within seconds once it can be used."
        " `sparkfleet restore` lists the copies."
    )
