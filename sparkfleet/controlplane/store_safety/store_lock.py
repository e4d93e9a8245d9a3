"""Lock of the process that works with a head's store: of two controllers that live at once, one acts.

Ray gives the controller's name to one actor, but a process that was stopped, or that lost its Ray, may outlive the start of
its successor. The kernel releases the lock at the end of the process, whatever ends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from pathlib import Path

from sparkfleet.controlplane.store_safety.guard import KEEPS, StoreError, StoreFault

log = logging.getLogger(__name__)

LOCKS = Path("/proc/locks")


class StoreLock:
    """Lock on a state directory itself: a file for it would need space on a disk that may be full."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held: int | None = None

    def take(self) -> None:
        """Takes the lock, and keeps it. Without one (no directory, no such locks) the store is used all the same.

        Raises:
            StoreError: another process has it.
        """
        if self._held is not None:
            return
        try:
            directory = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return  # opening the store reports the reason
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            error = _taken(self._root, _holder(directory))
            os.close(directory)
            raise error from None
        except OSError as error:
            log.warning("%s cannot be locked: %s", self._root, error)
        self._held = directory

    def release(self) -> None:
        """Releases it."""
        if self._held is not None:
            os.close(self._held)
            self._held = None


def _taken(root: Path, pid: int | None) -> StoreError:
    return StoreError(
        StoreFault.IN_USE,
        f"Another process{f' ({pid})' if pid else ''} works with the store in {root}.",
        means=KEEPS,
        do="It is ended by itself within seconds if it is a controller that hangs, and this one continues then; if not:"
        f" `{f'kill {pid}' if pid else f'fuser -v {root}'}` on the head.",
    )


def _holder(directory: int) -> int | None:
    """The process that has the lock of an open directory; None if the kernel does not list it."""
    inode = str(os.fstat(directory).st_ino)
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in LOCKS.read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return int(words[4])
    return None
