"""Reads the config of compressed-tensors, as LLM Compressor writes it."""

from __future__ import annotations

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.io.config_json import Config
from sparkfleet.checkpoints.quantization.config_fields import MOST_GROUP, block_of, kept_modules, kv_cache_of
from sparkfleet.checkpoints.quantization.formats import (
    Quantization,
    Scheme,
    fp8,
    integer,
    mxfp4,
    mxfp8,
    nvfp4,
)
from sparkfleet.checkpoints.quantization.quantization_scope import LAYER_PARTS, Scope


def compressed_tensors(section: Config, config: Config, scope: Scope) -> Quantization:
    """Groups of targets, each with its own scheme; "Linear" is every module that is not listed."""
    groups = section.section("config_groups")
    if groups is None or not groups.values:
        raise section.missing("config_groups")
    named: list[tuple[str, Scheme | None]] = kept_modules(section, "ignore")
    default: Scheme | None = None
    for name in groups.values:
        group = groups.section(name)
        scheme = _group_scheme(group) if group else None
        for target in (group.texts("targets") if group else None) or ("Linear",):
            if target == "Linear":
                default = default or scheme
            elif "." in target or target.startswith("re:") or target.islower():
                named.append((target, scheme))
    schemes = [scheme for _, scheme in named if scheme is not None]
    if default is None and not schemes:
        raise groups.missing("weights")
    covers, unread = scope.covers(named, default, (*LAYER_PARTS, Part.MTP, Part.VISION))
    main = default or schemes[0]
    return Quantization(
        method="compressed-tensors", scheme=main, covers=covers, kv_cache=kv_cache_of(section), unread=unread
    )


def _group_scheme(group: Config) -> Scheme | None:
    weights = group.section("weights")
    if weights is None:
        return None
    bits = weights.integer("num_bits", low=2, high=16)
    activations = _activations(group.section("input_activations"))
    size = weights.integer_or_none("group_size", low=-1, high=MOST_GROUP)
    size = size if size and size > 0 else None
    if weights.text("type", "int") != "float":
        return integer(bits, size, activations=activations, zero_point=not weights.flag("symmetric", True))
    if bits == 4:
        return (
            mxfp4(activations=activations)
            if size == 32
            else nvfp4(group_size=size or 16, activations=activations)
        )
    return fp8(block=block_of(weights, "block_structure"), activations=activations) if size != 32 else mxfp8()


def _activations(section: Config | None) -> str:
    if section is None:
        return "bf16"
    bits = section.integer("num_bits", low=2, high=16)
    if bits >= 16:
        return "bf16"
    return (
        f"int{bits}"
        if section.text("type", "int") != "float"
        else {4: "nvfp4", 8: "fp8"}.get(bits, f"fp{bits}")
    )
