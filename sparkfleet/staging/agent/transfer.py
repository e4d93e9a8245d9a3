"""Transfers the files of a manifest to their place: locked, counted, verified, renamed. The caller passes the copier."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from sparkfleet.staging.agent.protocol import EVERY_S, LineReporter
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.lock_wait import alone
from sparkfleet.staging.manifest import File, Manifest
from sparkfleet.staging.storage_layout import StoragePlace, begun, check, flush, free_bytes, held, size_of
from sparkfleet.values import Value

Get = Callable[[File, Path, int], Awaitable[None]]
"""Completes a partial file, from its present size: the file, the partial file, and the number of the stream."""

STREAMS = 4
"""Concurrent files. One rsync keeps one processor core busy, and a Spark has two rails and 20 cores: two per rail."""
RESERVE_BYTES = 10 << 30
"""Bytes kept free on every disk: logs, container layers and compile caches of engines need space at their start."""
_TRIES = 2
"""A partial file of an earlier run may be damaged: then the file is fetched once more, from its beginning."""


class Arrived(Value):
    """Result: the directory to load from, and the bytes that moved."""

    path: str
    moved_bytes: int


class Arrival:
    """One run that brings a manifest to a place.

    Args:
        place: destination.
        manifest: the files.
        get: transfers one file.
        reporter: receives the progress.
        streams: concurrent files.
        reserve_bytes: bytes that stay free on the disk.
    """

    def __init__(
        self,
        place: StoragePlace,
        manifest: Manifest,
        get: Get,
        reporter: LineReporter,
        *,
        streams: int = STREAMS,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        self._place = place
        self._manifest = manifest
        self._get = get
        self._reporter = reporter
        self._streams = streams
        self._reserve_bytes = reserve_bytes
        self._moved = 0

    async def run(self, revision: str) -> Arrived:
        """Fetch the missing files, verify them, and publish them.

        Raises:
            StagingError: no room on the disk, or bytes with a wrong digest.
            OSError: an error of the disk.
        """
        async with alone(self._place.lock, self._wait):
            await asyncio.to_thread(self._make_room)
            async with asyncio.TaskGroup() as group:
                ticker = group.create_task(self._tick())
                await self._all_files()
                ticker.cancel()
            self._reporter.progress(self._manifest.size, self._manifest.size, now=True)
            path = self._place.publish(self._manifest, revision)
        return Arrived(path=str(path), moved_bytes=self._moved)

    async def _all_files(self) -> None:
        held_here = held(self._place, self._manifest)
        queue = [file for file in self._manifest.distinct() if self._manifest.key(file) not in held_here]
        queue.reverse()
        async with asyncio.TaskGroup() as group:
            for number in range(min(self._streams, len(queue))):
                group.create_task(self._stream(queue, number))

    async def _stream(self, queue: list[File], number: int) -> None:
        while queue:
            file = queue.pop()
            lock = self._place.file_lock(file)
            if lock is None:
                await self._one(file, number)
            else:
                async with alone(lock, self._wait):
                    await self._one(file, number)

    async def _one(self, file: File, number: int) -> None:
        final, part = self._place.final(file), self._place.part(file)
        if size_of(final) == file.size:  # the former holder of the lock has fetched it
            return
        if final.exists() and self._manifest.kind != "hub":
            raise _differs(final)
        part.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(_TRIES):
            before = size_of(part) or 0
            self._keep_room(file.size - before, free_bytes(self._place.root))
            await self._get(file, part, number)
            self._moved += max((size_of(part) or 0) - before, 0)
            if await asyncio.to_thread(check, part, file):
                await asyncio.to_thread(flush, part)
                part.replace(final)
                return
            part.unlink()
            if attempt == 0 and before:
                self._reporter.note(
                    f"{file.path}: the partial file of an earlier run is damaged; fetching it again."
                )
            else:
                break
        raise StagingError(
            f"{file.path}: the received file does not match its {file.algorithm}, {file.digest[:12]}….",
            means="The bytes were damaged in transit or at their source. They were deleted.",
            do="Run it again. If it fails again, the source's copy is damaged: remove it there.",
        )

    def _make_room(self) -> None:
        size = self._manifest.size
        have = sum(held(self._place, self._manifest).values()) + sum(
            begun(self._place, self._manifest).values()
        )
        demand_room(self._place.root, max(size - have, 0), self._reserve_bytes)

    def _keep_room(self, needed_bytes: int, free: int) -> None:
        """Raises StagingError if the rest no longer fits: something else writes to the disk, too.

        Logs and caches may take half of the reserve meanwhile: it is kept for them.
        """
        means = "Something else fills the disk, such as another transfer. Transferred bytes are kept."
        demand_room(self._place.root, needed_bytes, self._reserve_bytes // 2, means, free)

    async def _tick(self) -> None:
        while True:
            free = free_bytes(self._place.root)  # before: what arrives between the two would be missing twice
            here = await asyncio.to_thread(self._here)
            self._keep_room(self._manifest.size - here, free)
            self._reporter.progress(min(here, self._manifest.size), self._manifest.size)
            await asyncio.sleep(EVERY_S)

    def _here(self) -> int:
        # Parts before whole files: one that gets its name meanwhile would be neither.
        parts = begun(self._place, self._manifest)
        whole = held(self._place, self._manifest)
        return sum(whole.values()) + sum(size for key, size in parts.items() if key not in whole)

    def _wait(self) -> None:
        self._reporter.note("another run is transferring it; waiting for that run.", "waiting")


def demand_room(
    path: Path,
    needed_bytes: int,
    reserve_bytes: int,
    means: str = "Nothing was transferred.",
    free: int | None = None,
) -> None:
    """Refuses if a disk has no room for `needed_bytes` and the reserve. Raises StagingError. `free`: if it was just read."""
    free = free_bytes(path) if free is None else free
    if needed_bytes > 0 and free < needed_bytes + reserve_bytes:
        raise StagingError(
            f"{path}: {needed_bytes / 1e9:.1f} GB more are needed, and {free / 1e9:.1f} GB are free"
            f" ({reserve_bytes / 1e9:.1f} GB of them are kept in reserve).",
            means=means,
            do="Free disk space: `sparkfleet models prune` removes models that no deployment uses. Then run it again.",
        )


def _differs(path: Path) -> StagingError:
    return StagingError(
        f"{path} exists, with another size than on the sending node.",
        means="Your directories are never overwritten.",
        do="Move or delete that directory, then run it again.",
    )
