"""Reads the config of NVIDIA ModelOpt."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.io.config_json import Config
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.checkpoints.quantization.config_fields import MOST_GROUP, kept_modules, kv_cache_of
from sparkfleet.checkpoints.quantization.formats import (
    Cover,
    Quantization,
    Scheme,
    fp8,
    integer,
    mxfp4,
    mxfp8,
    nvfp4,
)
from sparkfleet.checkpoints.quantization.quantization_scope import LAYER_PARTS, Scope
from sparkfleet.errors import FactError

MODELOPT_SCHEMES: Mapping[str, Scheme] = {
    "FP8": fp8(),
    "FP8_PER_CHANNEL_PER_TOKEN": fp8(),
    "FP8_PB_WO": fp8(block=(128, 128)),
    "NVFP4": nvfp4(),
    "NVFP4_AWQ": nvfp4(),
    "W4A16_NVFP4": nvfp4(activations="bf16"),
    "W4A8_NVFP4_FP8": nvfp4(activations="fp8"),
    "MXFP4": mxfp4(),
    "W4A8_MXFP4_FP8": mxfp4(activations="fp8"),
    "MXFP8": mxfp8(),
    "W4A16_AWQ": integer(4, 128),
    "W4A8_AWQ": integer(4, 128, activations="fp8"),
    "INT8_SQ": integer(8, None, activations="int8"),
    "W8A16": integer(8, None),
}
"""The `quant_algo` values of NVIDIA ModelOpt (vLLM 0.32 `modelopt.py`; TensorRT-LLM `QuantAlgo`)."""


def modelopt(section: Config, config: Config, scope: Scope) -> Quantization:
    """NVIDIA ModelOpt: one algorithm for everything that is not excluded, or a list of layers with theirs."""
    algorithm = section.text("quant_algo")
    if not algorithm:
        raise section.missing("quant_algo")
    named: list[tuple[str, Scheme | None]] = kept_modules(section, "ignore", "exclude_modules")
    if algorithm != "MIXED_PRECISION":
        scheme = modelopt_scheme(algorithm, section.integer_or_none("group_size", high=MOST_GROUP), section)
        return scope.quantization("modelopt", scheme, named, kv_cache=kv_cache_of(section))
    listed = list(_quantized_layers(section))
    if not listed:
        raise section.missing("quantized_layers")
    covers, unread = scope.covers([*named, *listed], None, ())
    return Quantization(
        method="modelopt",
        scheme=_main(covers, listed),
        covers=covers,
        kv_cache=kv_cache_of(section),
        unread=unread,
    )


def _quantized_layers(section: Config) -> Iterator[tuple[str, Scheme]]:
    layers = section.section("quantized_layers")
    for name in layers.values if layers else ():
        inner = layers.section(name) if layers else None
        if inner is not None:
            group = inner.integer_or_none("group_size", high=MOST_GROUP)
            yield name, modelopt_scheme(inner.text("quant_algo"), group, inner)


def _main(covers: Collection[Cover], listed: Collection[tuple[str, Scheme]]) -> Scheme:
    """The scheme of the experts, or else of the feed-forward: they are most of a model."""
    for part in (Part.EXPERTS, Part.MLP, *LAYER_PARTS):
        for cover in covers:
            if cover.part is part and cover.scheme is not None:
                return cover.scheme
    return next(iter(listed))[1]


def modelopt_scheme(algorithm: str, group_size: int | None, where: Config) -> Scheme:
    """The format of a `quant_algo`, with its group size if one is given. Raises FactError for an unknown one."""
    scheme = MODELOPT_SCHEMES.get(algorithm.upper())
    if scheme is None:
        raise FactError(
            f"{where.where}: unknown quant_algo {shown(algorithm)}.",
            means="The number of bits per weight is not known.",
            do=f"Known: {', '.join(MODELOPT_SCHEMES)}, MIXED_PRECISION.",
        )
    if group_size and scheme.group_size and group_size != scheme.group_size:
        return scheme.model_copy(update={"group_size": group_size})
    return scheme
