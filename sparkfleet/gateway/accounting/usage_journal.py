"""Keeps on disk what a gateway replica has counted and the controller has not stored, for the case that it is killed.

Each replica has one small file with its totals. The next replica reports the files that it finds, and removes them once the
controller has stored them; the controller adds only what exceeds the totals that it has of that replica.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from hashlib import sha256
from pathlib import Path

from sparkfleet.gateway.accounting.usage_counter import UsageCounter
from sparkfleet.gateway.report import FormerUsage, GatewayReport
from sparkfleet.remote.atomic_write import write_atomically

log = logging.getLogger(__name__)

WRITE_S = 0.2
"""Pause between two writes: the most that a killed gateway loses."""
MOST_BYTES = 4 << 20
MOST_PAIRS = 2000
"""Keys with models in a file, at most: 4 ms of the event loop."""
MOST_FILES = 64
"""Files of former replicas that are read, at most."""
WRITTEN_S = 60.0
"""Seconds that a write takes at most: a younger part may be that of a replica which runs beside this one."""
OLDEST_DAYS = 30
"""Age of a file that is still read: the store knows twice as long what it has of a replica."""


class UsageJournal:
    """The file of one replica, and what former ones have left. Files are read when it is made."""

    def __init__(self, directory: Path, replica: str, counter: UsageCounter) -> None:
        self._file = directory / f"{sha256(replica.encode()).hexdigest()[:16]}.json"
        self._replica = replica
        self._counter = counter
        self._unstored: set[tuple[str, str]] = set()
        """Keys and models with requests that the controller has not stored."""
        self._changed = asyncio.Event()
        self._left, self.trouble = read_left(directory)
        """`trouble`: the files that cannot be used, in words; "" for none."""
        counter.on_count = self._note

    @property
    def former(self) -> tuple[FormerUsage, ...]:
        """Usage of former replicas that the controller may not have stored."""
        return tuple(self._left.values())

    def drop_stored(self, report: GatewayReport) -> None:
        """Drops what the controller has stored, with the files of former replicas."""
        self._unstored -= {
            (one.key, one.model)
            for one in report.usage
            if self._counter.total((one.key, one.model)).requests == one.requests
        }
        for file, usage in tuple(self._left.items()):
            if usage in report.former:
                self._drop(file, usage)
        self._changed.set()

    def _drop(self, file: Path, usage: FormerUsage) -> None:
        """Removes a file that is stored, unless its replica, which may run beside this one for seconds, has counted on."""
        try:
            now = FormerUsage.model_validate_json(_content(file))
        except (OSError, ValueError, _FileTooOld):
            now = usage
        if now == usage:
            file.unlink(missing_ok=True)
            del self._left[file]
        else:
            self._left[file] = now

    async def keep(self) -> None:
        """Keeps the file up to date, until it is cancelled."""
        while True:
            await self._changed.wait()
            await self.flush()
            await asyncio.sleep(WRITE_S)

    async def flush(self) -> None:
        """Writes the file, or removes it if everything is stored. A failure is logged, and the next write is another try."""
        self._changed.clear()
        usage = tuple(self._counter.total(pair) for pair in sorted(self._unstored)[:MOST_PAIRS])
        try:
            # In a thread: while weights are copied to the disk, a write may be held up for longer than a stream may.
            await asyncio.to_thread(self._write, FormerUsage(replica=self._replica, usage=usage))
        except OSError as error:
            log.warning("%s was not written, and a kill would lose its counts: %s", self._file, error)

    def _write(self, content: FormerUsage) -> None:
        if content.usage:
            write_atomically(self._file, content.model_dump_json().encode())
        else:
            self._file.unlink(missing_ok=True)

    def _note(self, pair: tuple[str, str]) -> None:
        self._unstored.add(pair)
        self._changed.set()


def read_left(directory: Path) -> tuple[dict[Path, FormerUsage], str]:
    """The usage in each file of former replicas, and the files that cannot be used, in words."""
    found: dict[Path, FormerUsage] = {}
    troubles: list[str] = []
    try:
        for part in directory.glob(".*.json.*"):
            if time.time() - part.stat().st_mtime > WRITTEN_S:
                part.unlink(missing_ok=True)  # of a write that was killed
        files = sorted(directory.glob("*.json"))
    except OSError as error:
        return {}, _unusable(directory, error.strerror or str(error))
    for file in files[:MOST_FILES]:
        try:
            found[file] = FormerUsage.model_validate_json(_content(file))
        except _FileTooOld:
            troubles.append(_unusable(file, f"it is older than {OLDEST_DAYS} days"))
        except OSError as error:
            troubles.append(_unusable(file, error.strerror or str(error)))
        except ValueError:
            troubles.append(_unusable(file, "it is none of a gateway"))
    return found, "; ".join(troubles)


class _FileTooOld(Exception):
    """A file whose replica the store may have forgotten: its totals might be added a second time."""


def _content(file: Path) -> bytes:
    place = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(place, "rb") as opened:
        status = os.fstat(place)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_size > MOST_BYTES:
            raise ValueError(file)
        if time.time() - status.st_mtime > OLDEST_DAYS * 86400:
            raise _FileTooOld
        return opened.read(MOST_BYTES)


def _unusable(path: Path, reason: str) -> str:
    return f"{path} cannot be used ({reason}), so up to 5 s of a former gateway's usage may be missing: `rm {path}`"
