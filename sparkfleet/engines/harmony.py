"""gpt-oss speaks Harmony, whose tokens every engine reads with tiktoken's encodings: files that are fetched from the network
unless a directory with them is named (NVIDIA's playbook does so by hand). Pure."""

from __future__ import annotations

from sparkfleet.engines.base import Mount, RankContext

ENCODINGS = ("o200k_base.tiktoken", "cl100k_base.tiktoken")
"""What has to lie in `RankContext.encodings_dir`."""


def needs_encodings(model: str) -> bool:
    """True if the checkpoint is one of gpt-oss, by its name."""
    return "gpt-oss" in model.lower()


def encodings_env(site: RankContext) -> tuple[tuple[str, str], ...]:
    """Paths of the encodings; () if the site has none."""
    return (("TIKTOKEN_ENCODINGS_BASE", site.encodings_dir),) if site.encodings_dir else ()


def encodings_mounts(site: RankContext) -> tuple[Mount, ...]:
    """The same for a container."""
    found = site.encodings_dir
    return (Mount(source=found, target=found),) if found else ()
