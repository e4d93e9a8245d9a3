"""A config.json that is not that of its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkfleet.checkpoints.checkpoint_reader import read_checkpoint
from sparkfleet.errors import FactError

Config = dict[str, Any]
Weight = tuple[str, str, tuple[int, ...]]
Maker = Callable[..., Path]
LlamaWeights = Callable[..., list[Weight]]

MOE: Config = {
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
}
DELTA: Config = {
    "model_type": "qwen3_5_moe",
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
LATENT: Config = {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
NUMBERED: list[Weight] = [
    (f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight", "BF16", (32, 64))
    for layer in range(2)
    for expert in range(4)
]
FUSED: list[Weight] = [
    (f"model.layers.{layer}.mlp.experts.gate_up_proj", "BF16", (4, 64, 64)) for layer in range(2)
]
STATES: list[Weight] = [("model.layers.0.linear_attn.conv1d.weight", "BF16", (128, 1, 4))]
LATENTS: list[Weight] = [
    (f"model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight", "BF16", (40, 64)) for layer in range(2)
]
CASES: dict[str, tuple[Config, list[Weight], Config, str]] = {
    "hidden size": ({}, [], {"hidden_size": 128}, "a hidden size of 128, but the weights have one of 64"),
    "fewer layers": ({}, [], {"num_hidden_layers": 1}, "declares 1 layers, but the weights have a layer 1"),
    "more layers": ({}, [], {"num_hidden_layers": 3}, "no weights for 1 of 3 layers"),
    "KV heads": (
        {}, [], {"num_key_value_heads": 1},
        "declares 1 KV heads of 16 in layer 0, but the weights have keys of 32 in all",
    ),
    "head size": ({}, [], {"head_dim": 32}, "declares 2 KV heads of 32 in layer 0"),
    "experts": (MOE, NUMBERED, {"num_experts": 8}, "declares 8 experts, but the weights have 4"),
    "experts in one tensor": (MOE, FUSED, {"num_experts": 2}, "declares 2 experts, but the weights have 4"),
    "states": (
        DELTA, STATES, {"linear_num_value_heads": 8},
        "declares a convolution of 192 channels in layer 0, but the weights have one of 128",
    ),
    "latent": (LATENT, LATENTS, {"kv_lora_rank": 512}, "declares 1 KV heads of 520 in layer 0"),
}  # fmt: skip


def without_attention(weights: list[Weight], config: Config) -> list[Weight]:
    """Those with a latent have no keys of their own."""
    return [one for one in weights if "kv_lora_rank" not in config or ".k_proj." not in one[0]]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_config_that_contradicts_the_weights_is_refused(
    case: tuple[Config, list[Weight], Config, str],
    make_checkpoint: Maker,
    llama: Config,
    llama_weights: LlamaWeights,
) -> None:
    config, more, changed, told = case
    weights = [*without_attention(llama_weights(), config), *more]
    right = {**llama, **config}
    assert read_checkpoint(make_checkpoint(right, weights)).weights_known
    with pytest.raises(FactError, match=told) as raised:
        read_checkpoint(make_checkpoint({**right, **changed}, weights, name="changed"))
    assert "config.json" in raised.value.what + raised.value.means


def test_towers_and_other_models_in_it_have_sizes_of_their_own(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    """A vision tower and an encoder of sound with more layers than the model, and a talker beside it."""
    weights = [
        *llama_weights(),
        *((f"visual.layers.{n}.self_attn.k_proj.weight", "BF16", (96, 96)) for n in range(5)),
        *((f"audio_tower.layers.{n}.self_attn.k_proj.weight", "BF16", (48, 48)) for n in range(5)),
        ("talker.model.embed_tokens.weight", "BF16", (32, 16)),
        ("talker.model.layers.0.self_attn.k_proj.weight", "BF16", (8, 16)),
    ]
    facts = read_checkpoint(make_checkpoint(llama, weights))
    assert (facts.vision, facts.mtp_layers) == (True, 0)


def test_weights_packed_by_bitsandbytes_have_no_known_size(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    weights = [
        (name, "U8", (shape[0] * shape[1] // 2, 1)) if "_proj" in name else (name, dtype, shape)
        for name, dtype, shape in llama_weights()
    ]
    config = {**llama, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    assert read_checkpoint(make_checkpoint(config, weights)).weights_known


def packed(weights: list[Weight], *stored: Weight) -> list[Weight]:
    """Both layers' keys in another form: `stored` has the last word of a name, the dtype and the shape of each tensor."""
    others = [one for one in weights if ".k_proj." not in one[0]]
    return others + [
        (f"model.layers.{layer}.self_attn.k_proj.{last}", dtype, shape)
        for layer in range(2)
        for last, dtype, shape in stored
    ]


