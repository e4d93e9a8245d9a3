"""Drafts in GGUF format: the file of one, as it was read, as published, or as usual, and models it cannot read. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles
from sparkfleet.knowledge.engines.llama_cpp_settings import LAYERS_OF, LAYERS_READ_BY
from sparkfleet.knowledge.models.gguf_formats import stem_of
from sparkfleet.knowledge.models.speculators import speculator_with
from sparkfleet.perf.prediction import Speculation
from sparkfleet.specs.gguf_names import SUFFIX
from sparkfleet.specs.model_name import model_name


def gguf_draft(speculation: Speculation, read: Mapping[str, Checkpoint]) -> GgufFiles | None:
    """The draft's files, relative to its checkpoint's directory; None without a draft of its own.

    Args:
        speculation: the method and the name of its draft.
        read: facts of the drafts whose files were read, by name.
    """
    if speculation.draft is None:
        return None
    found = read.get(speculation.draft)
    if found is not None and found.gguf is not None:
        return found.gguf
    published = speculator_with(speculation.draft)
    if published is not None and published.file:
        return GgufFiles(model=published.file)
    name = model_name(speculation.draft)
    last = name.base.rpartition("/")[2]
    if last.endswith(SUFFIX):
        return GgufFiles(model=last)
    return GgufFiles(model=f"{stem_of(last)}-{name.tag or 'Q8_0'}{SUFFIX}")


def unreadable(method: str, checkpoint: Checkpoint) -> str:
    """Reason why llama.cpp gives a draft nothing of the model's layers; "" if it does, if the method reads none, or if only
    the model's name is known."""
    if method not in LAYERS_READ_BY or checkpoint.gguf is None or not checkpoint.weights_known:
        return ""
    if checkpoint.model_type in LAYERS_OF:
        return ""
    return (
        f"{method.upper()} reads the model's layers, which llama.cpp b11434 does not give out for {checkpoint.model_type}:"
        " it would stop at its start; `speculation: draft` reads none"
    )
