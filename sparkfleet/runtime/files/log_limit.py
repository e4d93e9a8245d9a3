"""Limits logs that a process appends to by an inherited descriptor, so that nobody can rotate them by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sparkfleet.units import MIB

LIMIT_BYTES = 10 * MIB
"""Of one file; there is one older file beside it."""


def limit(logs: Iterable[Path], limit_bytes: int = LIMIT_BYTES) -> tuple[Path, ...]:
    """Copies each log above its limit to `<name>.1` and empties it; returns those. Lines of that moment may be lost.

    The writer has to append (O_APPEND): otherwise it goes on at its old offset. A full disk leaves a log as it is, except
    for its older file.
    """
    return tuple(log for log in logs if _is_emptied(log, limit_bytes))


def _is_emptied(log: Path, limit_bytes: int) -> bool:
    try:
        if log.stat().st_size <= limit_bytes:
            return False
        older = log.with_name(f"{log.name}.1")
        try:
            _copy_end(log, older, limit_bytes)
        except OSError:  # no room for both: the newest lines go on
            older.unlink(missing_ok=True)
        os.truncate(log, 0)
        return True
    except OSError:
        return False


def _copy_end(log: Path, older: Path, limit_bytes: int) -> None:
    with suppress(FileNotFoundError):
        older.unlink()
    with log.open("rb") as source, older.open("xb") as copy:
        os.fchmod(copy.fileno(), 0o600)
        source.seek(-limit_bytes, os.SEEK_END)
        shutil.copyfileobj(source, copy)
