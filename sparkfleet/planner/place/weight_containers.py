"""Engines by the container of the weights: GGUF is for llama.cpp alone, safetensors for the others. Pure."""

from __future__ import annotations

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.knowledge.models.known_models import ggufs_of
from sparkfleet.knowledge.models.published_ggufs import published_gguf
from sparkfleet.planner.place.stacks import ENGINES
from sparkfleet.planner.types.plan import ENGINE_LABELS, Rejection
from sparkfleet.specs.deployment import EngineName

GGUF_ENGINES: tuple[EngineName, ...] = ("llama.cpp",)
"""Engines that load GGUF, and nothing else, as sparkfleet starts them."""
LLAMA_CPP_ALONE = "the weights are GGUF, which sparkfleet starts with llama.cpp alone"
ONE_NODE = (
    "llama.cpp serves on one node: sparkfleet starts neither its RPC backend nor a split of tensors over nodes;"
    " leave `parallel` out, or name a checkpoint in safetensors"
)


def engines_for(checkpoint: Checkpoint) -> tuple[EngineName, ...]:
    """The engines that load the container of a checkpoint, in the order of preference."""
    if checkpoint.gguf is not None:
        return GGUF_ENGINES
    return tuple(engine for engine in ENGINES if engine not in GGUF_ENGINES)


def wrong_container(checkpoint: Checkpoint, engine: EngineName) -> Rejection | None:
    """Reason why an engine that a deployment sets cannot load a checkpoint, with what to name instead; None if it can."""
    if engine in engines_for(checkpoint):
        return None
    label = ENGINE_LABELS[engine]
    if checkpoint.gguf is not None:
        reason = f"{LLAMA_CPP_ALONE}: leave `engine` out{_safetensors(checkpoint)}"
    else:
        known = ggufs_of(checkpoint)
        named = f"`model: {known[0].id}`" if known else "a GGUF of it, such as `model: ORG/NAME-GGUF:Q4_K_M`"
        reason = f"the weights are no GGUF, the only format that llama.cpp loads; name {named}"
    return Rejection(what=label, reason=reason, why="wanted", engine=engine)


def _safetensors(checkpoint: Checkpoint) -> str:
    """The model's own checkpoint, if the GGUF's origin is known."""
    entry = published_gguf(checkpoint.id)
    return "" if entry is None else f", or name `model: {entry.model}`"


def other_engines(checkpoint: Checkpoint) -> Rejection | None:
    """One line for all engines that cannot load a GGUF; None for safetensors: llama.cpp is no candidate there."""
    if checkpoint.gguf is None:
        return None
    others = [ENGINE_LABELS[engine] for engine in ENGINES if engine not in GGUF_ENGINES]
    return Rejection(
        what=f"{', '.join(others[:-1])} and {others[-1]}",
        reason=LLAMA_CPP_ALONE,
        why="engine",
    )
