"""Writes files atomically that only this user may read. Stdlib only."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Replace `path`: readers see the old content or the new; if `durable`, also after a power cut.

    A missing directory is created (0700). An empty directory in the place of `path` is removed: docker makes one for a
    file that it mounts and that is not there. Raises OSError.
    """
    make_private(path.parent, durable=durable)
    beside = path.with_name(f".{path.name[:64]}.{os.urandom(4).hex()}")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)  # regardless of the umask
            file.write(content)
            file.flush()
            if durable:
                os.fsync(fd)
        try:
            beside.replace(path)
        except IsADirectoryError:
            _remove_empty(path)
            beside.replace(path)
        if durable:
            sync_directory(path.parent)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        # That of a full disk: a write has no name.
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def _remove_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(directory)) from None


def make_private(directory: Path, *, durable: bool = False) -> None:
    """Create a directory and its missing parents, 0700 each; if `durable`, also for after a power cut.

    Existing ones are not changed. Raises OSError.
    """
    if directory.is_dir():
        return
    make_private(directory.parent, durable=durable)
    directory.mkdir(mode=0o700, exist_ok=True)
    if durable:
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Return when the names in a directory are on the disk: a file that is there may still have its former name, or none.

    Raises OSError. A file system that cannot do this for directories, as some in user space, is left to itself.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            error.filename = error.filename or str(directory)
            raise
    finally:
        os.close(fd)
