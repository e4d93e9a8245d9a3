"""The usual form of a quantisation by its short name, for a checkpoint whose files are not here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.checkpoints.quantization.formats import (
    Cover,
    Quantization,
    Scheme,
    exl3,
    fp8,
    integer,
    mxfp4,
    mxfp8,
    nf4,
    nvfp4,
)
from sparkfleet.checkpoints.quantization.quantization_scope import LAYER_PARTS, Scope
from sparkfleet.errors import FactError

NAMED: Mapping[str, tuple[str, Scheme]] = {
    "fp8": ("fp8", fp8(block=(128, 128))),
    "mxfp8": ("modelopt", mxfp8()),
    "nvfp4": ("modelopt", nvfp4()),
    "nvfp4-w4a16": ("modelopt", nvfp4(activations="bf16")),
    "mxfp4": ("mxfp4", mxfp4()),
    "int8": ("compressed-tensors", integer(8, None)),
    "int4": ("compressed-tensors", integer(4, 128)),
    "awq": ("awq", integer(4, 128)),
    "gptq-int4": ("gptq", integer(4, 128)),
    "gptq-int8": ("gptq", integer(8, 128)),
    "int4-autoround": ("auto-round", integer(4, 128)),
    "nf4": ("bitsandbytes", nf4()),
    "bnb-int8": ("bitsandbytes", integer(8, None, activations="int8")),
    "fp8+mxfp4-experts": ("fp8", fp8(block=(128, 128))),
}
"""Quantisations by their usual short names."""
EXL3_NAMED = re.compile(r"exl3-([1-8](?:\.\d{1,2})?)bpw")
EXL3_HEAD_BITS = 6.0
"""Bits of the head, as ExLlamaV3's converter stores it if nothing else is set."""

BESIDE_EXPERTS = (Part.ATTENTION, Part.LINEAR_ATTENTION, Part.MLP, Part.SHARED_EXPERTS)


def named_quantization(name: str, scope: Scope) -> Quantization | None:
    """The usual form of a quantisation by its short name; None for "bf16" and "fp16".

    Raises:
        FactError: an unknown name.
    """
    plain = name.strip().lower()
    if plain in ("bf16", "fp16", "none"):
        return None
    if with_bits := EXL3_NAMED.fullmatch(plain):
        return trellis(float(with_bits[1]), EXL3_HEAD_BITS, scope)
    if plain not in NAMED:
        raise FactError(
            f"Unknown quantisation {shown(name)}.", do=f"Known: bf16, {', '.join(sorted(NAMED))}."
        )
    method, scheme = NAMED[plain]
    if method == "mxfp4":
        return scope.quantization(method, scheme, parts=(Part.EXPERTS,))
    experts = mxfp4(activations="fp8") if plain == "fp8+mxfp4-experts" else None
    named = [("experts", experts)] if experts else []
    found = scope.quantization(
        method, scheme, named, (*LAYER_PARTS, Part.MTP) if method == "fp8" else LAYER_PARTS
    )
    mixture = bool(scope.members.get(Part.EXPERTS)) and scheme.format == "nvfp4"
    quantization = _beside_experts(found) if mixture else found
    covers = tuple(cover.model_copy(update={"assumed": True}) for cover in quantization.covers)
    return quantization.model_copy(update={"covers": covers})


def trellis(bits: float, head_bits: float, scope: Scope) -> Quantization:
    """ExLlamaV3's quantisation by its mean bits per weight and those of the head."""
    return scope.quantization("exl3", exl3(bits), [("lm_head", exl3(head_bits))], (*LAYER_PARTS, Part.HEAD))


def _beside_experts(found: Quantization) -> Quantization:
    """NVFP4 of a mixture of experts as published: the experts; half of the rest in FP8, half not quantised.

    The other weights are FP8 in some checkpoints and BF16 in others (their `hf_quant_config.json`). The middle matches
    published sizes (NVIDIA-Nemotron-3-Super-120B: 75 GiB; -Nano-30B: 19 GiB), and predicts published speeds best.
    """
    covers = [cover for cover in found.covers if cover.part not in BESIDE_EXPERTS]
    for cover in found.covers:
        if cover.part in BESIDE_EXPERTS:
            half = cover.share / 2
            covers += [Cover(part=cover.part, scheme=scheme, share=half) for scheme in (fp8(), None)]
    return found.model_copy(update={"covers": tuple(covers)})
