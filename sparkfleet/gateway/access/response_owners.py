"""Owners of stored responses (Responses API): only the key that made one reads, cancels, deletes or continues it.

Engines know no keys, and each keeps its responses for itself, so a request that names one goes to the group that made it.
The owners are kept in a file that all gateways of a head read and append to: a restart, or the gateway that runs beside for
seconds, loses none. A response whose owner is not known is nobody's, and is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

MOST = 100_000
"""Responses whose owner is remembered, in about 40 MB."""
FILE_BYTES = 10 << 20
"""Length at which a file becomes the former one, which is read, too: both together have more than `MOST` lines."""
WRITE_S = 0.2
"""Pause between two writes: the most that a killed gateway loses."""
RESPONSES = "/v1/responses"
_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,128})"')
# vLLM, SGLang and TensorRT-LLM: 128 random bits. Another engine may count from 1 after each start, so its ids have no owner.
_LONGEST = 4096
_FIELDS = 4


class StoredResponse(NamedTuple):
    """The owner of a stored response, and its place."""

    key: str
    """Id of the key that made it."""
    model: str
    app: str
    """The group that has it."""


class ResponseOwners:
    """Ids of responses with their owners. `file`: keeps them; None: they are only in memory."""

    def __init__(self, file: Path | None = None, most: int = MOST) -> None:
        self._file = file
        self._most = most
        self._of: OrderedDict[str, StoredResponse] = OrderedDict()
        self._unwritten: list[str] = []
        self._noted = asyncio.Event()
        self._first: bytes | None = None
        """First line of the file that was read: its name passes to others, and the kernel uses the inode of a deleted file
        again."""
        self._read_to = 0
        """The place up to which it was read."""
        if file is not None:
            self._read_new()

    def note(self, beginning: bytes, made: StoredResponse) -> None:
        """Remembers the owner of the response whose first bytes these are. The first owner of an id remains its owner."""
        found = _ID.search(beginning[:_LONGEST])
        if found is None or (response := found[1].decode()) in self._of:
            return
        self._remember(response, made)
        if self._file is not None:
            self._unwritten.append("\t".join((response, *made)) + "\n")
            self._noted.set()

    def of(self, response: str) -> StoredResponse | None:
        """The owner of a response; None if it is not known. Reads what another gateway has added, if it must."""
        found = self._of.get(response)
        if found is None and self._file is not None:
            self._read_new()
            found = self._of.get(response)
        return found

    async def keep(self) -> None:
        """Writes what is new to the file, until it is cancelled."""
        while True:
            await self._noted.wait()
            await self.flush()
            await asyncio.sleep(WRITE_S)

    async def flush(self) -> None:
        """Writes what is new. A failure is logged, and the next write is another try."""
        self._noted.clear()
        lines, self._unwritten = self._unwritten, []
        if not lines or self._file is None:
            return
        try:
            # In a thread: while weights are copied to the disk, a write may be held up for longer than a stream may.
            await asyncio.to_thread(_append, self._file, "".join(lines).encode())
        except OSError as error:
            self._unwritten = [*lines, *self._unwritten][-self._most :]
            log.warning("%s was not written, and a kill would lose its owners: %s", self._file, error)

    def _remember(self, response: str, made: StoredResponse) -> None:
        self._of[response] = made
        if len(self._of) > self._most:
            self._of.popitem(last=False)

    def _read_new(self) -> None:
        """Reads what was added since the last time: to the file, and before it was replaced to the former one."""
        assert self._file is not None
        first = _first_line(self._file)
        if first != self._first:
            former = _former(self._file)
            self._take_lines(_content(former, self._read_to if _first_line(former) == self._first else 0))
            self._first, self._read_to = first, 0
        text = _content(self._file, self._read_to)
        whole = text[: text.rfind(b"\n") + 1]
        self._read_to += len(whole)
        self._take_lines(whole)

    def _take_lines(self, text: bytes) -> None:
        for line in text.decode("utf-8", "replace").splitlines():
            response, *made = line.split("\t")
            if len(made) == _FIELDS - 1 and response not in self._of:
                self._remember(response, StoredResponse(*made))


def response_of(path: str) -> str:
    """The response that a path names; "" if it names none."""
    parts = path.split("/")
    return parts[3] if len(parts) > 3 and path.startswith(f"{RESPONSES}/") else ""


def _former(file: Path) -> Path:
    return file.with_suffix(".former")


def _append(file: Path, lines: bytes) -> None:
    """Appends in one write, so that lines of two gateways do not mix."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if file.stat().st_size >= FILE_BYTES:
            file.replace(_former(file))
    place = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(place, lines)
    finally:
        os.close(place)


def _first_line(file: Path) -> bytes:
    """The line that a file begins with; b"" if it has none yet."""
    try:
        with file.open("rb") as opened:
            line = opened.readline(_LONGEST)
    except OSError:
        return b""
    return line if line.endswith(b"\n") else b""


def _content(file: Path, start: int = 0) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(start)
            return opened.read()
    except OSError:
        return b""
