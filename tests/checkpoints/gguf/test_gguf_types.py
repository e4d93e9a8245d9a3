"""Types of tensors in GGUF files, beside ggml's own list: a wrong number reads a file as another format, or not at all."""

from __future__ import annotations

import pytest

from sparkfleet.checkpoints.gguf.gguf_types import GGUF_TYPES

_ENUM = """
F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K
IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16
- - - TQ1_0 TQ2_0 - - - MXFP4 NVFP4 Q1_0 Q2_0
"""
GGML = tuple(_ENUM.split())
"""`enum ggml_type` of ggml.h from 0 on; -: removed from the format."""
BITS = {
    **{"Q4_0": 4.5, "Q4_1": 5.0, "Q5_0": 5.5, "Q5_1": 6.0, "Q8_0": 8.5, "IQ4_NL": 4.5, "IQ4_XS": 4.25},
    **{"Q2_K": 2.625, "Q3_K": 3.4375, "Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625, "MXFP4": 4.25, "NVFP4": 4.5},
    **{"IQ1_S": 1.5625, "IQ1_M": 1.75, "IQ2_XXS": 2.0625, "IQ2_XS": 2.3125, "IQ2_S": 2.5625},
    **{"IQ3_XXS": 3.0625, "IQ3_S": 3.4375, "TQ1_0": 1.6875, "TQ2_0": 2.0625},
}
"""Bits per weight that llama.cpp publishes of each (its README of `quantize`, comments of ggml-common.h)."""


def test_each_number_is_ggmls() -> None:
    found = {number: one.name for number, one in GGUF_TYPES.items()}
    assert found == {number: name for number, name in enumerate(GGML) if name != "-"}


@pytest.mark.parametrize(("name", "bits"), BITS.items())
def test_the_bits_are_the_published_ones(name: str, bits: float) -> None:
    assert GGUF_TYPES[GGML.index(name)].bits == bits
