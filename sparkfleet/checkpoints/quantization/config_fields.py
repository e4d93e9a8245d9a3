"""Keys of a quantisation's config that several methods share: modules left out, blocks, groups, the KV cache."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.checkpoints.io.config_json import Config
from sparkfleet.checkpoints.quantization.formats import Scheme

MOST_GROUP = 1 << 20


def kept_modules(section: Config, *keys: str) -> list[tuple[str, Scheme | None]]:
    """Modules that are not quantised; `hf_quant_config.json` often repeats those of config.json."""
    names = dict.fromkeys(name for key in keys for name in section.texts(key) or ())
    return [(name, None) for name in names]


def block_of(section: Config, key: str = "weight_block_size") -> tuple[int, int] | None:
    """Rows and columns that share a scale; None if whole tensors or channels do."""
    block = section.integers(key, high=MOST_GROUP)
    if block is None:
        return None
    if len(block) != 2 or 0 in block:
        raise section.wrong(key, "two whole numbers above 0")
    return block[0], block[1]


def group_of(section: Config, *keys: str) -> int | None:
    """Weights per scale; -1 in GPTQ and AWQ: one scale per channel."""
    size = section.integer(*(keys or ("group_size",)), low=-1, high=MOST_GROUP)
    return size if size > 0 else None


MODELOPT_KV_IGNORED: Mapping[str, None] = dict.fromkeys(("NVFP4_AFFINE", "FP8_K_NVFP4_V", "MIXED_PRECISION"))
"""Formats that ModelOpt writes (torch/export/quant_format.py, convert_hf_config.py) and engines do not follow: vLLM 0.32
warns and keeps "auto" (utils/torch_utils.py), SGLang takes FP8 alone (mem_cache/kv_cache_dtype.py)."""


def kv_cache_of(section: Config) -> str | None:
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
