"""Reads a checkpoint's facts at the Hub without its weights: config.json, small files, and safetensors or GGUF headers.

They become an outline such as nodes send, so one bounded reader parses both. Outlines are cached by commit. Time is bounded
too: a plan waits at most `FIRST_S` for a Hub that does not answer, and at most `ALL_S` for the headers.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.gguf.gguf_files import choose
from sparkfleet.checkpoints.gguf.gguf_scan import DamagedHeader, HeaderScan
from sparkfleet.checkpoints.io.checkpoint_files import INDEX, MOST_SHARDS
from sparkfleet.checkpoints.io.hub_cache import is_offline
from sparkfleet.checkpoints.io.safe_io import read_start
from sparkfleet.checkpoints.io.safetensors_header import HEADER_LIMIT
from sparkfleet.checkpoints.remote_metadata import (
    BEGUN,
    MOST_ANSWER_BYTES,
    MOST_UNPACKED_BYTES,
    SUFFIXES,
    WHOLE,
    MetadataRequest,
    Outline,
    OutlinedFile,
    OutlineParser,
    is_gguf_path,
    read_outline,
)
from sparkfleet.checkpoints.remote_metadata_program import loaded
from sparkfleet.errors import FactError, SparkfleetError
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.specs.gguf_names import SUFFIX
from sparkfleet.specs.model_name import ModelName
from sparkfleet.staging.connection_variables import check_connection_variables
from sparkfleet.staging.errors import HubUnreachable, StagingError
from sparkfleet.staging.file_selection import BESIDE_GGUF
from sparkfleet.staging.manifest import COMMIT

if TYPE_CHECKING:
    from sparkfleet.staging.hub import Hub

CONNECT_S = 5.0
READ_S = 10.0
FIRST_S = 10.0
"""Seconds for the first answer, including name resolution, for which no client has a timeout."""
ALL_S = 60.0
"""Seconds for all headers of a checkpoint; the largest have tens of megabytes in 160 files."""
REMEMBERED_S = 3600.0
"""Seconds for which the last seen commit of a branch is used without a request."""
READERS = 8
"""Files read concurrently: as many as huggingface_hub downloads."""
FIRST_BYTES = 100_000
"""Size of a shard's first request: 97 % of headers are shorter (huggingface_hub, `parse_safetensors_file_metadata`)."""
_gave_up: dict[str, HubUnreachable] = {}
"""Endpoints that did not answer this process: other models do not wait for them again."""

T = TypeVar("T")


class AtHub(NamedTuple):
    """Facts of a checkpoint at the Hub: exact, or estimated from its config with the reason, or the reason alone."""

    checkpoint: Checkpoint | None = None
    reason: SparkfleetError | None = None


def at_hub(model: str) -> AtHub:
    """The facts of `organisation/name[@revision][:TAG]` at the Hub, or of its cached outline. Errors of the Hub are
    returned.

    With HF_HUB_OFFLINE only the cache is read, and a model that is not in it has neither facts nor a reason.
    """
    try:
        wanted = MetadataRequest.of(model)
    except FactError:
        return AtHub()
    if not wanted.id:
        return AtHub()
    cache = _Cache(wanted)
    kept = cache.outline(cache.commit(REMEMBERED_S))
    if kept is not None:
        return AtHub(kept)
    if is_offline(os.environ):
        return AtHub(cache.outline(cache.commit()))
    try:
        return _asked(wanted, cache)
    except SparkfleetError as error:
        kept = cache.outline(cache.commit())
        return AtHub(kept, None if kept else error)


def _asked(wanted: MetadataRequest, cache: _Cache) -> AtHub:
    check_connection_variables()  # before the import, in which huggingface_hub reads some of them
    from sparkfleet.staging.hub import Hub  # a slow import, only if the Hub is queried
    from sparkfleet.staging.hub_http import HttpTimeouts

    hub = Hub(wanted.id, timeouts=HttpTimeouts(connect_s=CONNECT_S, read_s=READ_S, answer_s=2 * READ_S))
    if hub.endpoint in _gave_up:
        raise _gave_up[hub.endpoint]
    try:
        commit, sizes = _within(FIRST_S, hub.address, lambda: hub.sizes(wanted.revision))
    except HubUnreachable as error:
        _gave_up[hub.endpoint] = error
        raise
    kept = cache.outline(commit)
    if kept is None:
        outline, reason = _fetched(hub, commit, sizes, wanted.tag)
        if reason is not None:
            return AtHub(_estimated(outline, wanted, reason), reason)
        try:
            kept = _exact(outline, wanted)
        except FactError as error:  # damaged or hostile headers, or an unknown architecture
            return AtHub(_estimated(outline, wanted, error), error)
        cache.keep(outline)
    cache.remember(commit)
    return AtHub(kept)


# --- what is read -----------------------------------------------------------------------------------------------------


