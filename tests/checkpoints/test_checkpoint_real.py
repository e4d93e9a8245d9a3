"""Checkpoints that transformers itself wrote: every parameter is found, and every layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkfleet.checkpoints.arch.layers import LayerKind
from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config, read_checkpoint

pytestmark = pytest.mark.integration

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
MOE = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
SHARED = {"shared_expert_intermediate_size": 32}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
ROUTED = {"n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
LATENT = {
    **ROUTED,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
MAMBA = {
    "hybrid_override_pattern": "ME*-",
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "moe_shared_expert_intermediate_size": 32,
}
MAMBA_2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
LINEAR_BUT_ONE = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
GRANITE = {**MAMBA_2, "head_dim": None, "layer_types": LINEAR_BUT_ONE, "shared_intermediate_size": 48}
JAMBA = {"head_dim": None, "attn_layer_period": 4, "attn_layer_offset": 2}
CONVOLUTIONS = {"head_dim": None, "layer_types": ["conv", "full_attention", "conv", "conv"]}
TOWER = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}

MODELS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "llama": (BASE, {"full": 4}),
    "qwen3": ({**BASE, "tie_word_embeddings": True}, {"full": 4}),
    "qwen3_moe": ({**BASE, **MOE}, {"full": 4}),
    "qwen3_next": ({**BASE, **MOE, **SHARED, **DELTA}, {"linear": 3, "full": 1}),
    "qwen3_5_moe": (
        {"text_config": {**BASE, **MOE, **SHARED, **DELTA}, "vision_config": TOWER},
        {"linear": 3, "full": 1},
    ),
    "deepseek_v3": ({**BASE, **LATENT}, {"mla": 4}),
    "glm_moe_dsa": ({**BASE, **LATENT, "index_n_heads": 2, "index_head_dim": 16}, {"mla": 4}),
    "kimi_linear": (
        {**BASE, **LATENT, "num_local_experts": 8, "linear_num_heads": 4, "linear_head_dim": 16},
        {"linear": 4},
    ),
    "glm4_moe": ({**BASE, **ROUTED, "first_k_dense_replace": 1}, {"full": 4}),
    "minimax_m2": ({**BASE, "num_local_experts": 8, "num_experts_per_tok": 2}, {"full": 4}),
    "gpt_oss": (
        {**BASE, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 16},
        {"sliding": 2, "full": 2},
    ),
    "gemma3_text": ({**BASE, "sliding_window": 16}, {"sliding": 4}),
    "nemotron_h": ({**BASE, **ROUTED, **MAMBA}, {"linear": 1, "full": 1, "none": 2}),
    "mistral": ({**BASE, "sliding_window": 64}, {"sliding": 4}),
    "granitemoehybrid": (
        {**BASE, **GRANITE, "num_local_experts": 8, "num_experts_per_tok": 2},
        {"linear": 3, "full": 1},
    ),
    "granitemoehybrid without experts": (
        {**BASE, **GRANITE, "num_local_experts": 0, "num_experts_per_tok": 0, "tie_word_embeddings": True},
        {"linear": 3, "full": 1},
    ),
    "falcon_h1": ({**BASE, **MAMBA_2, "mamba_d_ssm": 128}, {"full": 4, "linear": 4, "none": 4}),
    "jamba": ({**BASE, **JAMBA, "num_experts": 4, "num_experts_per_tok": 2}, {"linear": 3, "full": 1}),
    "jamba without experts": ({**BASE, **JAMBA, "num_experts": 1}, {"linear": 3, "full": 1}),
    "lfm2": ({**BASE, **CONVOLUTIONS, "block_multiple_of": 16}, {"linear": 3, "full": 1}),
    "lfm2_moe": ({**BASE, **CONVOLUTIONS, **MOE}, {"linear": 3, "full": 1}),
    "ernie4_5_moe": (
        {
            **BASE,
            "head_dim": None,
            "moe_intermediate_size": 32,
            "moe_num_experts": 8,
            "moe_k": 2,
            "moe_layer_interval": 2,
            "moe_layer_end_index": 2,
        },
        {"full": 4},
    ),
    "hunyuan_v1_moe": ({**BASE, "num_experts": 8, "moe_topk": 2}, {"full": 4}),
    "afmoe": (
        {**BASE, **MOE, "num_shared_experts": 2, "sliding_window": 64},
        {"sliding": 3, "full": 1},
    ),
    "gemma3n_text": (
        {
            **BASE,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 64,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 256,
            "hidden_size_per_layer_input": 16,
            "laurel_rank": 8,
        },
        {"sliding": 2, "full": 2},
    ),
    "glm4v_moe": (
        {"text_config": {**BASE, **ROUTED, "first_k_dense_replace": 1}, "vision_config": TOWER},
        {"full": 4},
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_that_transformers_saved(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    values, kinds = MODELS[name]
    known = {key: value for key, value in values.items() if value is not None}
    config = transformers.CONFIG_MAPPING[name.partition(" ")[0]](**known)
    multimodal = "vision_config" in values
    auto = transformers.AutoModelForImageTextToText if multimodal else transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    buffers = sum(b.numel() for name, b in model.named_buffers() if name in model.state_dict())

    facts = read_checkpoint(tmp_path)
    assert facts.total_parameters == sum(p.numel() for p in model.parameters()) + buffers
    assert {kind.value: count for kind, count in facts.layer_counts().items()} == kinds
    assert facts.vision == multimodal
    assert facts.mtp_layers == 0

    # What the config alone tells is the same, but for norms, biases and other small things.
    parts, found = config.to_dict(), facts.parameters_by_part()
    estimated = checkpoint_from_config(parts, id="x").parameters_by_part()
    for part in (Part.EMBEDDING, Part.HEAD, Part.MLP, Part.EXPERTS, Part.SHARED_EXPERTS):
        assert estimated.get(part, 0) == pytest.approx(found.get(part, 0), rel=0.02), part
    for part in (Part.ATTENTION, Part.LINEAR_ATTENTION):
        assert estimated.get(part, 0) == pytest.approx(found.get(part, 0), rel=0.06), part
    assert (facts.state_bytes_per_sequence() > 0) == (LayerKind.LINEAR in facts.layer_counts())
