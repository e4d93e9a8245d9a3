"""What `config.json` leaves unsaid: the shape of each known family of models, by `model_type`.

Read from the model definitions of transformers 5.19 (`models/*/configuration_*.py`, `modeling_*.py`): which mixer a layer
has, what a missing key stands for, and which sizes mean what. A family that is not here is not guessed at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sparkfleet.facts.config_json import Config

Mixer = Literal["attention", "latent", "compressed", "delta", "kimi-delta", "mamba"]
Sliding = Literal["never", "flagged", "always", "pattern", "chunked"]


@dataclass(frozen=True, slots=True)
class Family:
    """One family of models."""

    mixer: Mixer = "attention"
    """What the layers consist of: grouped-query attention; a latent cache (MLA); DeepSeek V4's compressed latents; or
    full attention beside Gated DeltaNet, Kimi Delta Attention, or Mamba-2."""
    sliding: Sliding = "never"
    """Which layers slide when there is no `layer_types`: none, those of `use_sliding_window`, all, all but every n-th,
    or (Llama 4) chunks in all but every fourth."""
    gated: bool = True
    """The feed-forward has three matrices (gate, up, down) and not two."""
    output_gate: bool = False
    """Attention has a gate as large as its queries."""
    expert_size: str = "moe_intermediate_size"
    dense_size: str = "intermediate_size"
    dense_beside_experts: bool = False
    """Layers with experts have a dense feed-forward as well (Gemma 4)."""
    sliding_kv: int = 1
    """So many times the KV heads of other layers have those that slide, where the config does not say how many."""
    unsaid: Mapping[str, object] = field(default_factory=dict)
    """What a missing key stands for."""


PLAIN = Family(sliding="flagged")
_LATENT = Family(mixer="latent")
_DELTA = Family(mixer="delta", output_gate=True, unsaid={"linear_conv_kernel_dim": 4})
_MIXTRAL = Family(sliding="always", expert_size="intermediate_size")
_GEMMA = {"tie_word_embeddings": True}
_GEMMA3 = {
    "tie_word_embeddings": True,
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
_LLAMA4 = {"attention_chunk_size": 8192, "n_shared_experts": 1}

FAMILIES: Mapping[str, Family] = {
    "llama": PLAIN,
    "mistral": Family(sliding="always"),
    "mistral3": Family(sliding="always"),
    "ministral": Family(sliding="always"),
    "ministral3": Family(sliding="always"),
    "qwen2": PLAIN,
    "qwen2_vl": PLAIN,
    "qwen2_5_vl": PLAIN,
    "qwen2_moe": PLAIN,
    "qwen3": PLAIN,
    "qwen3_vl": PLAIN,
    "qwen3_moe": PLAIN,
    "qwen3_vl_moe": PLAIN,
    "qwen3_omni_moe": PLAIN,
    "mimo": PLAIN,
    "granite": PLAIN,
    "smollm3": Family(unsaid={"tie_word_embeddings": True}),
    "olmo2": PLAIN,
    "olmo3": PLAIN,
    "seed_oss": PLAIN,
    "exaone4": PLAIN,
    "glm": PLAIN,
    "glm4": PLAIN,
    "phi": Family(gated=False),
    "phi3": Family(sliding="always"),
    "starcoder2": Family(sliding="always", gated=False, unsaid={"tie_word_embeddings": True}),
    "cohere2": Family(sliding="pattern", unsaid={"tie_word_embeddings": True, "sliding_window_pattern": 4}),
    "gemma": Family(unsaid=_GEMMA),
    "gemma2": Family(sliding="pattern", unsaid={**_GEMMA, "sliding_window_pattern": 2}),
    "gemma3": Family(sliding="pattern", unsaid=_GEMMA3),
    "gemma4": Family(
        sliding="pattern", dense_beside_experts=True, unsaid={**_GEMMA, "sliding_window_pattern": 6}
    ),
    "muse_glimmer": Family(output_gate=True),
    "mixtral": _MIXTRAL,
    "phimoe": _MIXTRAL,
    "gpt_oss": Family(expert_size="intermediate_size"),
    "minimax_m2": Family(expert_size="intermediate_size"),
    "minimax_m3": Family(expert_size="intermediate_size", dense_size="dense_intermediate_size"),
    "minimax_m3_vl": Family(expert_size="intermediate_size", dense_size="dense_intermediate_size"),
    "llama4": Family(
        sliding="chunked", expert_size="intermediate_size", dense_size="intermediate_size_mlp", unsaid=_LLAMA4
    ),
    "glm4_moe": Family(),
    "laguna": Family(),
    "solar_open": Family(),
    "hy_v3": Family(),
    "mimo_v2_flash": Family(sliding_kv=2),
    "step3p5": Family(),
    "step3p7": Family(),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "kimi_k2": _LATENT,
    "kimi_k25": _LATENT,
    "glm_moe_dsa": _LATENT,
    "glm4_moe_lite": _LATENT,
    "mistral4": _LATENT,
    # vLLM 0.32 takes the experts of DeepSeek V4 for FP4 where nothing is said.
    "deepseek_v4": Family(mixer="compressed", unsaid={"expert_dtype": "fp4", "o_groups": 8}),
    "deepseek_ref": Family(mixer="compressed", unsaid={"o_groups": 8}),
    "qwen3_next": _DELTA,
    "qwen3_5": _DELTA,
    "qwen3_5_moe": _DELTA,
    "qwen4_exp": _DELTA,
    "kimi_linear": Family(mixer="kimi-delta"),
    "glm5_next": Family(mixer="kimi-delta"),
    "nemotron_h": Family(mixer="mamba", gated=False),
}


def family_of(config: Config) -> Family | None:
    """The family that a language model's keys name; None for one that is not known here.

    A summary without `model_type` is read by its keys, which say the same.
    """
    name = config.text("model_type")
    return FAMILIES.get(name.removesuffix("_text")) if name else _family_by_keys(config)


def _family_by_keys(config: Config) -> Family:
    if config.has("linear_num_value_heads"):
        return FAMILIES["qwen3_next"]
    if config.has("mamba_num_heads"):
        return FAMILIES["nemotron_h"]
    return FAMILIES["deepseek_v3"] if config.has("kv_lora_rank") else PLAIN
