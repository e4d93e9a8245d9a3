"""Configs alone: parameters against the real models, the names they go by, and published sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from model_configs import CONFIGS, COUNTED, FAMILIES

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.errors import FactError
from sparkfleet.units import GIB

INCOMPLETE = {
    "MiniMaxAI/MiniMax-M3": "dense_intermediate_size is missing",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": "interleave_moe_layer_step is missing",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "interleave_moe_layer_step is missing",
    "moonshotai/Kimi-K2.5": "config_groups is missing",
    "moonshotai/Kimi-K3": "layer_types or full_attention_interval is missing",
    "nvidia/DeepSeek-V3.1-NVFP4": "has NVFP4",
    "nvidia/DeepSeek-V3.2-NVFP4": "has NVFP4",
    "nvidia/DeepSeek-V4-Flash-NVFP4": "quantized_layers is missing",
    "nvidia/DeepSeek-V4-Pro-NVFP4": "quantized_layers is missing",
    "nvidia/GLM-5-NVFP4": "has NVFP4",
    "nvidia/Llama-3.1-70B-Instruct-FP8": "has FP8",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "block_configs is missing",
    "nvidia/MiniMax-M3-NVFP4": "quantized_layers is missing",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": "has NVFP4",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": "has FP8",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": "has NVFP4",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8": "has FP8",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": "has NVFP4",
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": "has NVFP4",
    "nvidia/Qwen3-235B-A22B-NVFP4": "has NVFP4",
    "nvidia/Qwen3.6-27B-NVFP4": "quantized_layers is missing",
    "nvidia/Qwen3.6-35B-A3B-NVFP4": "quantized_layers is missing",
    "mistralai/Mistral-Small-4-119B-2603": "qk_rope_head_dim is missing",
    "Qwen/Qwen3-Coder-Next": "num_attention_heads is missing",
    "zai-org/GLM-4.7-Flash": "qk_nope_head_dim is missing",
    "zai-org/GLM-5.3-Flash": "layer_types or full_attention_interval is missing",
    "Qwen/Qwen3.8-Flash-Next": "linear_num_key_heads is missing",
    "Qwen/Qwen3.8-27B": "linear_num_value_heads or mamba_num_heads is missing",
    "poolside/Laguna-S-2.1": "num_hidden_layers is missing",
    "deepseek-ai/DeepSeek-V4.1-Flash": "num_hidden_layers is missing",
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B (mamba facts)": "hybrid_override_pattern or layers_block_type is missing",
    "XiaomiMiMo/MiMo-V2.5": "num_hidden_layers is missing",
    "thinkingmachines/Inkling-Small-NVFP4": "num_hidden_layers is missing",
    "inclusionAI/Ling-3.0-flash": "the architecture bailingmoe3 is not known",
    "Qwen/Qwen3.5-35B-A3B (transformers default)": "linear_key_head_dim is missing",
}
"""Configs of the collection that were shortened too much, and what is missing."""

MISSING_QUANTISATION = {
    "has NVFP4": "nvfp4",
    "has FP8": "fp8",
    "quantized_layers is missing": "nvfp4",
    "config_groups is missing": "int4",
}
"""Messages if only the quantisation is missing, with the one that the model has."""


def facts_of(name: str) -> Checkpoint:
    return checkpoint_from_config(
        CONFIGS[name], id=name, quantization=MISSING_QUANTISATION.get(INCOMPLETE.get(name, ""))
    )


KNOWN = [
    name
    for name in CONFIGS
    if (name not in INCOMPLETE or INCOMPLETE[name] in MISSING_QUANTISATION)
    and name != "nvidia/MiniMax-M3-NVFP4"  # lacks its dense size too
]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_gives_facts_or_an_error_with_the_missing_key(name: str) -> None:
    if name in INCOMPLETE:
        with pytest.raises(FactError) as caught:
            checkpoint_from_config(CONFIGS[name], id=name)
        assert INCOMPLETE[name] in caught.value.what
        assert caught.value.means
        assert caught.value.do
    else:
        facts = checkpoint_from_config(CONFIGS[name], id=name)
        assert not facts.weights_known
        assert Checkpoint.model_validate_json(facts.model_dump_json()) == facts


@pytest.mark.parametrize("name", [name for name in KNOWN if name in COUNTED])
def test_parameters_of_real_models(name: str) -> None:
    """Against the model itself, built without weights; the summaries leave out a little of V4-Pro and Gemma 4."""
    assert facts_of(name).total_parameters == pytest.approx(COUNTED[name], rel=0.005)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_of_every_family(family: str) -> None:
    entry = FAMILIES[family]
    assert checkpoint_from_config(entry["config"], id=family).total_parameters == pytest.approx(
        entry["parameters"], rel=0.001
    )


TINY: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
}
LING_3: Mapping[str, Any] = {
    "model_type": "bailing_hybrid",
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "short_conv_kernel_size": 4,
    "no_kda_lora": True,
    "gated_attention_proj_granularity_type": "head_wise",
}


MIMO_V2: Mapping[str, Any] = {
    "model_type": "mimo_v2",
    "num_attention_heads": 8,
    "head_dim": 24,
    "v_head_dim": 16,
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 24,
    "swa_v_head_dim": 16,
    "sliding_window": 128,
    "hybrid_layer_pattern": [0, 1, 1, 0],
    "moe_layer_freq": [0, 1, 1, 1],
    "num_shared_experts": None,
}


@pytest.mark.parametrize(
    ("model", "changes", "counted", "kv_bytes"),
    [
        (
            "BailingMoeForCausalLM",
            {"model_type": "bailing_moe", "num_shared_experts": 2, "first_k_dense_replace": 0},
            330_304,
            512,
        ),
        (
            "BailingMoeV2ForCausalLM",
            {"model_type": "bailing_moe_v2", "moe_shared_expert_intermediate_size": 32},
            268_504,
            512,
        ),
        ("MiMoV2ForCausalLM", MIMO_V2, 313_448, 960),
        (
            "BailingMoeV3ForCausalLM",
            {**LING_3, "num_key_value_heads": 4, "layer_group_size": 3},
            1_558_272,
            2304,
        ),
    ],
)
def test_parameters_of_models_that_vllm_alone_has(
    model: str, changes: Mapping[str, object], counted: int, kv_bytes: int
) -> None:
    """Counted in the classes of vLLM 0.32, built with these sizes on a CPU; KV is what their layers' cache specs say."""
    facts = checkpoint_from_config({**TINY, **changes}, id=model)
    assert facts.total_parameters == pytest.approx(counted, rel=0.001)
    assert facts.kv_bytes_per_token(dtype="bf16") == kv_bytes


