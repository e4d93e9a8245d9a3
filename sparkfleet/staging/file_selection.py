"""Selects the files of a Hub repository that an engine needs: one copy of the weights, and all small files.

Of GGUF models one is selected, by its tag: its shards and its tower, without the small files of other formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from sparkfleet.checkpoints.gguf.gguf_files import choose
from sparkfleet.checkpoints.io.licenses import LICENSE_FILES
from sparkfleet.specs.gguf_names import SUFFIX

WEIGHTS_BY_PREFERENCE = (".safetensors", ".bin", ".pt", ".pth", SUFFIX)
"""Formats of the same weights, in order of preference. The first that a repository has is used."""
NEVER = frozenset(
    (
        ".h5",
        ".msgpack",
        ".ot",
        ".onnx",
        ".onnx_data",
        ".tflite",
        ".mlmodel",
        ".npz",
        ".ckpt",
        ".zip",
        ".tar",
        ".gz",
    )
) | frozenset(
    (
        ".mp4",
        ".mov",
        ".gif",
        ".png",
        ".jpg",
        ".jpeg",
        ".webp",
        ".svg",
        ".pdf",
        ".wav",
        ".mp3",
        ".ipynb",
        ".parquet",
    )
)
"""Weights of frameworks that no engine here reads, and pictures for people."""
OTHER_COPIES = frozenset(
    ("original", "onnx", "openvino", "coreml", "metal", "tf", "flax", "runs", "checkpoints")
)
"""Directories with a second copy of the weights in another format, or with files of the training."""
CONSOLIDATED = "consolidated"
BESIDE_GGUF = ("README.md", *LICENSE_FILES)
"""Files beside GGUF models that are staged with each of them: they have its licence."""


def wanted(
    paths: Iterable[str],
    tag: str = "",
    where: str = "the repository",
    sizes: Mapping[str, int] | None = None,
) -> tuple[str, ...]:
    """The files to download, in their order.

    Second copies are left out: other formats, `original/`, `consolidated*.safetensors` beside sharded files. If a
    repository has only a consolidated copy (Mistral's), that is used.

    Args:
        paths: of all files.
        tag: of a GGUF model.
        where: names the repository in messages.
        sizes: bytes by path, for messages.

    Raises:
        FactError: no GGUF model has the tag, or there are several and no tag.
    """
    candidates = [path for path in paths if may_be_wanted(path)]
    weights = [path for path in candidates if _suffix(path) in WEIGHTS_BY_PREFERENCE]
    chosen = set(_one_copy(weights))
    if tag or (chosen and all(_suffix(path) == SUFFIX for path in chosen)):
        _, files = choose([path for path in weights if _suffix(path) == SUFFIX], tag, where, sizes)
        return tuple(path for path in candidates if path in {*files, *BESIDE_GGUF})
    return tuple(path for path in candidates if path in chosen or _suffix(path) not in WEIGHTS_BY_PREFERENCE)


def may_be_wanted(path: str) -> bool:
    """True for a file that may be selected, depending on what else a repository has."""
    pure = PurePosixPath(path)
    hidden = any(part.startswith(".") for part in pure.parts)
    return not hidden and _suffix(path) not in NEVER and not OTHER_COPIES.intersection(pure.parts[:-1])


def _one_copy(weights: list[str]) -> list[str]:
    for form in WEIGHTS_BY_PREFERENCE:
        same = [path for path in weights if _suffix(path) == form]
        if same:
            split = [path for path in same if not PurePosixPath(path).name.startswith(CONSOLIDATED)]
            return split or same
    return []


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()
