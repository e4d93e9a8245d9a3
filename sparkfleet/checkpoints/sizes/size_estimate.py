"""Estimates the bytes of weights from the config: parameters by part, times the bits of each part's format."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from sparkfleet.checkpoints.arch.feed_forward import layers_with_dense, layers_with_experts, read_experts
from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind
from sparkfleet.checkpoints.arch.model_families import Family
from sparkfleet.checkpoints.arch.weight_parts import Part, PartNames, Portion
from sparkfleet.checkpoints.io.config_json import Config
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.checkpoints.quantization.formats import Quantization, Scheme
from sparkfleet.checkpoints.quantization.quantization_scope import LAYER_PARTS, Scope
from sparkfleet.errors import FactError

DTYPES: Mapping[str, tuple[str, str, int]] = {
    "bfloat16": ("BF16", "bf16", 16),
    "float16": ("F16", "fp16", 16),
    "float32": ("F32", "fp32", 32),
}
"""`dtype` of a config → safetensors dtype, format, bits."""

OTHER_DTYPES = {"auto": "bfloat16", "half": "float16", "float": "float32"}
"""Further spellings. Beside weights of 8 bits, engines hold in 16 what is not quantised."""

STORED_AS: Mapping[str, str] = {"fp8": "F8_E4M3", "mxfp8": "F8_E4M3", "int8": "I8"}

LEFT_OVER = (Part.ATTENTION, Part.LINEAR_ATTENTION, Part.SHARED_EXPERTS)
"""Parts that quantisers treat in different ways; the rest of a published size shows how."""
LEAST_BITS, MOST_BITS = 3.5, 16.5
"""Bits per parameter of them, scales included."""

_CLAIM = re.compile(
    r"(?i)(?<![a-z0-9])(nvfp4|mxfp4|mxfp8|fp8|fp4|w4a16|w4a8|w8a8|w8a16|awq|gptq|int4|int8|[48]-?bit|auto-?round|bnb|gguf|exl[23])(?![a-z])"
)


def model_dtype(config: Config) -> str:
    """The precision of weights that are not quantised; bfloat16 if the config has none."""
    dtype = (config.text("dtype") or config.text("torch_dtype", "bfloat16")).removeprefix("torch.")
    dtype = "bfloat16" if dtype.startswith("float8_") else OTHER_DTYPES.get(dtype, dtype)
    if dtype not in DTYPES:
        raise config.wrong("dtype" if config.has("dtype") else "torch_dtype", f"one of {', '.join(DTYPES)}")
    return dtype


def scope_of(config: Config, family: Family | None, layers: Sequence[LayerGroup]) -> Scope:
    """Parts of each decoder layer; for a family that is not known, all layers have all parts."""
    everything = frozenset(range(len(layers)))
    linear = frozenset(index for index, layer in enumerate(layers) if layer.kind is LayerKind.LINEAR)
    experts = read_experts(config)
    if family is None:
        members = dict.fromkeys(LAYER_PARTS, everything)
    else:
        mixing = frozenset(index for index, layer in enumerate(layers) if layer.kind is not LayerKind.NONE)
        moe = layers_with_experts(config, family, layers)
        dense = layers_with_dense(config, family, layers, moe)
        members = {
            Part.ATTENTION: mixing - linear,
            Part.LINEAR_ATTENTION: frozenset(i for i, layer in enumerate(layers) if layer.state is not None),
            Part.MLP: dense,
            Part.EXPERTS: moe,
            Part.SHARED_EXPERTS: moe if experts.shared else frozenset(),
        }
    gated = family.gated if family else True
    return Scope(
        PartNames(len(layers), linear, dense=not experts.routed), members, experts=experts.routed, gated=gated
    )


def estimated_portions(
    parameters: Mapping[Part, int], quantization: Quantization | None, dtype: str
) -> tuple[Portion, ...]:
    """Parameters by part as they would be stored.

    Raises:
        FactError: the quantisation has a pattern of module names that cannot be read.
    """
    if quantization is not None and quantization.unread:
        raise FactError(
            f"quantization_config: the module pattern {shown(quantization.unread[0])} is not supported.",
            means="The quantised share of the model cannot be derived without its weights.",
            do="Give the directory of the checkpoint.",
        )
    return tuple(
        portion
        for part in Part
        if parameters.get(part)
        for portion in _portions(part, parameters[part], quantization, dtype)
    )


def resized(
    weights: Sequence[Portion], total: float, *, soft: Collection[Part] = LEFT_OVER
) -> tuple[Portion, ...]:
    """The same portions with `total` bytes: parts of `soft` change if that gives a precision that exists, otherwise all."""
    changing = [portion for portion in weights if portion.part in soft]
    factors = factors_to(
        total,
        size=sum(portion.bytes for portion in weights),
        soft=sum(one.bytes for one in changing),
        soft_parameters=sum(one.parameters for one in changing),
    )
    return tuple(one.scaled(factors[one.part not in soft]) for one in weights)


def factors_to(total: float, *, size: float, soft: float, soft_parameters: float) -> tuple[float, float]:
    """Factors that scale bytes to `total`: of the parts that quantisers treat in different ways, and of the others.

    Args:
        total: published bytes.
        size: bytes as estimated, of all parts.
        soft: the share of `size` in parts that change first.
        soft_parameters: parameters of these parts.
    """
    wanted = soft + total - size
    if soft_parameters and LEAST_BITS <= 8 * wanted / soft_parameters <= MOST_BITS:
        return wanted / soft, 1.0
    return total / size, total / size


def check_claim(name: str, quantization: Quantization | None, where: str) -> None:
    """Checks that a model whose name has a quantisation declares one.

    Raises:
        FactError: the config declares none; it is in a file that is missing here.
    """
    claim = _CLAIM.search(name.rpartition("/")[2])
    if claim is not None and quantization is None:
        raise FactError(
            f"{where}: declares no quantisation, but the name {shown(name)} has {claim[0]}.",
            means="The quantisation is in hf_quant_config.json, which is missing, so sizes cannot be derived.",
            do="Give the directory of the checkpoint, or its quantisation.",
        )


def _portions(
    part: Part, parameters: int, quantization: Quantization | None, dtype: str
) -> Iterator[Portion]:
    left = parameters
    for cover in quantization.covers if quantization else ():
        if cover.part is part and cover.scheme is not None:
            count = min(left, round(parameters * cover.share))
            left -= count
            yield _portion(part, count, cover.scheme)
    if left:
        stored, name, bits = DTYPES[dtype]
        yield Portion(part=part, dtype=stored, format=name, parameters=left, bytes=left * bits // 8)


def _portion(part: Part, count: int, scheme: Scheme) -> Portion:
    stored = STORED_AS.get(scheme.format) or ("I32" if scheme.format.startswith("int") else "U8")
    size = round(count * scheme.stored_bits / 8)
    return Portion(part=part, dtype=stored, format=scheme.format, parameters=count, bytes=size)
