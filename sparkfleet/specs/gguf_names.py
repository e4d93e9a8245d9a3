"""Names of GGUF files: quantisation, shards, towers. Stdlib only: its text is also sent to nodes.

As in `common/download.cpp` of llama.cpp b11434 (`get_gguf_split_info`, `gguf_filename_is_model`); besides, a tag keeps the
prefix `UD-`, because repositories have `Q4_K_XL` and `UD-Q4_K_XL`. It runs on Python 3.8 and later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

SUFFIX = ".gguf"

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\Z", re.IGNORECASE)
_QUANTISATION = re.compile(
    r"(?:\A|[-._])(?P<tag>(?:UD-)?(?:I?Q[1-8]|TQ[12]|BF16|FP?16|FP?32|MXFP[48]|NVFP4)(?:_[A-Z0-9]+)*)\Z",
    re.IGNORECASE,
)
_LAST_WORD = re.compile(r"[-.]([A-Z0-9_]+)\Z", re.IGNORECASE)
_NO_MODEL = ("mtp-", "eagle3-", "dflash-", "dspark-")
"""Words in the names of files that only draft; in this letter case, as llama.cpp has them."""
_TOWER_ORDER = ("F16", "BF16", "F32")


class NamedModel(NamedTuple):
    """The files of one model among others, by their names."""

    tag: str
    """Quantisation, in upper case."""
    files: tuple[str, ...]
    """Its shards in order, or the one file."""
    missing: int
    """Shards that its names announce and that are not there."""


def tag_of(name: str) -> str:
    """The quantisation in the name of a GGUF file or of its directory, in upper case; "GGUF" if none has one."""
    stem = _stem(name)
    parts = stem.split("/")
    for part in reversed(parts):
        found = _QUANTISATION.search(part)
        if found:
            return found.group("tag").upper()
    last = _LAST_WORD.search(parts[-1])
    return last.group(1).upper() if last else "GGUF"


def is_tower(name: str) -> bool:
    """True for the vision or sound tower of a model."""
    return name.endswith(SUFFIX) and "mmproj" in _file(name).lower()


def _has_weights(name: str) -> bool:
    """True for a file of weights: no tower, no importance matrix."""
    file = _file(name)
    apart = is_tower(name) or "imatrix" in file.lower()
    return file.endswith(SUFFIX) and not file.startswith(".") and not apart


def _only_drafts(name: str) -> bool:
    return any(word in _file(name) for word in _NO_MODEL)


def models_of(names: Iterable[str]) -> list[NamedModel]:
    """The models among files, by tag and name. Drafts are models of their own if there is nothing else."""
    weights = [name for name in names if _has_weights(name)]
    own = [name for name in weights if not _only_drafts(name)]
    shards: dict[tuple[str, str], dict[int, str]] = {}
    for name in own or weights:
        number, count = _shard(name)
        shards.setdefault((_stem(name), count), {})[number] = name
    found = []
    for (_, count), files in shards.items():
        expected = max(1, int(count or 1))
        ordered = tuple(files[number] for number in sorted(files))
        found.append(NamedModel(tag_of(ordered[0]), ordered, max(0, expected - len(files))))
    return sorted(found)


def siblings(name: str, names: Iterable[str]) -> NamedModel:
    """The model of which `name` is a file, with its other shards among `names`."""
    number, count = _shard(name)
    stem = _stem(name)
    files = {
        _shard(one)[0]: one
        for one in names
        if one.endswith(SUFFIX) and (_stem(one), _shard(one)[1]) == (stem, count)
    }
    files[number] = name
    ordered = tuple(files[one] for one in sorted(files))
    return NamedModel(tag_of(name), ordered, max(0, max(1, int(count or 1)) - len(files)))


def tower_of(names: Iterable[str], model: str) -> str:
    """The tower for a model: in its directory or one above; F16 before BF16, F32 and others. "" if there is none."""
    folder = _folder(model)
    towers = [
        name
        for name in names
        if is_tower(name) and (folder + "/").startswith(_folder(name) + "/" if _folder(name) else "")
    ]

    def order(name: str) -> tuple[int, int, str]:
        tag = tag_of(_file(name))
        place = _TOWER_ORDER.index(tag) if tag in _TOWER_ORDER else len(_TOWER_ORDER)
        return -len(_folder(name)), place, name

    return min(towers, key=order, default="")


def _file(name: str) -> str:
    return name.rpartition("/")[2]


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _stem(name: str) -> str:
    """A name without its suffix and without the number of the shard."""
    bare = name.removesuffix(SUFFIX)
    found = _SHARD.match(bare)
    return found.group("stem") if found else bare


def _shard(name: str) -> tuple[int, str]:
    """Number of a shard, and the number of all as it is written; (1, "") for a file that is no shard."""
    found = _SHARD.match(name.removesuffix(SUFFIX))
    return (int(found.group("number")), found.group("count")) if found else (1, "")
