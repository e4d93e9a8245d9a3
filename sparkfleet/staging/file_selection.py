"""Selects the files of a Hub repository that an engine needs: one copy of the weights, and all small files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

WEIGHTS_BY_PREFERENCE = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
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


def wanted(paths: Iterable[str]) -> tuple[str, ...]:
    """The files to download, in their order.

    Second copies are left out: other formats, `original/`, `consolidated*.safetensors` beside sharded files. If a
    repository has only a consolidated copy (Mistral's), that is used.
    """
    candidates = [path for path in paths if _of_use(path)]
    weights = [path for path in candidates if _suffix(path) in WEIGHTS_BY_PREFERENCE]
    chosen = set(_one_copy(weights))
    return tuple(path for path in candidates if path in chosen or _suffix(path) not in WEIGHTS_BY_PREFERENCE)


def _of_use(path: str) -> bool:
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