def _fetched(
    hub: Hub, commit: str, sizes: Mapping[str, int], tag: str
) -> tuple[Outline, SparkfleetError | None]:
    """The outline of a commit; without weights, and with the reason, if their headers cannot be read.

    Raises:
        SparkfleetError: not even its config can be read; or no GGUF model has the tag, or there are several and no tag.
    """
    names = _gguf_names(sizes, tag)
    if "config.json" not in sizes and not names:
        raise StagingError(f"{hub.address} lists no config.json and no GGUF files for {hub.name}.")
    reader = _Reader(hub, commit, sizes)
    outline = Outline(directory=f"{hub.address}/{hub.name}", commit=commit)
    if tag or names:
        chosen = choose(names, tag, hub.name, sizes)[1]
        outline.files = _within(ALL_S, hub.address, lambda: reader.gguf(names, chosen))
        return outline, None
    outline.files = _within(ALL_S, hub.address, reader.small_files)
    try:
        outline.files += _within(reader.left_s, hub.address, reader.headers)
    except SparkfleetError as error:
        return outline, error
    return outline, None


def _gguf_names(sizes: Mapping[str, int], tag: str) -> list[str]:
    """GGUF files of a repository; none if it has weights in another format, unless a tag names a GGUF model."""
    others = any(name.endswith(".safetensors") and "/" not in name for name in sizes)
    return [] if others and not tag else sorted(name for name in sizes if is_gguf_path(name))


class _Reader:
    """Reads files of one commit: at most `MOST_UNPACKED_BYTES` in all, and none is begun after `ALL_S`."""

    def __init__(self, hub: Hub, commit: str, sizes: Mapping[str, int]) -> None:
        self._hub = hub
        self._commit = commit
        self._sizes = {
            path: size
            for path, size in sizes.items()
            if ("/" not in path or is_gguf_path(path)) and size >= 0
        }
        self._end_s = time.monotonic() + ALL_S
        self._room = MOST_UNPACKED_BYTES
        self._index: bytes | None = None

    @property
    def left_s(self) -> float:
        """Seconds that are left for all files."""
        return max(0.0, self._end_s - time.monotonic())

    def small_files(self) -> list[OutlinedFile]:
        """Config, index, licence and their like."""
        wanted = [
            (name, size if name in WHOLE else min(size, limit))
            for name, limit in (*WHOLE.items(), *BEGUN.items())
            if (size := self._sizes.get(name, -1)) >= 0 and (name in BEGUN or size <= limit)
        ]
        return list(self._each(wanted, self._small))

    def headers(self) -> list[OutlinedFile]:
        """The headers of the safetensors files that are loaded, and the sizes of all other weight files."""
        names = sorted(name for name in self._sizes if name.endswith(SUFFIXES) and name.isprintable())
        chosen = set(loaded([name for name in names if name.endswith(".safetensors")], self._index))
        if len(names) > MOST_SHARDS:
            raise StagingError(
                f"{self._hub.name} has {len(names)} weight files; at most {MOST_SHARDS} are read."
            )
        others = [self._outlined(name, b"") for name in names if name not in chosen]
        return [*others, *self._each([(name, 0) for name in names if name in chosen], self._header)]

    def gguf(self, names: Sequence[str], chosen: Collection[str]) -> list[OutlinedFile]:
        """The headers of the chosen GGUF files, the sizes of all others, and what has the licence."""
        if len(names) > MOST_SHARDS:
            raise StagingError(
                f"{self._hub.name} has {len(names)} GGUF files; at most {MOST_SHARDS} are read."
            )
        others = [self._outlined(name, b"") for name in names if name not in chosen]
        beside = [(name, min(self._sizes[name], BEGUN[name])) for name in BESIDE_GGUF if name in self._sizes]
        headers = self._each([(name, 0) for name in chosen], self._gguf_header)
        return [*others, *self._each(beside, self._small), *headers]

    def _gguf_header(self, name: str, _: int) -> OutlinedFile:
        """The header, read piece by piece: its tokenizer may have 30 MB, and no field has its length."""
        size, content = self._sizes[name], bytearray()

        def more(count: int) -> bytes:
            piece = self._start(name, min(count, size - len(content)), len(content))
            content.extend(piece)
            return piece

        scan = HeaderScan(more)
        try:
            return self._outlined(name, bytes(scan.buffer[: scan.run().length]))
        except DamagedHeader:
            return self._outlined(name, bytes(scan.buffer))  # the reader of headers reports it

    def _each(
        self, jobs: Iterable[tuple[str, int]], read: Callable[[str, int], OutlinedFile]
    ) -> Iterator[OutlinedFile]:
        pool = ThreadPoolExecutor(READERS)
        try:
            yield from pool.map(lambda job: read(*job), jobs)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _small(self, name: str, length: int) -> OutlinedFile:
        content = self._start(name, length)
        if name == INDEX:
            self._index = content
        return self._outlined(name, content)

    def _header(self, name: str, _: int) -> OutlinedFile:
        size = self._sizes[name]
        content = self._start(name, min(FIRST_BYTES, size))
        length = int.from_bytes(content[:8], "little")
        if length > HEADER_LIMIT or 8 + length > size:
            content = content[:8]  # the invalid length; the reader of headers reports it
        elif 8 + length > len(content):
            content = self._start(name, 8 + length)
        return self._outlined(name, content[: 8 + length])

    def _start(self, name: str, length: int, skipped: int = 0) -> bytes:
        self._room -= length
        if not self.left_s or self._room < 0:
            what = f"{ALL_S:.0f} s" if not self.left_s else f"{MOST_UNPACKED_BYTES >> 20} MiB"
            raise StagingError(
                f"the headers of {self._hub.name} take more than {what} at {self._hub.address}."
            )
        content = self._hub.start_of(name, self._commit, length, skipped)
        if len(content) < length:
            raise StagingError(f"{self._hub.address} sent {len(content)} of {length} bytes of {name}.")
        return content

    def _outlined(self, name: str, start: bytes) -> OutlinedFile:
        return OutlinedFile(name=name, size=self._sizes[name], start=zlib.compress(start))


