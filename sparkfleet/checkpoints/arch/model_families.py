"""Defaults that `config.json` omits: the shape of each known family of models, by `model_type`.

Read from the model definitions of transformers 5.19 (`models/*/configuration_*.py`, `modeling_*.py`), and of vLLM 0.32 for
those that transformers has not (Ling, MiMo-V2.5, Nemotron-NAS): the token mixer of a layer, defaults of missing keys, and
the meaning of sizes. A family that is not listed is not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sparkfleet.checkpoints.io.config_json import Config

Mixer = Literal[
    "attention",
    "latent",
    "compressed",
    "delta",
    "kimi-delta",
    "mamba",
    "mamba-1",
    "beside-mamba",
    "short-conv",
]
Sliding = Literal["never", "flagged", "always", "pattern", "chunked", "listed"]


@dataclass(frozen=True, slots=True)
class Family:
    """One family of models."""

    mixer: Mixer = "attention"
    """Content of the layers: grouped-query attention; a latent cache (MLA); DeepSeek V4's compressed latents; full
    attention in some layers and Gated DeltaNet, Kimi Delta Attention, Mamba-2, Mamba-1 or a short convolution in others;
    or full attention and Mamba-2 side by side in every layer (Falcon-H1)."""
    sliding: Sliding = "never"
    """Sliding layers if there is no `layer_types`: none, those of `use_sliding_window`, all, all but every n-th,
    (Llama 4) chunks in all but every fourth; or the list is required."""
    gated: bool = True
    """The feed-forward has three matrices (gate, up, down), not two."""
    like_attention: bool = False
    """Linear layers have as many heads as attention layers, of the same size."""
    feed_forward_apart: bool = False
    """Feed-forwards are layers of their own (Nemotron-H)."""
    output_gate: bool = False
    """Attention has a gate as large as its queries."""
    expert_size: str = "moe_intermediate_size"
    dense_size: str = "intermediate_size"
    dense_adjusted: bool = False
    """The size of the feed-forward is two thirds of the declared one, rounded up (LFM2, `block_*`)."""
    dense_beside_experts: bool = False
    """Layers with experts have a dense feed-forward as well (Gemma 4)."""
    sliding_kv: int = 1
    """KV heads of sliding layers as a multiple of those of other layers, if the config does not declare them."""
    unsaid: Mapping[str, object] = field(default_factory=dict)
    """Defaults of missing keys."""


PLAIN = Family(sliding="flagged")
_UNGATED = Family(gated=False)
_LISTED = Family(sliding="listed")
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
_GEMMA3N = {
    "tie_word_embeddings": True,
    "sliding_window_pattern": 5,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 15,
    "altup_num_inputs": 4,
    "laurel_rank": 64,
}
_MODEL_DTYPE = {"mamba_ssm_cache_dtype": "bfloat16"}
"""vLLM 0.32 keeps such states in the model's own 16 bits (`mamba_utils.py`, MambaStateDtypeCalculator)."""
_GRANITE_MOE = Family(expert_size="intermediate_size", dense_size="shared_intermediate_size")
_GEMMA4 = Family(sliding="pattern", dense_beside_experts=True, unsaid={**_GEMMA, "sliding_window_pattern": 6})
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
    "granite_swa": Family(sliding="listed", unsaid={"tie_word_embeddings": True}),
    "granitemoe": _GRANITE_MOE,
    "granitemoe_swa": replace(_GRANITE_MOE, sliding="listed"),
    "granitemoeshared": _GRANITE_MOE,
    "granitemoehybrid": Family(
        mixer="mamba",
        expert_size="intermediate_size",
        dense_size="shared_intermediate_size",
        unsaid=_MODEL_DTYPE,
    ),
    "bamba": Family(mixer="mamba", unsaid=_MODEL_DTYPE),
    "falcon_h1": Family(mixer="beside-mamba", unsaid=_MODEL_DTYPE),
    "jamba": Family(mixer="mamba-1", expert_size="intermediate_size"),
    "lfm2": Family(
        mixer="short-conv",
        dense_adjusted=True,
        unsaid={"tie_word_embeddings": True, "block_auto_adjust_ff_dim": True, "block_multiple_of": 256},
    ),
    "lfm2_moe": Family(mixer="short-conv", unsaid={"tie_word_embeddings": True, "num_dense_layers": 2}),
    "ernie4_5": Family(unsaid={"tie_word_embeddings": True}),
    "ernie4_5_moe": Family(
        unsaid={"tie_word_embeddings": True, "moe_layer_start_index": 1, "moe_layer_interval": 1}
    ),
    "smollm3": Family(unsaid={"tie_word_embeddings": True}),
    "olmo": PLAIN,
    "olmo2": PLAIN,
    "olmo3": PLAIN,
    "seed_oss": PLAIN,
    "exaone4": PLAIN,
    "glm": PLAIN,
    "glm4": PLAIN,
    "phi": _UNGATED,
    "phi3": Family(sliding="always"),
    "starcoder2": Family(sliding="always", gated=False, unsaid={"tie_word_embeddings": True}),
    "arcee": _UNGATED,
    "apertus": _UNGATED,
    "nemotron": _UNGATED,
    "hunyuan_v1_dense": PLAIN,
    "cohere": Family(unsaid={"tie_word_embeddings": True}),
    "cohere2": Family(sliding="pattern", unsaid={"tie_word_embeddings": True, "sliding_window_pattern": 4}),
    "gemma": Family(unsaid=_GEMMA),
    "gemma2": Family(sliding="pattern", unsaid={**_GEMMA, "sliding_window_pattern": 2}),
    "gemma3": Family(sliding="pattern", unsaid=_GEMMA3),
    "gemma3n": Family(sliding="pattern", unsaid=_GEMMA3N),
    "gemma4": _GEMMA4,
    "gemma4_unified": _GEMMA4,
    "nemotron-nas": _LISTED,
    "hyperclovax": PLAIN,
    "cwm": _LISTED,
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
    "glm4v": PLAIN,
    "glm4v_moe": Family(),
    "glm4_moe": Family(),
    "dots1": PLAIN,
    "exaone_moe": _LISTED,
    "olmoe": _MIXTRAL,
    "flex_olmo": _MIXTRAL,
    "hunyuan_v1_moe": Family(expert_size="intermediate_size", unsaid={"num_shared_experts": 1}),
    "mellum": _LISTED,
    "afmoe": Family(sliding="pattern", output_gate=True, unsaid={"num_dense_layers": 1}),
    "cohere2_moe": Family(
        sliding="listed",
        expert_size="intermediate_size",
        dense_size="prefix_dense_intermediate_size",
        unsaid={"tie_word_embeddings": True},
    ),
    "bailing_moe": Family(),
    "bailing_moe_v2": Family(),
    "laguna": Family(),
    "solar_open": Family(),
    "hy_v3": Family(),
    "mimo_v2_flash": Family(sliding_kv=2),
    "mimo_v2": Family(sliding_kv=2),
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
    # vLLM 0.32 assumes FP4 for the experts of DeepSeek V4 if the config has no `expert_dtype`.
    "deepseek_v4": Family(mixer="compressed", unsaid={"expert_dtype": "fp4", "o_groups": 8}),
    "deepseek_v41": Family(mixer="compressed", unsaid={"expert_dtype": "fp4", "o_groups": 8}),
    "deepseek_ref": Family(mixer="compressed", unsaid={"o_groups": 8}),
    "qwen3_next": _DELTA,
    "qwen3_5": _DELTA,
    "qwen3_5_moe": _DELTA,
    "qwen4_exp": _DELTA,
    "kimi_linear": Family(mixer="kimi-delta"),
    # Ling 3; Ling 2.5 has the same name with another linear attention and no short convolution.
    "bailing_hybrid": Family(mixer="kimi-delta", like_attention=True),
    "glm5_next": Family(mixer="kimi-delta"),
    "nemotron_h": Family(mixer="mamba", gated=False, feed_forward_apart=True),
}


def family_of(config: Config) -> Family | None:
    """The family of a language model by its keys; None if it is not known here.

    A summary without `model_type` is recognised by its other keys.
    """
    name = config.text("model_type")
    return FAMILIES.get(name.removesuffix("_text")) if name else _family_by_keys(config)


def _family_by_keys(config: Config) -> Family:
    if config.has("linear_num_value_heads"):
        return FAMILIES["qwen3_next"]
    if config.has("mamba_num_heads"):
        return FAMILIES["nemotron_h"]
    return FAMILIES["deepseek_v3"] if config.has("kv_lora_rank") else PLAIN
