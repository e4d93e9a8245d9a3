"""Names of the beginnings of a prompt. Pure.

An engine reuses the KV cache of a prompt's beginning if it had the same one before. Two prompts with the same name for their
first n blocks begin with the same characters.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from zlib import crc32

_SIZES = (512,) * 16 + (1024,) * 32 + (4096,) * 40 + (32768,) * 40
"""Characters of each block: finer at the beginning, where system prompts end; 1.5 million in 128 blocks."""


def _ends() -> tuple[int, ...]:
    ends, end = [], 0
    for size in _SIZES:
        end += size
        ends.append(end)
    return tuple(ends)


ENDS = _ends()
"""Characters up to the end of each block."""


def prefix_of(texts: Iterable[str], salt: str = "") -> tuple[int, ...]:
    """The names of a prompt's whole blocks, each of all characters up to its end.

    A name has 32 bits: a wrong match costs a prediction, not an answer.

    Args:
        salt: keeps its blocks apart from those of others, as in the engine.
    """
    text = "\0".join(texts)
    found, start, name = [], 0, crc32(salt.encode("utf-8", "surrogatepass")) if salt else 0
    for end in ENDS:
        if end > len(text):
            break
        name = crc32(text[start:end].encode("utf-8", "surrogatepass"), name)
        found.append(name)
        start = end
    return tuple(found)


def length_of(prefix: tuple[int, ...], characters: int) -> int:
    """Characters of a prompt: those of its texts, or at least those of its blocks."""
    return max(characters, ENDS[len(prefix) - 1]) if prefix else characters


def matched(prefix: tuple[int, ...], known: Container[int]) -> int:
    """Number of leading blocks that are known. If a block is known, those before it are as well."""
    low, high = 0, len(prefix)
    if not high or prefix[0] not in known:
        return 0
    if prefix[-1] in known:
        return high
    while low < high:
        middle = (low + high) // 2
        if prefix[middle] in known:
            low = middle + 1
        else:
            high = middle
    return low