LING_MINI_2 = {
    "model_type": "bailing_moe",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 157_184,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "moe_shared_expert_intermediate_size": 512,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
}
LING_3_FLASH = {
    **LING_3,
    "hidden_size": 2560,
    "intermediate_size": 6144,
    "num_hidden_layers": 42,
    "layer_group_size": 6,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "vocab_size": 157_184,
    "num_experts": 512,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "moe_shared_expert_intermediate_size": 768,
    "num_shared_experts": 1,
    "first_k_dense_replace": 2,
    "num_nextn_predict_layers": 1,
}
LING_3_TINY = {
    **LING_3_FLASH,
    "hidden_size": 1536,
    "intermediate_size": 4608,
    "num_hidden_layers": 24,
    "layer_group_size": 4,
    "num_attention_heads": 16,
    "q_lora_rank": 256,
    "num_experts": 128,
    "moe_intermediate_size": 512,
    "moe_shared_expert_intermediate_size": 512,
    "first_k_dense_replace": 1,
}


@pytest.mark.parametrize(
    ("config", "total", "active", "source"),
    [
        (
            FAMILIES["granitemoehybrid"]["config"],
            32.2,
            9.0,
            "Granite 4.0 H-Small, model card: 32B, 9B active",
        ),
        (FAMILIES["lfm2"]["config"], 0.354484, None, "LFM2-350M: 354,483,968 in its safetensors"),
        (
            FAMILIES["ernie4_5_moe"]["config"],
            21.8,
            3.0,
            "ERNIE-4.5-21B-A3B: 21B, 3B active, as its name says",
        ),
        (
            FAMILIES["gemma3n_text"]["config"],
            6.83,
            4.5,
            "Gemma 3n E4B: effectively 4 billion, as its name says",
        ),
        (LING_MINI_2, 16.26, 1.4, "Ling-mini-2.0, model card: 16B, 1.4B active"),
        (LING_3_FLASH, 124.4, 5.1, "Ling-3.0-flash, benchmarks: 124B, 5.1B active; 127B with its MTP layer"),
        (LING_3_TINY, 7.9, 1.3, "Ling-3.0-tiny, model card: 7.9B, 1.3B active"),
    ],
)
def test_sizes_of_published_models(
    config: Mapping[str, object], total: float, active: float | None, source: str
) -> None:
    facts = checkpoint_from_config(config, id="x")
    assert facts.total_parameters / 1e9 == pytest.approx(total, rel=0.002), source
    if active is not None:
        # Cards may count the embedding, of which a token reads one row.
        assert facts.active_parameters / 1e9 == pytest.approx(active, rel=0.03, abs=0.4), source


def named_size(name: str) -> tuple[float, float | None] | None:
    """Total and active billions that a name speaks of."""
    found = re.search(r"-(\d+(?:\.\d+)?)B(?:-A(\d+(?:\.\d+)?)B)?(?![A-Za-z])", name)
    return (float(found[1]), float(found[2]) if found[2] else None) if found else None


@pytest.mark.parametrize("name", [name for name in KNOWN if named_size(name) and "Llama-4" not in name])
def test_sizes_are_those_in_the_name(name: str) -> None:
    facts, size = facts_of(name), named_size(name)
    assert size is not None
    total, active = size
    # Names are cut to whole billions, and may or may not count the embedding.
    assert facts.total_parameters / 1e9 == pytest.approx(total, rel=0.06, abs=0.7)
    if active is not None:
        assert facts.active_parameters / 1e9 == pytest.approx(active, rel=0.11, abs=0.6)


