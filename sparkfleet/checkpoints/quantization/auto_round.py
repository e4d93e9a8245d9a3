"""Reads the config of Intel AutoRound."""

from __future__ import annotations

from sparkfleet.checkpoints.io.config_json import Config
from sparkfleet.checkpoints.quantization.config_fields import block_of, group_of
from sparkfleet.checkpoints.quantization.formats import (
    Quantization,
    Scheme,
    fp8,
    integer,
    mxfp4,
    mxfp8,
    nvfp4,
)
from sparkfleet.checkpoints.quantization.quantization_scope import Scope


def auto_round(section: Config, config: Config, scope: Scope) -> Quantization:
    """Intel AutoRound; `extra_config` has the layers that differ; 16 bits: not quantised."""
    section.integer("bits", low=2, high=8)
    scheme = _auto_round_scheme(section)
    assert scheme is not None  # only 16 bits have none
    extra = section.section("extra_config")
    inner = ((name, extra.section(name)) for name in extra.values) if extra else ()
    named = [(name, _auto_round_scheme(one.under(section.values))) for name, one in inner if one]
    differing = [(name, other) for name, other in named if other != scheme]
    return scope.quantization("auto-round", scheme, differing)


def _auto_round_scheme(section: Config) -> Scheme | None:
    """The format of one layer; its type may have a suffix for the rounding of scales (`mx_fp_rceil`)."""
    bits = section.integer("bits", high=32)
    if bits >= 16:
        return None
    kind = section.text("data_type", "int")
    activations = "bf16" if section.integer_or(bits, "act_bits", high=32) >= 16 else "fp8"
    if isinstance(section.values.get("group_size"), list):
        return fp8(block=block_of(section, "group_size"), activations=activations)
    if kind.startswith("nv_fp"):
        return nvfp4()
    if kind.startswith("mx_fp"):
        return mxfp8() if bits == 8 else mxfp4()
    return (
        fp8(activations=activations)
        if kind.startswith("fp") and bits == 8
        else integer(bits, group_of(section))
    )
