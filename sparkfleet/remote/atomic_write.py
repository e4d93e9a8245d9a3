"""Writing files that only this user may read, whole or not at all. Stdlib only."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Replace `path`: whoever reads it sees the old content or the new; where `durable`, also after a power cut.

    Its directory is made (0700) where it is missing. Raises OSError.
    """
    make_private(path.parent)
    beside = path.with_name(f".{path.name[:64]}.{os.urandom(4).hex()}")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)  # whatever the umask says
            file.write(content)
            file.flush()
            if durable:
                os.fsync(fd)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def make_private(directory: Path) -> None:
    """Make a directory and its missing parents, 0700 each. What exists is left as it is. Raises OSError."""
    if directory.is_dir():
        return
    make_private(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