PACKED: dict[str, tuple[Config, list[Weight]]] = {
    "pairs of outputs in a byte (ModelOpt's INT4)": (
        {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"},
        [("weight", "U8", (16, 64)), ("weight_scale", "BF16", (32, 4))],
    ),
    "pairs of inputs in a byte (NVFP4)": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        [("weight", "U8", (32, 32)), ("weight_scale", "F8_E4M3", (32, 4))],
    ),
    "FP8 with a scale for each block": (
        {"quant_method": "fp8", "weight_block_size": [16, 16]},
        [("weight", "F8_E4M3", (32, 64)), ("weight_scale_inv", "F32", (2, 4))],
    ),
    "GPTQ": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16},
        [("qweight", "I32", (8, 32)), ("scales", "F16", (4, 32)), ("qzeros", "I32", (4, 4))],
    ),
    "AWQ for GEMV": (
        {"quant_method": "awq", "bits": 4, "group_size": 16},
        [("qweight", "I32", (32, 8)), ("scales", "F16", (32, 4)), ("qzeros", "I32", (32, 1))],
    ),
    "2:4 for Marlin": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16},
        [("weight_packed", "I32", (2, 64)), ("scale_packed", "F16", (4, 32)), ("meta", "I16", (32, 4))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PACKED.values(), ids=PACKED)
def test_packed_keys_are_not_taken_for_a_contradiction(
    case: tuple[Config, list[Weight]], make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    config, stored = case
    right = {**llama, "quantization_config": config}
    assert read_checkpoint(make_checkpoint(right, packed(llama_weights(), *stored))).weights_known


def test_a_config_that_contradicts_packed_keys_is_refused(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    config, stored = PACKED["pairs of inputs in a byte (NVFP4)"]
    wrong = {**llama, "num_key_value_heads": 1, "quantization_config": config}
    with pytest.raises(FactError, match="keys of 32 in all"):
        read_checkpoint(make_checkpoint(wrong, packed(llama_weights(), *stored)))


def test_a_tower_of_another_name_beside_keys_of_unknown_size(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    """MiniCPM-V: its tower is not quantised where its decoder is packed by bitsandbytes."""
    weights = packed(llama_weights(), ("weight", "U8", (32 * 64 // 2, 1)))
    weights.append(("vpm.encoder.layers.0.self_attn.k_proj.weight", "BF16", (96, 96)))
    config = {**llama, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    assert read_checkpoint(make_checkpoint(config, weights)).weights_known


def test_an_encoder_may_have_more_layers_than_the_decoder(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    """DeepSeek-OCR-2 encodes pages with a Qwen2 of 24 layers; its decoder has 12."""
    weights = [
        *llama_weights(),
        *((f"model.qwen2_model.model.layers.{n}.self_attn.k_proj.weight", "BF16", (8, 64)) for n in range(5)),
    ]
    assert read_checkpoint(make_checkpoint(llama, weights)).weights_known


@pytest.mark.parametrize("declared", [0, 1])
def test_layers_of_an_mtp_head_after_the_last(
    declared: int, make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    """DeepSeek and GLM number them on; a config that no longer speaks of them contradicts nothing."""
    weights = [
        *llama_weights(),
        ("model.layers.2.eh_proj.weight", "BF16", (64, 128)),
        ("model.layers.2.self_attn.k_proj.weight", "BF16", (32, 64)),
    ]
    facts = read_checkpoint(make_checkpoint({**llama, "num_nextn_predict_layers": declared}, weights))
    assert facts.mtp_layers == 1
