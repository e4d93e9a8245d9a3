"""The body of a request, in pieces. A long one is never copied as a whole: a copy of 32 MiB holds up every stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

PIECE_BYTES = 1 << 18
"""Bytes that are written, copied or parsed at once, at most, on the event loop."""


class RequestBody:
    """Bytes in the order of their arrival."""

    __slots__ = ("_pieces", "_rest", "size")

    def __init__(self, body: bytes = b"") -> None:
        self._pieces: list[bytes] = []
        self._rest = bytearray()
        self.size = 0
        """Number of bytes."""
        self.add(body)

    def add(self, chunk: bytes) -> None:
        """Appends bytes. Small ones are put together: a client may send a body byte by byte."""
        self.size += len(chunk)
        self._rest += chunk
        if len(self._rest) >= PIECE_BYTES:
            self._pieces.append(bytes(self._rest))
            self._rest = bytearray()

    def __iter__(self) -> Iterator[bytes]:
        """The bytes, in pieces of about `PIECE_BYTES`."""
        yield from self._pieces
        if self._rest:
            yield bytes(self._rest)

    def whole(self) -> bytes:
        """All bytes at once: for short bodies."""
        return b"".join(self)

    def replaced(self, *edits: tuple[int, int, bytes]) -> RequestBody:
        """A body with other bytes at a few places. Pieces without one are shared, not copied.

        Args:
            edits: begin and end of the bytes that are replaced, and what takes their place; in order, without overlap.
        """
        made, left, at, done = RequestBody(), deque(edits), 0, 0
        for piece in self:
            after, parts = at + len(piece), list[bytes]()
            while left and left[0][0] < after:
                start, end, text = left.popleft()
                parts += piece[max(0, done - at) : start - at], text
                done = end
            touched = parts or done > at
            if new := b"".join([*parts, piece[max(0, done - at) :]]) if touched else piece:
                made._pieces.append(new)
                made.size += len(new)
            at = after
        return made
