"""Retained output of a command."""

from __future__ import annotations

OUTPUT_BYTES = 8 << 20
"""Limit for stdout and for stderr; the rest is read and dropped."""


class Output:
    """The first `limit` bytes of a stream, and the number of bytes after them."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = OUTPUT_BYTES if limit is None else limit
        self._kept = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Keep data up to the limit."""
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        self._dropped += max(len(data) - room, 0)

    @property
    def content(self) -> bytes:
        """Retained output."""
        return bytes(self._kept)

    def text(self) -> str:
        """Retained output, with the number of dropped bytes. Bytes that are not UTF-8 are replaced."""
        text = self._kept.decode(errors="replace")
        return f"{text}\n[cut: {self._dropped} more bytes]" if self._dropped else text
