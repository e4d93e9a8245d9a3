"""Reads the end of a log without following links out of its directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def log_end(directory: Path, path: str, limit: int) -> bytes | None:
    """The last bytes of a regular file directly in `directory`, at most `limit`, from the start of a line.

    If the file has fewer because it was rotated, those of its older file, `path.1`, come before them. None if the path is
    of another place, or the file cannot be read.
    """
    wanted = Path(path)
    if wanted.parent != directory or wanted.name in ("", ".", ".."):
        return None
    text = _last_bytes(wanted, limit + 1)
    if text is None:
        return None
    if len(text) <= limit:
        text = (_last_bytes(wanted.with_name(f"{wanted.name}.1"), limit + 1 - len(text)) or b"") + text
    if len(text) <= limit:
        return text
    text = text[-limit:]
    return text.partition(b"\n")[2] if b"\n" in text else text


def _last_bytes(path: Path, limit: int) -> bytes | None:
    """None if it is no regular file, or cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        file.seek(max(0, found.st_size - limit))
        return file.read(limit)
