"""A bounded walk through the header of a GGUF file. Stdlib only: its text is also sent to nodes.

Format: `ggml/include/gguf.h` of llama.cpp b11434.

It runs on Python 3.8 and later, because the node's python3 may be old.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

MAGIC = b"GGUF"
LFS_START = b"vers"
VERSIONS = (2, 3)
MOST_HEADER_BYTES = 64 << 20
"""Limit of a header, bytes. The largest known ones have 30 MB, of which the tokenizer is all but 1 MB."""
MOST_KEYS = 10_000
MOST_TENSORS = 200_000
MOST_ELEMENTS = 4_000_000
"""Limit of an array; the largest vocabularies have 262,144 tokens and 514,906 merges (Gemma 3)."""
MOST_TEXT = 4 << 20
"""Limit of a text, bytes. The longest are chat templates, of less than 100 kB."""
MOST_NAME = 1024
MOST_DIMENSIONS = 4
KEPT_TEXTS = 256
KEPT_NUMBERS = 4096
"""Longest arrays whose elements are kept; of others only their number is."""
FIRST_READ = 1 << 20

_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_TEXT, _ARRAY = 8, 9
_SIZES = {kind: struct.calcsize(code) for kind, code in _NUMBERS.items()}


class DamagedHeader(Exception):
    """A header that does not follow the format, or exceeds a limit; its text completes "FILE: …"."""


class Elements(NamedTuple):
    """An array that is too long to keep."""

    number: int


class ScannedTensor(NamedTuple):
    """One entry of the header."""

    name: str
    shape: tuple[int, ...]
    """Elements of each dimension, the contiguous one first."""
    kind: int
    """Number of the type, as ggml has it."""
    offset: int
    """Bytes from the start of the tensors' data."""


class ScannedHeader(NamedTuple):
    """The header of one file."""

    version: int
    metadata: dict[str, Any]
    tensors: list[ScannedTensor]
    length: int
    """Bytes up to the end of the last entry."""


class HeaderScan:
    """Walks through a header. `buffer` has the bytes that were read, which are a few more than the header.

    Args:
        more: returns the next bytes of the file, at most as many as given; b"" at its end.
        limit: longest header, bytes.
    """

    def __init__(self, more: Callable[[int], bytes], limit: int = MOST_HEADER_BYTES) -> None:
        self.buffer = bytearray()
        self._more = more
        self._limit = limit
        self._at = 0

    def run(self) -> ScannedHeader:
        """Reads the whole header. Raises DamagedHeader."""
        version = self._start()
        tensors, keys = self._counted("<Q", MOST_TENSORS, "tensors"), self._counted("<Q", MOST_KEYS, "keys")
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._text(MOST_NAME)
            if key in metadata:
                raise DamagedHeader("has a key twice")
            metadata[key] = self._value(self._number("<I"))
        found = [self._tensor() for _ in range(tensors)]
        return ScannedHeader(version, metadata, found, self._at)

    def _start(self) -> int:
        magic = self._bytes(4)
        if magic == LFS_START:
            raise DamagedHeader("is a pointer of Git LFS, not the weights")
        if magic != MAGIC:
            raise DamagedHeader("is not a GGUF file")
        version: int = self._number("<I")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            if swapped in VERSIONS:
                raise DamagedHeader("is for machines with big-endian numbers")
            raise DamagedHeader(f"has version {version} of the format; 2 and 3 are read")
        return version

    def _tensor(self) -> ScannedTensor:
        name = self._text(MOST_NAME)
        dimensions = self._counted("<I", MOST_DIMENSIONS, "dimensions of a tensor")
        shape = tuple(self._counted("<Q", 1 << 48, "elements in a dimension") for _ in range(dimensions))
        return ScannedTensor(name, shape, self._number("<I"), self._number("<Q"))

    def _value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _TEXT:
            return self._text(MOST_TEXT)
        if kind == _ARRAY:
            return self._array(self._number("<I"), self._counted("<Q", MOST_ELEMENTS, "elements in an array"))
        raise DamagedHeader(f"has a value of the unknown type {kind}")

    def _array(self, kind: int, count: int) -> Any:
        if kind in _NUMBERS:
            content = self._bytes(count * _SIZES[kind])
            if count > KEPT_NUMBERS:
                return Elements(count)
            code = _NUMBERS[kind]
            return list(struct.unpack(f"<{count}{code[1]}", content))
        if kind != _TEXT:
            raise DamagedHeader(f"has an array of the unknown type {kind}")
        if count <= KEPT_TEXTS:
            return [self._text(MOST_TEXT) for _ in range(count)]
        for _ in range(count):  # of the tokenizer
            length = self._number("<Q")
            if length > MOST_TEXT:
                raise DamagedHeader(f"has a text of {length} bytes; at most {MOST_TEXT} are read")
            self._need(length)
            self._at += length
        return Elements(count)

    def _counted(self, code: str, most: int, noun: str) -> int:
        count: int = self._number(code)
        if count > most:
            raise DamagedHeader(f"declares {count} {noun}; at most {most} are read")
        return count

    def _text(self, most: int) -> str:
        length = self._number("<Q")
        if length > most:
            raise DamagedHeader(f"has a text of {length} bytes; at most {most} are read")
        return self._bytes(length).decode("utf-8", "replace")

    def _number(self, code: str) -> Any:
        size = struct.calcsize(code)
        self._need(size)
        value = struct.unpack_from(code, self.buffer, self._at)[0]
        self._at += size
        return value

    def _bytes(self, count: int) -> bytes:
        self._need(count)
        content = bytes(self.buffer[self._at : self._at + count])
        self._at += count
        return content

    def _need(self, count: int) -> None:
        """Reads on until `count` bytes follow."""
        end = self._at + count
        if end > self._limit:
            raise DamagedHeader(f"has a header of more than {self._limit >> 20} MiB")
        while len(self.buffer) < end:
            wanted = max(end - len(self.buffer), FIRST_READ, len(self.buffer))
            content = self._more(min(wanted, self._limit - len(self.buffer)))
            if not content:
                raise DamagedHeader("ends inside its header")
            self.buffer += content
