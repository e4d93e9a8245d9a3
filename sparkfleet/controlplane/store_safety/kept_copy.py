"""The copy of the head's store that another node of the fleet keeps, for the day on which the head is lost.

The directory `kept` of its state directory has one file, under the name of the head's own copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from pathlib import Path

from sparkfleet.controlplane.state.store_copies import COPY_NAME, KeptCopy
from sparkfleet.errors import ControlError
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.fields import quote

log = logging.getLogger(__name__)


def keep_copy(paths: FleetPaths, name: str, content: bytes, sha256: str) -> None:
    """Puts a copy in place of the one that is kept; it is on the disk when the call returns.

    Args:
        name: of the head's own copy; never a path.
        sha256: hexadecimal, of the content as it was sent.

    Raises:
        ControlError: the name is not one of a copy, or the content is another one.
        OSError: it cannot be written. The former copy stays.
    """
    if not COPY_NAME.fullmatch(name):
        raise ControlError(f"{quote(name)} is not the name of a copy of the store.")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ControlError(f"The copy {name} arrived damaged.")
    path = paths.kept_copies / name
    write_atomically(path, content, durable=True)
    for other in paths.kept_copies.iterdir():  # older ones, and parts of one whose process was killed
        if other != path:
            with contextlib.suppress(OSError):
                other.unlink()


def kept_path(paths: FleetPaths) -> Path | None:
    """The file that is kept, the one of the last `keep_copy`; None if there is none, or it cannot be read."""
    found = []
    with contextlib.suppress(OSError):
        for path in paths.kept_copies.iterdir():
            if COPY_NAME.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    found.append((path.stat().st_mtime, path))
    return max(found)[1] if found else None


def read_kept(paths: FleetPaths) -> KeptCopy | None:
    """The copy that is kept, by its file alone; None if there is none, or it cannot be read."""
    path = kept_path(paths)
    try:
        info = path.stat() if path is not None else None
    except OSError:
        return None
    if path is None or info is None:
        return None
    return KeptCopy(name=path.name, bytes=info.st_size, since_s=max(0.0, time.time() - info.st_mtime))


def move_to_backups(paths: FleetPaths) -> None:
    """Moves the copy that is kept to the copies of this node's own store, on a node that becomes the head.

    It is not removed: a person may have made it the head with an empty store because the former one is lost.
    """
    try:
        for path in [*paths.kept_copies.iterdir()]:
            if COPY_NAME.fullmatch(path.name):
                paths.backups.mkdir(mode=0o700, exist_ok=True)
                path.replace(paths.backups / path.name)
            else:
                path.unlink()
        paths.kept_copies.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("the kept copy of the former head's store stays where it is: %s", error)
