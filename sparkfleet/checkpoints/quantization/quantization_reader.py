"""Reads a `Quantization` from `quantization_config` and `hf_quant_config.json`: a function per method, the longer
ones in modules of their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.io.config_json import Config
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.checkpoints.quantization.auto_round import auto_round
from sparkfleet.checkpoints.quantization.compressed_tensors import compressed_tensors
from sparkfleet.checkpoints.quantization.config_fields import block_of, group_of, kept_modules, kv_cache_of
from sparkfleet.checkpoints.quantization.formats import (
    Quantization,
    Scheme,
    fp8,
    integer,
    mxfp4,
    mxfp8,
    nf4,
)
from sparkfleet.checkpoints.quantization.modelopt import modelopt, modelopt_scheme
from sparkfleet.checkpoints.quantization.named_quantization import EXL3_HEAD_BITS, trellis
from sparkfleet.checkpoints.quantization.quantization_scope import LAYER_PARTS, Scope
from sparkfleet.errors import FactError

EXPERT_FORMATS: Mapping[str, Scheme] = {"fp4": mxfp4(activations="fp8"), "fp8": fp8(block=(128, 128))}
"""DeepSeek V4's `expert_dtype`."""


def read_quantization(config: Config, hf_quant: Config | None, scope: Scope) -> Quantization | None:
    """Quantisation of a checkpoint; None if it declares none.

    Args:
        config: the language model's keys.
        hf_quant: `hf_quant_config.json`, which ModelOpt writes beside or instead of `quantization_config`.
        scope: the modules of the model.

    Raises:
        FactError: a method that is not known or not supported, or one without its number of bits.
    """
    section = _section(config, hf_quant)
    if section is None:
        return None
    method = _method(section)
    reader = READERS.get(method)
    if reader is None:
        raise FactError(
            f"{section.where}: the quantisation method {shown(method)} is not supported.",
            means=UNSUPPORTED.get(method, UNREAD),
            do=f"Choose a checkpoint that uses one of: {', '.join(sorted(READERS))}.",
        )
    return reader(section, config, scope)


def _section(config: Config, hf_quant: Config | None) -> Config | None:
    """`quantization_config` completed by `hf_quant_config.json`."""
    section = config.section("quantization_config") or config.section("compression_config")
    nested = section.section("quantization") if section else None
    if section is not None and nested is not None:
        # The contents of hf_quant_config.json, which engines accept here.
        section = nested.under(section.values)
    beside = hf_quant.section("quantization") or hf_quant if hf_quant else None
    if section is None or beside is None:
        return section if beside is None else beside
    return section.under(beside.values)


def _method(section: Config) -> str:
    method = section.text("quant_method").lower().replace("_", "-")
    if not method and section.has("quant_algo"):
        return "modelopt"
    if not method and section.has("config_groups"):
        return "compressed-tensors"
    if not method and section.has("bits") and section.has("group_size"):
        raise FactError(
            f"{section.where}: has bits and group_size, but no quantisation method, as MLX writes it.",
            means=UNSUPPORTED["mlx"],
            do=f"Choose a checkpoint that uses one of: {', '.join(sorted(READERS))}.",
        )
    if not method:
        raise FactError(
            f"{section.where}: has no quantisation method.",
            means="The weights are quantised in an unknown way.",
            do="Download the checkpoint again.",
        )
    return ALIASES.get(method, method)


def _fp8(section: Config, config: Config, scope: Scope) -> Quantization:
    """FP8 as DeepSeek and Qwen publish it; the experts of DeepSeek V4 have fewer bits."""
    named: list[tuple[str, Scheme | None]] = kept_modules(section, "modules_to_not_convert", "ignored_layers")
    experts = _expert_scheme(section, config)
    if experts is not None:
        named.append(("experts", experts))
    scheme = fp8(block=block_of(section))
    return scope.quantization("fp8", scheme, named, (*LAYER_PARTS, Part.MTP), kv_cache=kv_cache_of(section))


def _expert_scheme(section: Config, config: Config) -> Scheme | None:
    algorithm = section.text("moe_quant_algo")
    if algorithm:
        return modelopt_scheme(algorithm, None, section)
    if section.text("quant_algo") == "MIXED_PRECISION" and not section.has("quantized_layers"):
        raise section.missing("quantized_layers")
    kind = config.text("expert_dtype") or section.text("expert_dtype")
    if kind and kind not in EXPERT_FORMATS:
        raise config.wrong("expert_dtype", f"one of {', '.join(EXPERT_FORMATS)}")
    return EXPERT_FORMATS.get(kind)


