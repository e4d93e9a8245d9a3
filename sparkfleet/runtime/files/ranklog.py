"""The log of one rank: a few bounded files without secrets, and its last lines. Stdlib only."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from sparkfleet.remote.atomic_write import make_private

FILE_BYTES = 10 << 20
FILES = 3
TAIL_LINES = 50
_TAIL_BYTES = 16 << 10
_LINE_LENGTH = 500
_SHORTEST_SECRET = 8
"""Fewest characters of a secret that is replaced: shorter ones would match anywhere in a log."""
_MASK = b"***"
OURS = b"[sparkfleet]"
"""Mark of a line that the supervisor writes into the log."""
NOT_OURS = b"[engine: sparkfleet]"
"""Replacement of our own mark if the engine prints it: by our own lines people and programs see where a start begins, and
why an engine ended."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


class RankLog:
    """Appends to `path` (0600, its directory 0700); `path.1`, `path.2` are the older ones.

    On a full disk the newest lines take the place of the oldest: those of an earlier start would be read as this one's.
    If that is not enough, or the directory was removed, lines are lost, and the engine runs on. A file that somebody
    removes is made again.
    """

    def __init__(
        self, path: str, *, secrets: Iterable[str] = (), file_bytes: int = FILE_BYTES, files: int = FILES
    ) -> None:
        self._path = path
        self._mask = SecretMask(secrets)
        self._output = SecretMask(secrets, also={OURS: NOT_OURS})
        self._file_bytes = file_bytes
        self._files = files
        self._tail = b""
        self._fd = -1
        self._size = 0
        self._ended = True
        """True if the file is empty or ends with a newline."""

    def write(self, chunk: bytes) -> None:
        """Appends output of the engine."""
        self._remember(self._output.feed(chunk))

    def note(self, line: str) -> None:
        """Appends a line of the supervisor, which is not in the tail. It begins a line, and is one."""
        self._remember(self._output.flush())
        text = self._mask.whole("\\n".join(line.splitlines()).encode(errors="replace"))
        self._append(OURS + b" " + text + b"\n", own_line=True)

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines that the engine printed, fit for a terminal: no escape codes, one state of a progress bar."""
        text = self._tail.decode(errors="replace").rstrip()
        kept = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")[-lines:])
        return "\n".join(_TERMINAL_CODES.sub("", line)[:_LINE_LENGTH] for line in kept)

    def close(self) -> None:
        """Writes held-back text, and closes the file."""
        self._remember(self._output.flush())
        self._close_file()

    def _remember(self, printed: bytes) -> None:
        self._tail = (self._tail + printed)[-_TAIL_BYTES:]
        self._append(printed)

    def _append(self, chunk: bytes, *, own_line: bool = False) -> None:
        try:
            if chunk:
                self._write_file(chunk, own_line=own_line)
        except OSError:
            self._close_file()

    def _write_file(self, chunk: bytes, *, own_line: bool) -> None:
        if self._fd >= 0 and not os.fstat(self._fd).st_nlink:
            self._close_file()
        if self._fd < 0:
            self._open_file()
        if own_line and self._size and not self._ended:
            chunk = b"\n" + chunk
        if self._size and self._size + len(chunk) > self._file_bytes:
            self._rotate()
        self._ended = chunk.endswith(b"\n")
        while chunk:
            try:
                written = os.write(self._fd, chunk)
            except OSError as error:
                if error.errno not in _FULL or not self._make_room():
                    raise
                continue
            self._size += written
            chunk = chunk[written:]

    def _open_file(self) -> None:
        make_private(Path(self._path).parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._ended = _ends_a_line(self._path)

    def _rotate(self) -> None:
        self._close_file()
        names = [self._path, *(f"{self._path}.{i}" for i in range(1, self._files))]
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if os.path.exists(newer):
                os.replace(newer, older)
        self._open_file()

    def _make_room(self) -> bool:
        """Removes the oldest file, or else empties this one; False if there is nothing left of either."""
        for older in (f"{self._path}.{i}" for i in range(self._files - 1, 0, -1)):
            with suppress(FileNotFoundError):
                os.unlink(older)
                return True
        if self._size:
            os.ftruncate(self._fd, 0)
            self._size = 0
            return True
        return False

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _ends_a_line(path: str) -> bool:
    """True for an empty file, too. A supervisor that was killed leaves half a line."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) in (b"", b"\n")


class SecretMask:
    """Replaces secrets in a stream of chunks, even if a secret spans several of them.

    Args:
        secrets: texts that become `***`.
        also: further texts, each with its replacement, which must contain none of them.
    """

    def __init__(self, secrets: Iterable[str], also: Mapping[bytes, bytes] | None = None) -> None:
        # A logger puts its own words before each line of a text with several, such as a private key.
        parts = {part for s in secrets for part in (s, *map(str.strip, s.splitlines()))}
        long_enough = {os.fsencode(part) for part in parts if len(part) >= _SHORTEST_SECRET}
        self._secrets = dict.fromkeys(sorted(long_enough, key=len, reverse=True), _MASK) | dict(also or {})
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """The chunk without secrets, less an end that may be the beginning of one."""
        text = self.whole(self._held + chunk)
        keep = len(text) - self._open_end(text)
        self._held = text[keep:]
        return text[:keep]

    def whole(self, text: bytes) -> bytes:
        """A text without secrets that is no part of the stream."""
        for secret, instead in self._secrets.items():
            text = text.replace(secret, instead)
        return text

    def flush(self) -> bytes:
        """Releases held-back text that turned out to be no secret."""
        held, self._held = self._held, b""
        return held

    def _open_end(self, text: bytes) -> int:
        """Length of the longest end of `text` that begins a secret."""
        longest = max((len(s) for s in self._secrets), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[-length:]) for s in self._secrets):
                return length
        return 0
