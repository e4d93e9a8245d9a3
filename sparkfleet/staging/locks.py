"""File locks that the kernel releases when their holder ends, for any reason."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def try_lock(path: Path) -> int | None:
    """An open descriptor that holds the lock, or None if another process does. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _still_there(path, handle):
            return handle
    except BlockingIOError:
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def is_locked(path: Path) -> bool:
    """True if another process holds the lock file `path` now. Creates nothing."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _still_there(path: Path, handle: int) -> bool:
    """True if `path` is still the locked file: some tools remove lock files while they hold them."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return (found.st_ino, found.st_dev) == (os.fstat(handle).st_ino, os.fstat(handle).st_dev)
