"""Tiktoken's encodings for gpt-oss. Its Harmony format needs them in every engine, which downloads them unless a variable
names a directory with the files (NVIDIA's playbook sets it by hand). Pure."""

from __future__ import annotations

from sparkfleet.engines.base import Mount, RankContext

ENCODINGS = ("o200k_base.tiktoken", "cl100k_base.tiktoken")
"""Files that `RankContext.encodings_dir` must contain."""


def is_harmony(model: str) -> bool:
    """True if the checkpoint is one of gpt-oss, by its name."""
    return "gpt-oss" in model.lower()


def encodings_env(context: RankContext) -> tuple[tuple[str, str], ...]:
    """Paths of the encodings; () if the node has none."""
    return (("TIKTOKEN_ENCODINGS_BASE", context.encodings_dir),) if context.encodings_dir else ()


def encodings_mounts(context: RankContext) -> tuple[Mount, ...]:
    """The directory of the encodings for a container, read-only."""
    found = context.encodings_dir
    return (Mount(source=found, target=found),) if found else ()
