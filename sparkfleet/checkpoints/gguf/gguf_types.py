"""Types of tensors in GGUF files: weights per block, bytes of a block, and the format's name for speeds."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.values import Value


class GgufType(Value):
    """One type of ggml."""

    name: str
    block: int
    """Weights that are stored together."""
    bytes: int
    """Bytes of a block, scales included."""
    format: str
    """Format for the engine, as speeds are known by it."""

    @property
    def bits(self) -> float:
        """Bits per weight, scales included."""
        return self.bytes * 8 / self.block


def _types(*rows: tuple[int, str, int, int, str]) -> Mapping[int, GgufType]:
    return {
        number: GgufType(name=name, block=block, bytes=size, format=form)
        for number, name, block, size, form in rows
    }


PLAIN_GGUF = ("f32", "fp16", "bf16")
"""Formats that are not quantised. F32 has a name of its own because llama.cpp, unlike others, keeps it in 32 bits."""

GGUF_TYPES: Mapping[int, GgufType] = _types(
    (0, "F32", 1, 4, "f32"),
    (1, "F16", 1, 2, "fp16"),
    (2, "Q4_0", 32, 18, "gguf4"),
    (3, "Q4_1", 32, 20, "gguf4"),
    (6, "Q5_0", 32, 22, "gguf5"),
    (7, "Q5_1", 32, 24, "gguf5"),
    (8, "Q8_0", 32, 34, "gguf8"),
    (9, "Q8_1", 32, 36, "gguf8"),
    (10, "Q2_K", 256, 84, "gguf2"),
    (11, "Q3_K", 256, 110, "gguf3"),
    (12, "Q4_K", 256, 144, "gguf4"),
    (13, "Q5_K", 256, 176, "gguf5"),
    (14, "Q6_K", 256, 210, "gguf6"),
    (15, "Q8_K", 256, 292, "gguf8"),
    (16, "IQ2_XXS", 256, 66, "gguf2"),
    (17, "IQ2_XS", 256, 74, "gguf2"),
    (18, "IQ3_XXS", 256, 98, "gguf3"),
    (19, "IQ1_S", 256, 50, "gguf2"),
    (20, "IQ4_NL", 32, 18, "gguf4"),
    (21, "IQ3_S", 256, 110, "gguf3"),
    (22, "IQ2_S", 256, 82, "gguf2"),
    (23, "IQ4_XS", 256, 136, "gguf4"),
    (24, "I8", 1, 1, "int8"),
    (25, "I16", 1, 2, "int16"),
    (26, "I32", 1, 4, "int32"),
    (27, "I64", 1, 8, "int64"),
    (28, "F64", 1, 8, "fp64"),
    (29, "IQ1_M", 256, 56, "gguf2"),
    (30, "BF16", 1, 2, "bf16"),
    (34, "TQ1_0", 256, 54, "gguf2"),
    (35, "TQ2_0", 256, 66, "gguf2"),
    (39, "MXFP4", 32, 17, "gguf-mxfp4"),
    (40, "NVFP4", 64, 36, "gguf4"),
    (41, "Q1_0", 128, 18, "gguf2"),
    (42, "Q2_0", 64, 18, "gguf2"),
)
"""By ggml's number of the type (llama.cpp b11434, gguf-py `GGMLQuantizationType` and `GGML_QUANT_SIZES`)."""