def _gptq(section: Config, config: Config, scope: Scope) -> Quantization:
    """GPTQ; GPTQModel's `dynamic` leaves out modules ("-:") or gives them other bits ("+:")."""
    bits = section.integer("bits", low=2, high=8)
    group = group_of(section)
    dynamic = section.section("dynamic")
    named: list[tuple[str, Scheme | None]] = []
    for pattern in dynamic.values if dynamic else ():
        inner = dynamic.section(pattern) if dynamic and not pattern.startswith("-:") else None
        other = integer(inner.integer_or(bits, "bits", low=2, high=8), group) if inner else None
        named.append((pattern, other))
    scheme = integer(bits, group)
    parts = (*LAYER_PARTS, Part.HEAD) if section.flag("lm_head") else LAYER_PARTS
    return scope.quantization("gptq", scheme, named, parts, kv_cache=kv_cache_of(section))


def _awq(section: Config, config: Config, scope: Scope) -> Quantization:
    bits = section.integer("bits", "w_bit", low=2, high=8)
    scheme = integer(
        bits, group_of(section, "group_size", "q_group_size"), zero_point=section.flag("zero_point", True)
    )
    return scope.quantization("awq", scheme, kept_modules(section, "modules_to_not_convert"))


def _mxfp4(section: Config, config: Config, scope: Scope) -> Quantization:
    """gpt-oss: the experts only."""
    return scope.quantization(
        "mxfp4", mxfp4(), kept_modules(section, "modules_to_not_convert"), (Part.EXPERTS,)
    )


def _mxfp8(section: Config, config: Config, scope: Scope) -> Quantization:
    return scope.quantization(
        "mxfp8", mxfp8(), kept_modules(section, "modules_to_not_convert", "ignored_layers")
    )


def _bitsandbytes(section: Config, config: Config, scope: Scope) -> Quantization:
    eight = section.flag("load_in_8bit", section.flag("_load_in_8bit"))
    if not eight and not section.flag("load_in_4bit", section.flag("_load_in_4bit")):
        raise section.missing("load_in_4bit", "load_in_8bit")
    scheme = integer(8, None, activations="int8") if eight else nf4()
    return scope.quantization("bitsandbytes", scheme, kept_modules(section, "llm_int8_skip_modules"))


def _exl3(section: Config, config: Config, scope: Scope) -> Quantization:
    """ExLlamaV3 declares its mean bits per weight, and those of the head; patched builds of vLLM load it."""
    bits = section.number_or_none("bits", low=1.0, high=8.0)
    if bits is None:
        raise section.missing("bits")
    head = section.number_or_none("head_bits", low=1.0, high=16.0)
    return trellis(bits, head or EXL3_HEAD_BITS, scope)


Reader = Callable[[Config, Config, Scope], Quantization]


READERS: Mapping[str, Reader] = {
    "fp8": _fp8,
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": auto_round,
    "compressed-tensors": compressed_tensors,
    "modelopt": modelopt,
    "mxfp4": _mxfp4,
    "mxfp8": _mxfp8,
    "bitsandbytes": _bitsandbytes,
    "exl3": _exl3,
}

ALIASES: Mapping[str, str] = {
    "fbgemm-fp8": "fp8",
    "gptq-marlin": "gptq",
    "awq-marlin": "awq",
    "intel/auto-round": "auto-round",
    "modelopt-fp4": "modelopt",
    "modelopt-fp8": "modelopt",
    "modelopt-mixed": "modelopt",
    "nvfp4": "modelopt",
    "bnb": "bitsandbytes",
}

UNREAD = (
    "Engines may load it, but its sizes cannot be derived, and no settings of an engine are known for it."
)
UNSUPPORTED: Mapping[str, str] = {
    "mlx": "MLX is for Apple's computers; no engine that sparkfleet starts loads its weights.",
    "gguf": "GGUF weights are in files of that format, which sparkfleet starts with llama.cpp: `model: ORG/NAME:TAG`.",
    "exl2": "EXL2 needs ExLlama, which sparkfleet does not start.",
}
