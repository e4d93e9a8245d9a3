"""The header of a GGUF file, checked: keys, and the tensors with their sizes. The weights are never read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sparkfleet.checkpoints.gguf.gguf_scan import (
    DamagedHeader,
    Elements,
    HeaderScan,
    ScannedHeader,
    ScannedTensor,
)
from sparkfleet.checkpoints.gguf.gguf_types import GGUF_TYPES, GgufType
from sparkfleet.checkpoints.io.config_json import Config
from sparkfleet.checkpoints.io.safe_io import open_regular, shown
from sparkfleet.errors import FactError

ALIGNMENT = 32
MOST_ALIGNMENT = 1 << 16
AGAIN = "Download the file again."
SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS = "split.count", "split.no", "split.tensors.count"


class GgufTensor(NamedTuple):
    """One tensor of a GGUF file."""

    name: str
    kind: GgufType
    shape: tuple[int, ...]
    """The contiguous dimension first."""
    stored_bytes: int

    @property
    def elements(self) -> int:
        """Weights."""
        return self.stored_bytes // self.kind.bytes * self.kind.block


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Keys and tensors of a model's file, or of all its shards together."""

    where: str
    metadata: Mapping[str, object]
    tensors: tuple[GgufTensor, ...]
    file_bytes: int

    @property
    def architecture(self) -> str:
        """`general.architecture`. Raises FactError if it is missing."""
        config = Config(self.metadata, self.where)
        if not config.has("general.architecture"):
            raise config.missing("general.architecture")
        return config.text("general.architecture")

    @property
    def own(self) -> Config:
        """The keys of its architecture, without the prefix."""
        prefix = f"{self.architecture}."
        own = {key[len(prefix) :]: value for key, value in self.metadata.items() if key.startswith(prefix)}
        return Config(own, f"{self.where}: {self.architecture}")

    def count(self, key: str) -> int | None:
        """Elements of an array, however long; None if there is none."""
        value = self.metadata.get(key)
        if isinstance(value, Elements):
            return value.number
        return len(value) if isinstance(value, list) else None


def read_gguf(path: Path) -> GgufHeader:
    """The header of one file.

    Raises:
        FactError: truncated, no GGUF file, or the header contradicts the format or the file's size.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            scanned = HeaderScan(file.read).run()
            tensors = _tensors(scanned, size)
        except DamagedHeader as error:
            raise _damaged(path, str(error)) from error
        except OSError as error:
            raise FactError(f"{path}: cannot be read: {error.strerror}.", do=AGAIN) from error
    return GgufHeader(str(path), scanned.metadata, tensors, size)


def read_shards(paths: Sequence[Path]) -> GgufHeader:
    """The headers of all shards of a model as one.

    Raises:
        FactError: one is damaged, or they do not belong together.
    """
    first, *others = (read_gguf(path) for path in paths)
    tensors = tuple(tensor for shard in (first, *others) for tensor in shard.tensors)
    for number, shard in enumerate((first, *others)):
        config = Config(shard.metadata, shard.where)
        count = config.integer_or(1, SPLIT_COUNT, high=1 << 16)
        if (max(1, count), config.integer_or(0, SPLIT_NUMBER, high=1 << 16)) != (len(paths), number):
            raise FactError(
                f"{shard.where}: is shard {config.integer_or(0, SPLIT_NUMBER) + 1} of {max(1, count)} by its header, and"
                f" {number + 1} of {len(paths)} by its name.",
                means="The file was renamed, or shards of different models are mixed.",
                do=AGAIN,
            )
    declared = Config(first.metadata, first.where).integer_or(len(tensors), SPLIT_TENSORS)
    if declared != len(tensors) or len({tensor.name for tensor in tensors}) != len(tensors):
        raise FactError(
            f"{first.where}: declares {declared} tensors, its {len(paths)} files have {len(tensors)}.",
            means="Shards of different models are mixed, or one is damaged.",
            do=AGAIN,
        )
    return GgufHeader(
        first.where, first.metadata, tensors, sum(shard.file_bytes for shard in (first, *others))
    )


def _tensors(scanned: ScannedHeader, size: int) -> tuple[GgufTensor, ...]:
    """The tensors, if they follow each other without gaps up to the end of the file, as llama.cpp demands."""
    alignment = scanned.metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
        raise DamagedHeader(f"has the alignment {shown(alignment)}")
    found = tuple(_tensor(one) for one in scanned.tensors)
    end = 0
    for one, tensor in zip(scanned.tensors, found, strict=True):
        if one.offset != end:
            raise DamagedHeader(f"has tensor {shown(one.name)} at byte {one.offset} of its data, not {end}")
        end += _padded(tensor.stored_bytes, alignment)
    last = found[-1].stored_bytes if found else 0
    needed = _padded(scanned.length, alignment) + end - (_padded(last, alignment) - last)
    if found and size < needed:
        raise DamagedHeader(f"has {size} bytes of the {needed} that its header declares")
    return found


def _tensor(one: ScannedTensor) -> GgufTensor:
    kind = GGUF_TYPES.get(one.kind)
    if kind is None:
        raise DamagedHeader(
            f"stores tensor {shown(one.name)} as type {one.kind}, which llama.cpp b11434 does not have"
        )
    if not one.shape or 0 in one.shape or one.shape[0] % kind.block:
        raise DamagedHeader(f"has tensor {shown(one.name)} of an impossible shape for {kind.name}")
    elements = 1
    for count in one.shape:
        elements *= count
    if elements > 1 << 62:
        raise DamagedHeader(f"has tensor {shown(one.name)} of {elements} weights")
    return GgufTensor(one.name, kind, one.shape, elements // kind.block * kind.bytes)


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _damaged(path: Path, reason: str) -> FactError:
    if "Git LFS" in reason:
        return FactError(
            f"{path}: {reason}.",
            means="The repository was cloned without git-lfs, so none of its weights are here.",
            do=f"`git lfs pull` in {path.parent}; or `hf download` of the model.",
        )
    return FactError(
        f"{path}: {reason}.", means="The file is truncated, damaged, or of another kind.", do=AGAIN
    )
