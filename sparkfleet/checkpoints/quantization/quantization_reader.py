"""Reads a `Quantization` from `quantization_config` and `hf_quant_config.json`. One function per method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.io.config_json import Config
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.checkpoints.quantization.formats import (
    Cover,
    Quantization,
    Scheme,
    fp8,
    integer,
    mxfp4,
    mxfp8,
    nf4,
    nvfp4,
)
from sparkfleet.checkpoints.quantization.named_quantization import EXL3_HEAD_BITS, trellis
from sparkfleet.checkpoints.quantization.quantization_scope import LAYER_PARTS, Scope
from sparkfleet.errors import FactError

MOST_GROUP = 1 << 20

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
    named: list[tuple[str, Scheme | None]] = _kept(section, "modules_to_not_convert", "ignored_layers")
    experts = _expert_scheme(section, config)
    if experts is not None:
        named.append(("experts", experts))
    scheme = fp8(block=_block(section))
    return scope.quantization("fp8", scheme, named, (*LAYER_PARTS, Part.MTP), kv_cache=_kv_cache(section))


def _expert_scheme(section: Config, config: Config) -> Scheme | None:
    algorithm = section.text("moe_quant_algo")
    if algorithm:
        return _modelopt_scheme(algorithm, None, section)
    if section.text("quant_algo") == "MIXED_PRECISION" and not section.has("quantized_layers"):
        raise section.missing("quantized_layers")
    kind = config.text("expert_dtype") or section.text("expert_dtype")
    if kind and kind not in EXPERT_FORMATS:
        raise config.wrong("expert_dtype", f"one of {', '.join(EXPERT_FORMATS)}")
    return EXPERT_FORMATS.get(kind)


def _gptq(section: Config, config: Config, scope: Scope) -> Quantization:
    """GPTQ; GPTQModel's `dynamic` leaves out modules ("-:") or gives them other bits ("+:")."""
    bits = section.integer("bits", low=2, high=8)
    group = _group(section)
    dynamic = section.section("dynamic")
    named: list[tuple[str, Scheme | None]] = []
    for pattern in dynamic.values if dynamic else ():
        inner = dynamic.section(pattern) if dynamic and not pattern.startswith("-:") else None
        other = integer(inner.integer_or(bits, "bits", low=2, high=8), group) if inner else None
        named.append((pattern, other))
    scheme = integer(bits, group)
    parts = (*LAYER_PARTS, Part.HEAD) if section.flag("lm_head") else LAYER_PARTS
    return scope.quantization("gptq", scheme, named, parts, kv_cache=_kv_cache(section))


def _awq(section: Config, config: Config, scope: Scope) -> Quantization:
    bits = section.integer("bits", "w_bit", low=2, high=8)
    scheme = integer(
        bits, _group(section, "group_size", "q_group_size"), zero_point=section.flag("zero_point", True)
    )
    return scope.quantization("awq", scheme, _kept(section, "modules_to_not_convert"))


def _auto_round(section: Config, config: Config, scope: Scope) -> Quantization:
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
        return fp8(block=_block(section, "group_size"), activations=activations)
    if kind.startswith("nv_fp"):
        return nvfp4()
    if kind.startswith("mx_fp"):
        return mxfp8() if bits == 8 else mxfp4()
    return (
        fp8(activations=activations)
        if kind.startswith("fp") and bits == 8
        else integer(bits, _group(section))
    )


def _compressed_tensors(section: Config, config: Config, scope: Scope) -> Quantization:
    """Groups of targets, each with its own scheme; "Linear" is every module that is not listed."""
    groups = section.section("config_groups")
    if groups is None or not groups.values:
        raise section.missing("config_groups")
    named: list[tuple[str, Scheme | None]] = _kept(section, "ignore")
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
        method="compressed-tensors", scheme=main, covers=covers, kv_cache=_kv_cache(section), unread=unread
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
    return fp8(block=_block(weights, "block_structure"), activations=activations) if size != 32 else mxfp8()


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


def _modelopt(section: Config, config: Config, scope: Scope) -> Quantization:
    """NVIDIA ModelOpt: one algorithm for everything that is not excluded, or a list of layers with theirs."""
    algorithm = section.text("quant_algo")
    if not algorithm:
        raise section.missing("quant_algo")
    named: list[tuple[str, Scheme | None]] = _kept(section, "ignore", "exclude_modules")
    if algorithm != "MIXED_PRECISION":
        scheme = _modelopt_scheme(algorithm, section.integer_or_none("group_size", high=MOST_GROUP), section)
        return scope.quantization("modelopt", scheme, named, kv_cache=_kv_cache(section))
    listed = list(_quantized_layers(section))
    if not listed:
        raise section.missing("quantized_layers")
    covers, unread = scope.covers([*named, *listed], None, ())
    return Quantization(
        method="modelopt",
        scheme=_main(covers, listed),
        covers=covers,
        kv_cache=_kv_cache(section),
        unread=unread,
    )


