"""Bounds the KV cache that an engine keeps on the disk: removes the files that were used longest ago. Stdlib only.

    kv/DEPLOYMENT/KEY/            vLLM's files, `…_r0/HHH/HH_gN/HASH.bin` and `….tmp` while one is written
    kv/DEPLOYMENT/KEY.lock        held (flock, shared) by each supervisor whose engine uses the directory

vLLM 0.32 never removes any. It takes a missing file for a miss and computes that part of the prompt again, so files may go
beneath a running engine (tests/engines/test_real_kv_disk.py drives its own classes).

A file counts as used when it was written, or read last. A read sets the access time only if it is not later than that of
the last change (relatime): so each pass moves the time of the change there, and the next read is seen again. On a file
system without access times (noatime) the files that were written first go first. What the engine still has in its memory
it does not read from here: the beginning of a session that goes on for long ages with the moment at which it was written.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sparkfleet.remote.atomic_write import make_private

BLOCK = ".bin"
PARTIAL = ".tmp"
PARTIAL_S = 600.0
"""Age of a file that nobody is writing any more; a block takes milliseconds."""
FREE_BYTES = 10 << 30
FREE_SHARE = 1 / 16
"""Space that stays free on a disk: so many bytes, as staging keeps, and this part of it, because Ray places no work on a
node whose disk is 95 % full."""
TARGET = 0.9
"""Part of the limit that is left after a pass that removes anything: no pass is needed for each block that is written."""
WRITE_BYTES_PER_S = 0.5e9
"""Rate at which an engine fills the disk at most: prefill of 5,000 tok/s with 100 KB of KV per token."""
PAUSE_S = (5.0, 60.0)
"""Seconds between two passes: as long as the room that is left lasts at that rate, within these."""


@dataclass(frozen=True)
class KvPass:
    """Outcome of one pass, bytes."""

    used: int
    removed: int
    pause_s: float


class KvPruner:
    """The bound on the directory of one engine, for as long as the engine runs.

    Args:
        path: the directory of its key, in the directory of its deployment.
        limit_bytes: most bytes of its files.
    """

    def __init__(self, path: str, limit_bytes: int) -> None:
        self._root = Path(path)
        self._limit = limit_bytes
        self._lock = -1

    def begin(self) -> None:
        """Makes the directory (0700) and marks it as used. Raises OSError."""
        make_private(self._root.parent)
        self._lock = os.open(_lock_of(self._root), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # waits for one who is just removing it
        make_private(self._root)

    def end(self) -> None:
        """Ends the mark; the files stay for the next start."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def run_forever(self, note: Callable[[str], None]) -> NoReturn:
        """Passes, with pauses between them. `note` receives each one that removed files, and each new failure."""
        failed = ""
        while True:
            pause_s = PAUSE_S[-1]
            try:
                done = await asyncio.to_thread(self.run)
            except OSError as error:
                if str(error) != failed:
                    failed = str(error)
                    note(f"KV on the disk cannot be bounded: {failed}")
            else:
                pause_s = done.pause_s
                if done.removed:
                    words = f"removed {done.removed / 1e9:.1f} GB used longest ago, {done.used / 1e9:.1f} GB are left"
                    note(f"KV on the disk: {words}")
            await asyncio.sleep(pause_s)

    def run(self) -> KvPass:
        """One pass: directories of other keys that no engine uses, partial files, and files beyond the limit.

        Raises OSError if the disk cannot be read.
        """
        for other in _keys(self._root.parent):
            if other != self._root:
                _remove_unused(other)
        files = list(_files(self._root, time.time()))
        used, free, floor = sum(size for _, size, _ in files), *_space(self._root)
        excess = used - self._limit
        doomed = used - int(TARGET * self._limit) if excess > 0 else 0
        removed = _remove_oldest(files, max(doomed, floor - free))
        left = min(self._limit - used, free - floor) + removed
        shortest, longest = PAUSE_S
        pause_s = min(longest, max(shortest, left / WRITE_BYTES_PER_S))
        return KvPass(used - removed, removed, pause_s)


def used_bytes(state: Path) -> int:
    """Bytes on the disk of all KV in a directory of fleets' state directories. Changes nothing."""
    total = 0
    for kv in state.glob("*/kv"):
        for directory, _, names in os.walk(kv):
            for name in names:
                with suppress(OSError):
                    total += os.lstat(os.path.join(directory, name)).st_blocks * 512
    return total


def remove_gone(kv: Path, deployments: frozenset[str]) -> tuple[Path, ...]:
    """Removes the directories of deployments that are not among these, and returns those that are gone.

    Those of an engine that still ends stay: a container's mount of a directory that was removed takes no more files.
    """
    try:
        found = [path for path in kv.iterdir() if path.name not in deployments]
    except OSError:
        return ()
    for path in found:
        with suppress(OSError):
            for key in _keys(path):
                _remove_unused(key)
            if not any(_keys(path)):  # what an engine still uses goes once that has ended
                shutil.rmtree(path, ignore_errors=True)
    return tuple(path for path in found if not os.path.lexists(path))


def _lock_of(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.lock")


def _keys(deployment: Path) -> tuple[Path, ...]:
    """Directories of the keys of a deployment."""
    with os.scandir(deployment) as entries:
        return tuple(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))


def _remove_unused(directory: Path) -> None:
    with suppress(OSError):  # BlockingIOError: an engine uses it
        lock = os.open(_lock_of(directory), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)


def _files(directory: Path, now: float) -> Iterator[tuple[int, int, str]]:
    """Time of the last use (ns), size on the disk and path of each block; removes partial files that are left over."""
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:  # the engine's own, or another supervisor's pass
        return
    for entry in entries:
        with suppress(FileNotFoundError):
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path), now)
            elif entry.name.endswith((BLOCK, PARTIAL)):
                found = entry.stat(follow_symlinks=False)
                if entry.name.endswith(BLOCK):
                    yield _used_at(entry.path, found), found.st_blocks * 512, entry.path
                elif now - found.st_mtime > PARTIAL_S:
                    os.unlink(entry.path)


def _used_at(path: str, found: os.stat_result) -> int:
    if found.st_atime_ns > found.st_mtime_ns:
        with suppress(PermissionError):  # a container's root wrote it: then a read is seen once a day
            os.utime(path, ns=(found.st_atime_ns, found.st_atime_ns))
    return max(found.st_atime_ns, found.st_mtime_ns)


def _space(root: Path) -> tuple[int, int]:
    """Free bytes of the disk for this user, and those that have to stay so."""
    disk = os.statvfs(root)
    return disk.f_bavail * disk.f_frsize, max(FREE_BYTES, int(FREE_SHARE * disk.f_blocks * disk.f_frsize))


def _remove_oldest(files: list[tuple[int, int, str]], size: int) -> int:
    """Removes those that were used longest ago until so many bytes are gone; returns the bytes."""
    removed = 0
    if size <= 0:
        return removed
    for _, bytes_, path in sorted(files):
        if removed >= size:
            break
        with suppress(OSError):  # gone already, or its directory cannot be written: the next one
            os.unlink(path)
            removed += bytes_
            os.rmdir(os.path.dirname(path))  # an engine that writes there makes it again
    return removed
