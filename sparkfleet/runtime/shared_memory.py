"""Removes the POSIX shared memory that the processes of one rank leave behind. Stdlib only.

A segment in /dev/shm outlives a process that is killed, and holds unified memory until the next boot. While the rank runs,
its processes' maps show which segments are theirs; a name alone does not, because vLLM, NCCL and Python choose random ones.
What was there before the rank is not its own, and podman keeps the locks of all containers of a user there.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sparkfleet.remote.atomic_write import write_atomically

SHM = Path("/dev/shm")  # noqa: S108  # Linux's file system of POSIX shared memory
FIRST_LOOK_S = 0.5
LOOK_S = 5.0
"""Seconds between two readings: doubled from the first on. A segment of a process that was killed sooner after its creation
stays."""


FOREIGN = ("libpod_",)
"""Beginnings of names that are never a rank's: podman's locks (libpod_lock, libpod_rootless_lock_UID)."""


class SharedMemory:
    """Segments of one rank.

    Args:
        record: file that keeps them, for the next holder if the supervisor itself is killed.
    """

    def __init__(self, record: Path) -> None:
        self._record = record
        self._segments: dict[str, int] = {}
        self._before = {(name, _inode(name)) for name in _names()}

    def look(self, pids: Iterable[int]) -> None:
        """Adds the segments that these processes map or hold open, and forgets those that are gone."""
        held = {one for pid in pids for one in _held(pid)}
        found = {name: inode for name, inode in held - self._before if not name.startswith(FOREIGN)}
        kept = {**self._segments, **found}
        kept = {name: inode for name, inode in kept.items() if _inode(name) == inode}
        if kept != self._segments:
            self._segments = kept
            with suppress(OSError):  # a full disk: this process still knows them
                write_atomically(self._record, json.dumps(kept).encode())

    def remove(self) -> tuple[str, ...]:
        """Removes what is left of them, once all processes of the rank have ended; returns the names."""
        gone = remove_segments(self._segments)
        self._segments = {}
        self._record.unlink(missing_ok=True)
        return gone


def remove_recorded(record: Path) -> tuple[str, ...]:
    """The same for a rank whose supervisor was killed, from its record."""
    try:
        segments = json.loads(record.read_bytes())
        found = {str(name): int(inode) for name, inode in segments.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return ()
    record.unlink(missing_ok=True)
    return remove_segments(found)


def remove_segments(segments: dict[str, int]) -> tuple[str, ...]:
    """Removes segments that are still the same files and that no process uses."""
    left = {
        name: inode
        for name, inode in segments.items()
        if _inode(name) == inode and not name.startswith(FOREIGN)
    }
    if not left:
        return ()
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    used = {name for pid in pids for name, _ in _held(pid)}
    removed = []
    for name in sorted(left.keys() - used):
        with suppress(OSError):
            (SHM / name).unlink()
            removed.append(name)
    return tuple(removed)


def _names() -> list[str]:
    try:
        return os.listdir(SHM)
    except OSError:
        return []


def _held(pid: int) -> Iterable[tuple[str, int]]:
    """Segments that a process maps or holds open; its own view of their name and inode."""
    prefix = f"{SHM}/"
    with suppress(OSError, ValueError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith(prefix) and not fields[5].endswith(" (deleted)"):
                yield fields[5].removeprefix(prefix), int(fields[4])
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith(prefix) and not target.endswith(" (deleted)"):
                    yield target.removeprefix(prefix), entry.stat().st_ino


def _inode(name: str) -> int | None:
    """Inode of one of this user's regular files directly in /dev/shm; None for anything else."""
    if "/" in name:
        return None
    try:
        found = (SHM / name).lstat()
    except OSError:
        return None
    return found.st_ino if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() else None