@pytest.mark.parametrize("name", [name for name in KNOWN if "params_active_b" in CONFIGS[name]])
def test_sizes_are_those_published(name: str) -> None:
    facts = facts_of(name)
    assert facts.total_parameters / 1e9 == pytest.approx(CONFIGS[name]["params_total_b"], rel=0.06)
    assert facts.active_parameters / 1e9 == pytest.approx(CONFIGS[name]["params_active_b"], rel=0.1, abs=0.6)


PUBLISHED = [
    # model, quantisation that counts instead of the config's, published size, its unit, tolerance, who says so
    ("openai/gpt-oss-120b", None, 65.2, 1e9, 0.01, "model card"),
    ("MiniMaxAI/MiniMax-M2.7", None, 230, 1e9, 0.01, "Hub, sum of files"),
    ("deepseek-ai/DeepSeek-V4-Flash", None, 160, 1e9, 0.05, "benchmarks.csv: DeepSeek-V4-Flash"),
    ("Qwen/Qwen3-235B-A22B", "gptq-int4", 115.3, GIB, 0.02, "benchmarks.csv: Qwen3-235B-A22B-GPTQ-Int4"),
    (
        "Qwen/Qwen3.5-122B-A10B",
        "int4-autoround",
        67,
        1e9,
        0.08,
        "benchmarks.csv: Qwen3.5-122B-A10B-int4-AutoRound",
    ),
    (
        "Qwen/Qwen3.5-397B-A17B",
        "int4-autoround",
        199,
        GIB,
        0.05,
        "benchmarks.csv: Qwen3.5-397B-A17B-int4-AutoRound",
    ),
    ("Qwen/Qwen3.5-27B", "fp8", 29, GIB, 0.08, "benchmarks.csv: Qwen3.6-27B-FP8"),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "nvfp4", 75, GIB, 0.05, "models.yaml: 75 GiB on disk"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "nvfp4", 19, 1e9, 0.08, "benchmarks.csv, no decimals"),
    ("nvidia/MiniMax-M2.7-NVFP4", None, 130.6, 1e9, 0.04, "benchmarks.csv: MiniMax-M2.7-NVFP4-GB10"),
    ("google/gemma-4-26B-A4B", None, 49, GIB, 0.05, "benchmarks.csv: gemma-4-26B-A4B-it"),
    ("zai-org/GLM-5.2", "nvfp4", 465, 1e9, 0.06, "benchmarks.csv: GLM-5.2-NVFP4"),
    ("deepseek-ai/DeepSeek-V3", None, 688.6, 1e9, 0.01, "Hub, metadata.total_size of the index"),
]


@pytest.mark.parametrize(("name", "quantization", "size", "unit", "tolerance", "source"), PUBLISHED)
def test_estimated_sizes_are_those_published(
    name: str, quantization: str | None, size: float, unit: float, tolerance: float, source: str
) -> None:
    facts = checkpoint_from_config(CONFIGS[name], id=name, quantization=quantization)
    assert facts.bytes_on_disk / unit == pytest.approx(size, rel=tolerance), source


def test_a_published_total_that_contradicts_the_shape_is_an_error() -> None:
    name = "Qwen/Qwen3-Next-80B-A3B-Instruct"
    with pytest.raises(FactError, match=r"120 billion parameters are published, 79\.7 follow"):
        checkpoint_from_config({**CONFIGS[name], "params_total_b": 120}, id=name)


def test_vision_declared_without_a_size_is_listed_as_unsized() -> None:
    facts = facts_of("Qwen/Qwen3.5-27B")
    assert facts.declares_vision
    assert facts.unsized == (Part.VISION,)
    tower = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "spatial_merge_size": 2}
    config = {**CONFIGS["Qwen/Qwen3.5-27B"], "vision_config": tower}
    described = checkpoint_from_config(config, id="x")
    assert described.unsized == ()
    # 27.36 billion in transformers 5.19: 460 million are the tower.
    assert described.parameters_by_part()[Part.VISION] == pytest.approx(460.7e6, rel=0.02)


def test_the_tower_of_glm_4_5v() -> None:
    tower = {
        "model_type": "glm4v_moe",
        "depth": 24,
        "hidden_size": 1536,
        "out_hidden_size": 4096,
        "intermediate_size": 13_696,
        "spatial_merge_size": 2,
    }
    facts = checkpoint_from_config({**FAMILIES["glm4v_moe"]["config"], "vision_config": tower}, id="x")
    # 892,498,432 in transformers 5.19.
    assert facts.parameters_by_part()[Part.VISION] == pytest.approx(892.5e6, rel=0.01)


def test_an_mtp_head_is_estimated_and_not_counted_in_the_total() -> None:
    facts = facts_of("deepseek-ai/DeepSeek-V3")
    # DeepSeek says 14 billion, of which 2.8 are copies of embedding and head that engines share.
    assert facts.parameters_by_part()[Part.MTP] / 1e9 == pytest.approx(11.6, rel=0.05)
    assert facts.mtp_layers is None
    assert facts.declared_mtp_layers == 1
