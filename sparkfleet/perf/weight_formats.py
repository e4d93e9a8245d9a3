"""Formats of weights and of cached elements, by the names that the speed model has for them."""

from __future__ import annotations

from functools import lru_cache

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.knowledge.models.gguf_formats import format_of_tag

FORMATS = {
    "fp8": "fp8",
    "mxfp8": "fp8",
    "int8": "fp8",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "int4": "int4",
    "nf4": "int4",
    "exl3": "exl3",
}
"""Formats of weights as physics.yaml calls them."""
GGUF_FORMATS = {
    "gguf2": "q2_k",
    "gguf3": "q3_k",
    "gguf4": "q4_k",
    "gguf5": "q5_k",
    "gguf6": "q6_k",
    "gguf8": "q8_0",
    "gguf-mxfp4": "gguf-mxfp4",
}
"""The same of GGUF weights whose tag names no quantisation."""
GGUF_KV_BYTES = {
    "f32": 4.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Bytes per element of the types that llama.cpp's `--cache-type-k` takes, beside f16 and bf16: blocks of 32 with their scale
(ggml/src/ggml-common.h)."""


def format_of(checkpoint: Checkpoint) -> str:
    """The format of a checkpoint's weights as the speed model calls it."""
    quantization = checkpoint.quantization
    if checkpoint.gguf is not None:
        stored = quantization.scheme.format if quantization else ""
        named = "gguf-mxfp4" if stored == "gguf-mxfp4" else format_of_tag(checkpoint.gguf.tag)
        return named or (GGUF_FORMATS.get(quantization.scheme.format, "q4_k") if quantization else "bf16")
    if quantization is None:
        return "bf16"
    if "prismaquant" in checkpoint.id.lower():
        return "prismaquant"
    experts = quantization.scheme_of(Part.EXPERTS).format
    main = quantization.scheme.format
    if (main, experts) == ("fp8", "mxfp4"):
        return "fp8+mxfp4"
    if experts == "int4" and FORMATS.get(quantization.scheme_of(Part.ATTENTION).format) == "fp8":
        return "int4-int8"
    return FORMATS.get(main, "bf16")


@lru_cache(maxsize=32)
def kv_element_bytes(dtype: str) -> float:
    """Bytes of one cached element."""
    if dtype in GGUF_KV_BYTES:
        return GGUF_KV_BYTES[dtype]
    if "fp8" in dtype or dtype == "int8":
        return 1.0
    return 0.5625 if "fp4" in dtype else 2.0
