"""`python -m sparkfleet.staging.agent.hash_tree`, on a node: hashes all files of a directory into a manifest.

Digests are cached by size and time of change, so that unchanged files are not read again.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import Field, ValidationError

from sparkfleet.checkpoints.gguf.gguf_files import choose_file
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.specs.gguf_names import SUFFIX
from sparkfleet.staging.agent.protocol import LineReporter, program
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.file_selection import BESIDE_GGUF
from sparkfleet.staging.manifest import MAX_FILES, File, Kind, Manifest, by_path
from sparkfleet.staging.storage_layout import PART, READ_BYTES, directory_of, images_directory, note_directory
from sparkfleet.values import Value

THREADS = 4
"""One thread hashes about 2 GB/s with a processor's SHA instructions; a Spark's disk reads more."""
CLOCK_TICK_NS = 20_000_000
"""Twice the longest tick of a Linux kernel (CONFIG_HZ=100): of two changes within one tick, files have one time."""


class SealRequest(Value):
    """A directory by its name, or a GGUF file: of its directory the files of this model alone are hashed."""

    kind: Kind
    name: str
    cache: str = ""


class _Known(Value):
    """Digests by a file's signature, which changes whenever the file does."""

    digests: dict[str, str] = Field(default_factory=dict)


def work(request: SealRequest, reporter: LineReporter) -> Manifest:
    """The manifest of the directory."""
    directory = directory_of(request.kind, request.name, request.cache)
    if not directory.is_dir():
        raise StagingError(f"{directory} is not a directory on this node.")
    files = {path.relative_to(directory).as_posix(): path for path in _regular(directory)}
    if request.name.endswith(SUFFIX) and Path(request.name).name in files:
        beside = [name for name in files if "/" not in name]
        chosen = choose_file(Path(request.name).name, beside, request.name)[1]
        files = {name: path for name, path in files.items() if name in {*chosen, *BESIDE_GGUF}}
    notes = (
        images_directory(request.cache).with_name("digests")
        / hashlib.sha256(str(directory).encode()).hexdigest()
    )
    known = _read(notes)
    counter = _Counter(sum(path.stat().st_size for path in files.values()), reporter)
    with ThreadPoolExecutor(THREADS) as threads:
        sealed = list(threads.map(lambda item: _seal(item[0], item[1], known, counter), files.items()))
    if not sealed:
        raise StagingError(f"{directory} is empty.")
    digests = {signature: file.digest for signature, file in sealed}
    write_atomically(notes, _Known(digests=digests).model_dump_json().encode())
    manifest = Manifest(kind=request.kind, name=request.name, files=by_path(file for _, file in sealed))
    if request.kind == "directory":
        note_directory(manifest, request.cache)
    return manifest


class _Counter:
    """Adds up bytes over threads; its progress may lag for a moment."""

    def __init__(self, total: int, reporter: LineReporter) -> None:
        self._done, self._total, self._reporter = 0, total, reporter

    def add(self, count: int) -> None:
        self._done += count
        self._reporter.progress(self._done, self._total)


def _seal(relative: str, path: Path, known: _Known, counter: _Counter) -> tuple[str, File]:
    with path.open("rb") as opened:
        _outlast_tick(opened.fileno())
        signature = _signature(relative, os.fstat(opened.fileno()))
        size = os.fstat(opened.fileno()).st_size
        digest = known.digests.get(signature)
        if digest is None:
            whole = hashlib.sha256()
            while chunk := opened.read(READ_BYTES):
                whole.update(chunk)
                counter.add(len(chunk))
            digest = whole.hexdigest()
            if _signature(relative, os.fstat(opened.fileno())) != signature:
                raise StagingError(
                    f"{path} changed while it was read.",
                    do="Wait until it is completely written, and try again.",
                )
    try:
        return signature, File(path=relative, size=size, digest=digest)
    except ValidationError as error:
        raise StagingError(
            f"{shown(relative)} cannot be staged: its name has characters that rsync or the Hub's cache do not accept.",
            do="Rename it, with letters, digits and _ . + @ = , - only.",
        ) from error


def _outlast_tick(descriptor: int) -> None:
    """Wait until any further change gives the file another time: its signature would hide one of the same tick."""
    if 0 <= time.time_ns() - os.fstat(descriptor).st_ctime_ns < CLOCK_TICK_NS:
        time.sleep(CLOCK_TICK_NS / 1e9)


def _signature(relative: str, found: os.stat_result) -> str:
    return f"{relative}\n{found.st_size}\n{found.st_mtime_ns}\n{found.st_ctime_ns}\n{found.st_ino}"


def _regular(directory: Path) -> list[Path]:
    """Regular files; links are followed within the directory. Hidden and partial files are skipped."""
    found: list[Path] = []
    root = directory.resolve()
    for where, directories, names in os.walk(directory):
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        for name in sorted(names):
            path = Path(where, name)
            if not name.startswith(".") and not name.endswith(PART) and stat.S_ISREG(path.stat().st_mode):
                _demand_inside(path, root)
                found.append(path)
        if len(found) > MAX_FILES:
            raise StagingError(
                f"{directory} has more than {MAX_FILES} files.", do="Use the directory of one checkpoint."
            )
    return found


def _demand_inside(path: Path, root: Path) -> None:
    """Refuse links that leave the directory: rsync's daemon serves no files outside its module."""
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        raise StagingError(
            f"{path} is a link that leads out of its directory.",
            means="Files outside the directory are not copied.",
            do="For a snapshot of the Hub's cache use the model's Hub id; else replace the link by the file.",
        )


def _read(notes: Path) -> _Known:
    try:
        return _Known.model_validate_json(notes.read_bytes())
    except (OSError, ValidationError):
        return _Known()


def main() -> int:
    """Entry point."""
    return program(SealRequest, work)


if __name__ == "__main__":
    sys.exit(main())
