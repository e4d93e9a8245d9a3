"""GGUF checkpoints on nodes without a GPU, served by llama.cpp: the only engine there with weights of any size. Pure."""

from __future__ import annotations

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.knowledge.engines.method_support import support_of
from sparkfleet.perf.memory import llama_cpp
from sparkfleet.perf.memory.engine_sizes import MemoryConfig
from sparkfleet.perf.model_shape import from_checkpoint
from sparkfleet.perf.prediction import Band, Provenance, Speculation
from sparkfleet.planner.place.gguf_drafts import unreadable
from sparkfleet.planner.types.plan import ENGINE_LABELS
from sparkfleet.specs.deployment import Variant
from sparkfleet.units import MIB

BATCH = 512
"""Tokens of one pass on a CPU: llama.cpp's own `--ubatch-size`."""
PROCESS = (60 * MIB, 120 * MIB, 300 * MIB)
"""The program, its libraries and its HTTP server: what is resident beside weights, caches and compute buffer (b11434)."""


def for_llama_cpp(variant: Variant, checkpoint: Checkpoint | None) -> Variant:
    """The variant with the engine that loads its weights, if they are GGUF and it sets none."""
    if checkpoint is None or checkpoint.gguf is None or variant.engine != "auto":
        return variant
    return variant.model_copy(update={"engine": "llama.cpp"})


def gguf_misfit(variant: Variant, checkpoint: Checkpoint | None) -> str:
    """Reason why weights and engine do not go together on a CPU, or the method is not started; "" if there is none."""
    is_gguf = checkpoint is not None and checkpoint.gguf is not None
    if is_gguf != (variant.engine == "llama.cpp"):
        if is_gguf:
            return f"the weights are GGUF, which sparkfleet starts with llama.cpp alone, not with {variant.engine}"
        return "llama.cpp loads GGUF only, and these weights are none"
    method = variant.speculation.method
    if is_gguf and method not in ("auto", "none") and support_of("llama.cpp", method) is None:
        return f"{ENGINE_LABELS['llama.cpp']} has no method {method.upper()}"
    return unreadable(method, checkpoint) if checkpoint is not None and is_gguf else ""


def gguf_memory(
    checkpoint: Checkpoint,
    context: int,
    concurrency: int,
    speculation: Speculation | None = None,
    draft: Checkpoint | None = None,
) -> Band:
    """Memory of one process: weights, caches of its slots, the buffer of one pass.

    Args:
        checkpoint: the GGUF's facts.
        context: of one slot, tokens.
        concurrency: slots.
        speculation: the method; None without one.
        draft: facts of its own checkpoint, if it has one that is known.
    """
    shape = from_checkpoint(checkpoint)
    drafting = speculation or Speculation()
    run = MemoryConfig(
        engine="llama.cpp",
        context=context,
        concurrency=concurrency,
        kv_bytes=2.0,
        chunk=BATCH,
        method=drafting.method,
        k=drafting.tokens,
        draft=None if draft is None else from_checkpoint(draft),
    )
    caches = (llama_cpp.kv_bytes, llama_cpp.draft_kv_bytes, llama_cpp.state_bytes, llama_cpp.checkpoint_bytes)
    files = checkpoint.bytes_on_disk + (draft.bytes_on_disk if draft is not None else 0)
    held = files + sum(one(shape, run) for one in caches)
    low, mid, high = (
        held + compute + process
        for compute, process in zip(llama_cpp.compute_bytes(shape, run), PROCESS, strict=True)
    )
    return Band(low=low, mid=mid, high=high, provenance=Provenance.MODELLED, basis="the file and its slots")
