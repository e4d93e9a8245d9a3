"""The header of a safetensors file: names, dtypes, shapes and offsets of its tensors. The weights are never read.

Format: 8 bytes little-endian length N, N bytes of JSON (at most 100 MB, at most 25 MB here), then the tensors
without gaps or overlaps up to the end of the file (safetensors 0.8, "Format" section of its README).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sparkfleet.checkpoints.io.safe_io import open_regular, parse_json_object, shown
from sparkfleet.errors import FactError

HEADER_LIMIT = 25_000_000
"""Bytes; huggingface_hub's bound (SAFETENSORS_MAX_HEADER_LENGTH in its constants.py, 2.x), for 150,000 tensors in a file:
Kimi-K2 in NVFP4 has 400,000 in all its shards. The format allows 100 MB, but hostile JSON takes 25 times its size in RAM."""

MOST_DIMENSIONS = 64
MOST_BYTES = 1 << 63

BITS: Mapping[str, int] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}
"""Bits per element of every dtype of the format (safetensors 0.8)."""

AGAIN = "Download the checkpoint again."
LFS_POINTER = b"version "
"""First bytes of a pointer, by its specification; as a length they exceed every header."""


class Tensor(NamedTuple):
    """One entry of a header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored_bytes: int

    @property
    def elements(self) -> int:
        """Stored elements; packed weights hold several parameters in one."""
        return self.stored_bytes * 8 // BITS[self.dtype]


def read_header(path: Path) -> list[Tensor]:
    """The tensors of one file, in the order in which they are stored.

    Raises:
        FactError: truncated, not safetensors, or the header contradicts the format or the file's size.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = _header_length(file.read(8), size, path)
        content = file.read(length)
    if len(content) != length:
        raise FactError(f"{path}: ends inside its header.", means="The file is truncated.", do=AGAIN)
    header = parse_json_object(content, f"{path} (header)")
    return _tensors(header, size - 8 - length, path)


def _header_length(prefix: bytes, size: int, path: Path) -> int:
    if len(prefix) < 8:
        what = f"{path}: {size} bytes; a safetensors file has at least 8."
        raise FactError(what, means="The file is truncated.", do=AGAIN)
    if prefix == LFS_POINTER:
        raise FactError(
            f"{path}: is a pointer of Git LFS, not the weights.",
            means="The repository was cloned without git-lfs, so none of its weights are here.",
            do=f"`git lfs pull` in {path.parent}; or `hf download` of the model.",
        )
    length = int.from_bytes(prefix, "little")
    if length > HEADER_LIMIT:
        raise FactError(
            f"{path}: declares a header of {length} bytes; at most {HEADER_LIMIT} are read.",
            means="This is not a safetensors file, or it has more than 150,000 tensors.",
            do=f"{AGAIN} If it is whole, split it: `save_pretrained` with `max_shard_size`.",
        )
    if 8 + length > size:
        raise FactError(
            f"{path}: declares a header of {length} bytes in a file of {size}.",
            means="The file is truncated or not a safetensors file.",
            do=AGAIN,
        )
    return length


def _tensors(header: Mapping[str, object], data_bytes: int, path: Path) -> list[Tensor]:
    placed = sorted(_placed(name, entry, path) for name, entry in header.items() if name != "__metadata__")
    position = 0
    for begin, end, tensor in placed:
        if begin != position:
            relation = "overlaps" if begin < position else "leaves a gap after"
            raise _broken(path, tensor.name, f"{relation} the one before it")
        position = end
    if position != data_bytes:
        raise FactError(
            f"{path}: its header declares {position} bytes of tensors, the file has {data_bytes}.",
            means="The file is truncated or something was appended to it.",
            do=AGAIN,
        )
    return [tensor for _, _, tensor in placed]


def _placed(name: str, entry: object, path: Path) -> tuple[int, int, Tensor]:
    """One checked entry with its byte range. Large models have 400,000, so this is written for speed."""
    if type(entry) is not dict:
        raise _broken(path, name, "is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if type(dtype) is not str or dtype not in BITS:
        raise _broken(path, name, f"has the unknown dtype {shown(dtype)}")
    if type(shape) is not list or len(shape) > MOST_DIMENSIONS:
        raise _broken(path, name, f"has the shape {shown(shape)}")
    bits = BITS[dtype]
    for size in shape:
        # `type` and not `isinstance`: true is an int to Python, but not to the format.
        if type(size) is not int or not 0 <= size < MOST_BYTES:
            raise _broken(path, name, f"has {shown(size)} in its shape")
        bits *= size
    if type(offsets) is not list or len(offsets) != 2:
        raise _broken(path, name, f"has the offsets {shown(offsets)}")
    begin, end = offsets
    if type(begin) is not int or type(end) is not int or begin < 0 or (end - begin) * 8 != bits:
        raise _broken(path, name, f"has the offsets {shown(begin)} and {shown(end)} for {shown(bits)} bits")
    return begin, end, Tensor(name, dtype, tuple(shape), end - begin)


def _broken(path: Path, name: str, what: str) -> FactError:
    return FactError(
        f"{path}: tensor {shown(name)} {what}.",
        means="The header contradicts the safetensors format.",
        do=AGAIN,
    )
