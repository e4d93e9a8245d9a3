"""Puts a store in place: a copy, one made of what runs, or an empty one. The file that was there is kept beside the copies.

The new file gets an identity of its own, and its generations begin above all that were ever given, so that nothing that
still runs is mistaken for something newer. A controller that waits for a store continues with it within a second.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from sparkfleet.controlplane.state.desired import Desired, Generation
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.store_copies import RestoredStore
from sparkfleet.controlplane.store_safety.applied import Applied, applied_in, read_applied
from sparkfleet.controlplane.store_safety.copies import copies, copy_database, most_changes
from sparkfleet.controlplane.store_safety.guard import StoreError, StoreFault
from sparkfleet.controlplane.store_safety.mark import StoreMark, mark_of, read_mark, write_mark
from sparkfleet.controlplane.store_safety.opening import named_errors, read_content, require_known_fields
from sparkfleet.errors import ControlError
from sparkfleet.runtime.files.fleet_paths import FleetPaths

log = logging.getLogger(__name__)

NEW = ".sparkfleet.db.new"


def restore_copy(
    paths: FleetPaths, fleet: str, copy: Path, running: Collection[Generation] = ()
) -> RestoredStore:
    """Puts a copy in place.

    Args:
        copy: a file of `copies`.
        running: generations that run now: new ones begin above them.

    Raises:
        StoreError: the copy is damaged, of another fleet, or of a newer release, by its schema or by a field.
    """
    content = read_content(copy)
    if content is None:
        raise StoreError(StoreFault.UNREADABLE, f"The copy {copy.name} is empty.")
    owner = content.identity.fleet if content.identity else ""
    if owner not in ("", fleet):
        raise StoreError(StoreFault.FOREIGN, f"The copy {copy.name} is of fleet {owner}, not of {fleet}.")
    require_known_fields(copy)
    with named_errors(copy):
        copy_database(copy, _new(paths))
    return _put_in_place(paths, fleet, copy.name, running)


def adopt_running(paths: FleetPaths, fleet: str, running: Collection[Generation]) -> RestoredStore:
    """Makes a store of exactly what runs, with the keys and the history of the newest record.

    Raises:
        ControlError: nothing runs, or the request of something that runs is in no record.
    """
    if not running:
        raise ControlError(
            "Nothing runs that could be adopted.",
            do="`sparkfleet restore` lists the copies; `sparkfleet restore COPY` puts one back.",
        )
    records = _records(paths, fleet)
    names = sorted({name for name, _ in running})
    found = {name: _desired(records, name, frozenset(g for n, g in running if n == name)) for name in names}
    unknown = sorted(name for name, one in found.items() if one is None)
    if unknown:
        raise ControlError(
            f"No record has the running generation of {', '.join(unknown)}, so it cannot be adopted.",
            means="Nothing was changed.",
            do="Restore a copy, or `sparkfleet restore --begin-anew FLEET`, which stops every group.",
        )
    chosen = [one for one in found.values() if one is not None]
    _remove(_new(paths))
    base = next((one for one in copies(paths) if not one.trouble and one.fleet in ("", fleet)), None)
    if base is not None:
        with named_errors(paths.backups / base.name):
            copy_database(paths.backups / base.name, _new(paths))
    with named_errors(_new(paths)):
        _fill(paths, chosen, records)
    restored = _put_in_place(paths, fleet, "what runs", running)
    left = {d.name for _, record in records[:1] for d in record.deployments} - found.keys()
    return restored.model_copy(update={"left_out": tuple(sorted(left))})


def begin_anew(
    paths: FleetPaths, fleet: str, name: str, running: Collection[Generation] = (), *, dry: bool = False
) -> RestoredStore:
    """Puts an empty store in place: deployments, keys and events are forgotten, what runs is ended.

    Args:
        name: the name that a person typed.
        running: generations that run now.
        dry: check, and change nothing.

    Raises:
        ControlError: the typed name is not the fleet's.
    """
    if name != fleet:
        raise ControlError(
            f"This fleet is {fleet}, not {name}: nothing was changed.",
            do=f"`sparkfleet restore --begin-anew {fleet}` forgets its deployments and keys.",
        )
    source = "an empty store"
    if dry:
        return RestoredStore(source=source, deployments=(), keys=0)
    _remove(_new(paths))
    return _put_in_place(paths, fleet, source, running)


def _fill(paths: FleetPaths, chosen: Collection[Desired], records: list[tuple[str, Applied]]) -> None:
    with _opened(_new(paths)) as store:
        store.adopt(chosen, records[0][1].keys)
        for _, record in reversed(records):  # the newest last
            for one in record.standings:
                if any((one.deployment, one.generation, one.replica) in d.groups for d in chosen):
                    store.groups.set_standing(one.deployment, one.generation, one.replica, one.standing)


def _desired(records: list[tuple[str, Applied]], name: str, running: frozenset[int]) -> Desired | None:
    """The newest record of a deployment that has what runs of it: groups keep the generation that started them."""
    for _, record in records:
        for one in record.deployments:
            its = {generation for _, generation, _ in one.groups}
            if one.name == name and its & running and max(running) <= one.generation:
                return one
    return None


def _records(paths: FleetPaths, fleet: str) -> list[tuple[str, Applied]]:
    """Everything that is known of applied deployments, the newest first, with its origin."""
    applied = read_applied(paths)
    records = [("the run directory", applied)] if applied is not None else []
    for copy in copies(paths):
        if copy.trouble or copy.fleet not in ("", fleet):
            continue
        beside = paths.backups / f".reading-{copy.name}"
        try:
            copy_database(paths.backups / copy.name, beside)
            with _opened(beside) as store:
                records.append((copy.name, applied_in(store)))
        except (sqlite3.Error, OSError, StoreError) as error:
            # There is no room for it: another record may have everything.
            log.warning("the copy %s is left out: %s", copy.name, error)
        finally:
            _remove(beside)
    return records


def _put_in_place(
    paths: FleetPaths, fleet: str, source: str, running: Collection[Generation]
) -> RestoredStore:
    before = read_mark(paths)
    new = _new(paths)
    with named_errors(new), _opened(new) as store:
        mark = _own_identity(store, fleet, before, running, most_changes(paths))
        content = applied_in(store)
    aside = set_aside(paths)
    new.replace(paths.database)
    write_mark(paths, mark)
    return RestoredStore(
        source=source,
        deployments=tuple(f"{one.name} (generation {one.generation})" for one in content.deployments),
        keys=len(content.keys),
        set_aside=str(aside) if aside else "",
    )


def _own_identity(
    store: Store, fleet: str, before: StoreMark | None, running: Collection[Generation], copied: int
) -> StoreMark:
    identity = store.identity()
    # Above those of the copies, too, by which the latest one is chosen: the mark may be gone.
    changes = max(identity.changes, before.changes if before else 0, copied) + 1
    store.identify(
        identity.model_copy(update={"id": secrets.token_hex(16), "fleet": fleet, "changes": changes})
    )
    given: Mapping[str, int] = before.generations if before else {}
    # Of two of one name the higher one is last, and stays.
    store.deployments.raise_generations(dict(sorted([*given.items(), *running])))
    return mark_of(store)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Store]:
    store = Store(path)
    try:
        yield store
    finally:
        store.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=DELETE")  # one file, to be moved


def set_aside(paths: FleetPaths) -> Path | None:
    """Moves the present file, with its log, beside the copies. A running controller notices and waits."""
    present = [path for path in _with_logs(paths.database) if path.exists()]
    if not present:
        return None
    directory = paths.backups / f"set-aside-{datetime.fromtimestamp(time.time(), UTC):%Y%m%dT%H%M%S%fZ}"
    directory.mkdir(parents=True, mode=0o700)
    for path in present:
        path.replace(directory / path.name)
    return directory / paths.database.name


def _with_logs(path: Path) -> tuple[Path, ...]:
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def _remove(path: Path) -> None:
    for one in _with_logs(path):
        one.unlink(missing_ok=True)


def _new(paths: FleetPaths) -> Path:
    return paths.root / NEW