def _within(limit_s: float, address: str, act: Callable[[], T]) -> T:
    """The result of `act`, or HubUnreachable after `limit_s`; its thread does not keep the process alive."""
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(act())
        except BaseException as error:  # raised again below
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    if not found:
        raise HubUnreachable(f"{address} does not answer within {limit_s:.0f} s.")
    return found[0]


# --- what it becomes --------------------------------------------------------------------------------------------------


def _exact(outline: Outline, wanted: MetadataRequest) -> Checkpoint:
    """Facts from config and headers. Raises FactError if they are damaged or hostile."""
    found = read_outline(outline, wanted, "the Hub")
    if found.gguf is not None:
        origin = f"exact, from the Hub's GGUF headers at revision {outline.commit[:7]}"
    elif not found.weights_known:
        origin = f"config alone, estimated: the Hub has no safetensors files at revision {outline.commit[:7]}"
    else:
        origin = f"exact, from the Hub's safetensors headers at revision {outline.commit[:7]}"
    return found.model_copy(update={"path": None, "origin": origin})


def _estimated(outline: Outline, wanted: MetadataRequest, reason: SparkfleetError) -> Checkpoint | None:
    """Sizes by the config alone; None if they do not follow from it, as those of GGUF files."""
    if any(file.name.endswith(SUFFIX) for file in outline.files):
        return None
    files = [file for file in outline.files if file.name != INDEX and not file.name.endswith(SUFFIXES)]
    try:
        found = read_outline(Outline(outline.directory, outline.commit, files), wanted, "the Hub")
    except FactError:
        return None
    origin = f"config alone at revision {outline.commit[:7]}, estimated: {reason.what}"
    return found.model_copy(update={"path": None, "origin": origin})


# --- the cache --------------------------------------------------------------------------------------------------------


def outlines_directory() -> Path:
    """The cache of outlines on this machine."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "sparkfleet" / "outlines"


class _Cache:
    """Outlines of one model by commit, and the last seen commits of its revisions."""

    def __init__(self, wanted: MetadataRequest) -> None:
        self._wanted = wanted
        self._folder = outlines_directory() / f"models--{wanted.id.replace('/', '--')}"
        self._ref = self._folder / "refs" / wanted.revision.replace("/", "--")

    def commit(self, age_s: float | None = None) -> str:
        """The commit of the revision, if it was seen at most `age_s` ago; else ""."""
        if COMMIT.fullmatch(self._wanted.revision):
            return self._wanted.revision
        try:
            age = time.time() - self._ref.stat().st_mtime
            found = self._ref.read_bytes()[:40].decode("ascii", errors="replace")
        except OSError:
            return ""
        return found if COMMIT.fullmatch(found) and (age_s is None or 0 <= age < age_s) else ""

    def remember(self, commit: str) -> None:
        """Caches the commit of the revision."""
        with suppress(OSError):  # without a cache it is only slower
            write_atomically(self._ref, commit.encode())

    def outline(self, commit: str) -> Checkpoint | None:
        """The facts of a cached outline; None if there is none, or it is damaged."""
        if not commit:
            return None
        try:
            parser = OutlineParser((self._wanted,))
            parser.feed(read_start(self._place(commit), MOST_ANSWER_BYTES))
            found = parser.outlines()
            return _exact(found[0], self._wanted) if found and found[0] else None
        except FactError:
            return None

    def keep(self, outline: Outline) -> None:
        """Caches an outline in the format of nodes."""
        lines: list[dict[str, object]] = [{"directory": outline.directory, "commit": outline.commit}]
        lines += [
            {"name": file.name, "size": file.size, "start": b64encode(file.start).decode()}
            for file in outline.files
        ]
        content = "".join(f"{json.dumps({'at': 0, **line})}\n" for line in lines) + '{"end": true}\n'
        with suppress(OSError):
            write_atomically(self._place(outline.commit), content.encode())

    def _place(self, commit: str) -> Path:
        return self._folder / f"{ModelName(commit, tag=self._wanted.tag).tagged}.jsonl"
