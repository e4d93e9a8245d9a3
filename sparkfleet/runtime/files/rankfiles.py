"""Files of a rank's supervisor, and the path of its socket. Stdlib only.

All are in one run directory (0700), named after the rank:

    NAME.sock     the supervisor's socket
    NAME.lock     held (flock) by the process that starts the rank, then by its supervisor for as long as it lives
    NAME.spec     the rank's specification; removed by the supervisor once it has read it, for the secrets in it
    NAME.cid      the id of its container; written by the tool, which refuses an existing file
    NAME.shm      names of its shared memory, while it has any
    NAME.last     post-mortem: the last status of the last run
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_READABLE = 48
"""Characters of a rank's id in its file names; the hash after it distinguishes ranks."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank."""

    run_dir: Path
    name: str

    @classmethod
    def of(cls, run_dir: Path, rank: str) -> RankFiles:
        """The files of the rank with id `rank`."""
        digest = hashlib.sha256(rank.encode()).hexdigest()[:12]
        return cls(run_dir, f"{_UNSAFE.sub('_', rank)[:_READABLE]}-{digest}")

    @classmethod
    def present(cls, run_dir: Path) -> list[RankFiles]:
        """The files of all ranks that have any in `run_dir`."""
        return [cls(run_dir, path.stem) for path in sorted(run_dir.glob("*.lock"))]

    @property
    def socket(self) -> Path:
        """The supervisor's socket. Its full path may be too long to connect to: see `address`."""
        return self.run_dir / f"{self.name}.sock"

    @property
    def lock(self) -> Path:
        """Held while a supervisor lives or is being started."""
        return self.run_dir / f"{self.name}.lock"

    @property
    def spec(self) -> Path:
        """The rank's specification, from the starter's writing to the supervisor's reading."""
        return self.run_dir / f"{self.name}.spec"

    @property
    def container(self) -> Path:
        """The id of its container, if it is one."""
        return self.run_dir / f"{self.name}.cid"

    @property
    def shared(self) -> Path:
        """The record of its shared memory."""
        return self.run_dir / f"{self.name}.shm"

    @property
    def last(self) -> Path:
        """The post-mortem of the last run."""
        return self.run_dir / f"{self.name}.last"

    def ended_within(self, seconds: float) -> bool:
        """True if a run of the rank ended in the last `seconds`. An end after now is of a clock that was set back."""
        try:
            return 0 <= time.time() - self.last.stat().st_mtime < seconds
        except FileNotFoundError:
            return False

    @contextmanager
    def address(self) -> Iterator[str]:
        """A path to bind or connect the socket, for a run directory of any depth.

        A unix socket's path may have 107 bytes; through the directory's descriptor it always has fewer.
        """
        directory = os.open(self.run_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{directory}/{self.socket.name}"
        finally:
            os.close(directory)

    def try_lock(self) -> int | None:
        """A descriptor that holds the rank's lock until every copy of it is closed; None if another process holds it."""
        fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(self.lock)):
                return fd
        except (BlockingIOError, FileNotFoundError):
            pass  # held, or `remove`d between open and lock: for the caller both mean "try again"
        os.close(fd)
        return None

    @contextmanager
    def locked(self) -> Iterator[int | None]:
        """The rank's lock while it is held; None if another process holds it."""
        lock = self.try_lock()
        try:
            yield lock
        finally:
            if lock is not None:
                os.close(lock)

    def clear(self) -> None:
        """Removes files of a supervisor that is gone which would stop the next. Only while holding the lock."""
        self.socket.unlink(missing_ok=True)
        self.spec.unlink(missing_ok=True)
        self.container.unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes all files of the rank. Only while holding the lock."""
        self.clear()
        self.shared.unlink(missing_ok=True)
        self.last.unlink(missing_ok=True)
        self.lock.unlink(missing_ok=True)