def _quantized_layers(section: Config) -> Iterator[tuple[str, Scheme]]:
    layers = section.section("quantized_layers")
    for name in layers.values if layers else ():
        inner = layers.section(name) if layers else None
        if inner is not None:
            group = inner.integer_or_none("group_size", high=MOST_GROUP)
            yield name, _modelopt_scheme(inner.text("quant_algo"), group, inner)


def _main(covers: Collection[Cover], listed: Collection[tuple[str, Scheme]]) -> Scheme:
    """The scheme of the experts, or else of the feed-forward: they are most of a model."""
    for part in (Part.EXPERTS, Part.MLP, *LAYER_PARTS):
        for cover in covers:
            if cover.part is part and cover.scheme is not None:
                return cover.scheme
    return next(iter(listed))[1]


def _modelopt_scheme(algorithm: str, group_size: int | None, where: Config) -> Scheme:
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


def _mxfp4(section: Config, config: Config, scope: Scope) -> Quantization:
    """gpt-oss: the experts only."""
    return scope.quantization("mxfp4", mxfp4(), _kept(section, "modules_to_not_convert"), (Part.EXPERTS,))


def _mxfp8(section: Config, config: Config, scope: Scope) -> Quantization:
    return scope.quantization("mxfp8", mxfp8(), _kept(section, "modules_to_not_convert", "ignored_layers"))


def _bitsandbytes(section: Config, config: Config, scope: Scope) -> Quantization:
    eight = section.flag("load_in_8bit", section.flag("_load_in_8bit"))
    if not eight and not section.flag("load_in_4bit", section.flag("_load_in_4bit")):
        raise section.missing("load_in_4bit", "load_in_8bit")
    scheme = integer(8, None, activations="int8") if eight else nf4()
    return scope.quantization("bitsandbytes", scheme, _kept(section, "llm_int8_skip_modules"))


def _exl3(section: Config, config: Config, scope: Scope) -> Quantization:
    """ExLlamaV3 declares its mean bits per weight, and those of the head; patched builds of vLLM load it."""
    bits = section.number_or_none("bits", low=1.0, high=8.0)
    if bits is None:
        raise section.missing("bits")
    head = section.number_or_none("head_bits", low=1.0, high=16.0)
    return trellis(bits, head or EXL3_HEAD_BITS, scope)


def _kept(section: Config, *keys: str) -> list[tuple[str, Scheme | None]]:
    """Modules that are not quantised; `hf_quant_config.json` often repeats those of config.json."""
    names = dict.fromkeys(name for key in keys for name in section.texts(key) or ())
    return [(name, None) for name in names]


def _block(section: Config, key: str = "weight_block_size") -> tuple[int, int] | None:
    block = section.integers(key, high=MOST_GROUP)
    if block is None:
        return None
    if len(block) != 2 or 0 in block:
        raise section.wrong(key, "two whole numbers above 0")
    return block[0], block[1]


def _group(section: Config, *keys: str) -> int | None:
    """Weights per scale; -1 in GPTQ and AWQ: one scale per channel."""
    size = section.integer(*(keys or ("group_size",)), low=-1, high=MOST_GROUP)
    return size if size > 0 else None


MODELOPT_KV_IGNORED: Mapping[str, None] = dict.fromkeys(("NVFP4_AFFINE", "FP8_K_NVFP4_V", "MIXED_PRECISION"))
"""Formats that ModelOpt writes (torch/export/quant_format.py, convert_hf_config.py) and engines do not follow: vLLM 0.32
warns and keeps "auto" (utils/torch_utils.py), SGLang takes FP8 alone (mem_cache/kv_cache_dtype.py)."""


def _kv_cache(section: Config) -> str | None:
    """The dtype that the KV cache has scales for; None if engines keep it in the model's own precision."""
    name = section.values.get("kv_cache_quant_algo") or section.values.get("kv_cache_scheme")
    if isinstance(name, dict):
        bits = Config(name, section.where).integer("num_bits", low=4, high=16)
        return {4: "nvfp4", 8: "fp8"}.get(bits)
    if name is None or name == "":
        return None
    known = {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8", **MODELOPT_KV_IGNORED}
    if not isinstance(name, str) or name.upper() not in known:
        raise section.wrong("kv_cache_quant_algo", f"one of {', '.join(known)}")
    return known[name.upper()]


Reader = Callable[[Config, Config, Scope], Quantization]


READERS: Mapping[str, Reader] = {
    "fp8": _fp8,
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _auto_round,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
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
    "gguf": "GGUF files are for llama.cpp, which sparkfleet does not start.",
    "exl2": "EXL2 needs ExLlama, which sparkfleet does not start.",
}
