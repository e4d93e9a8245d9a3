"""KV cache and state: formulas against what engines and their users report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_configs import CONFIGS, FAMILIES

from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.errors import FactError


def facts(name: str, quantization: str | None = None, **changes: object) -> Checkpoint:
    config = CONFIGS.get(name) or FAMILIES[name]["config"]
    return checkpoint_from_config({**config, **changes}, id=name, quantization=quantization)


@pytest.mark.parametrize(
    ("name", "dtype", "expected", "source"),
    [
        ("Qwen/Qwen3.5-27B", "fp8", 32_768, "benchmark notes: 16 full layers x 4 heads x 256 x 2"),
        ("Qwen/Qwen3.5-27B", "bf16", 65_536, "benchmark notes"),
        (
            "Qwen/Qwen3.5-35B-A3B",
            "fp8",
            10_240,
            "benchmark notes: 6 GiB hold 609,637 tokens, states included",
        ),
        ("Qwen/Qwen3-235B-A22B", "bf16", 192_512, "94 layers x 4 heads x 128 x 2 x 2 bytes"),
        ("meta-llama/Meta-Llama-3.1-70B", "bf16", 327_680, "80 layers x 8 heads x 128 x 2 x 2 bytes"),
        ("deepseek-ai/DeepSeek-V3", "bf16", 70_272, "61 layers x (512 + 64) x 2 bytes, once and not twice"),
        ("deepseek-ai/DeepSeek-V3", "fp8_ds_mla", 61 * 656, "vLLM 0.32: 656 bytes a token and layer"),
        ("deepseek-ai/DeepSeek-V3.2", "fp8_ds_mla", 61 * (656 + 132), "and 132 bytes of index"),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            "bf16",
            6_144,
            "6 attention layers x 2 heads x 128 x 2 x 2",
        ),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            "nvfp4",
            6_144 * 4.5 / 16,
            "4 bits and a scale per 16",
        ),
        ("kimi_linear", "bf16", 6 * 576 * 2, "6 latent layers of 27"),
        ("granitemoehybrid", "bf16", 4 * 8 * 128 * 4, "4 attention layers of 40"),
        ("falcon_h1", "bf16", 44 * 2 * 128 * 4, "all layers attend beside Mamba"),
        ("jamba", "bf16", 4 * 8 * 128 * 4, "one layer of 8"),
        ("lfm2", "bf16", 6 * 8 * 64 * 4, "6 layers of 16"),
        ("gemma3n_text", "bf16", 20 * 2 * 256 * 4, "the last 15 layers read the cache of earlier ones"),
        ("afmoe", "bf16", 32 * 4 * 128 * 4, "while no window is full"),
    ],
)
def test_kv_bytes_per_token(name: str, dtype: str, expected: float, source: str) -> None:
    assert facts(name).kv_bytes_per_token(dtype=dtype) == expected, source


def test_an_unknown_dtype_is_an_error() -> None:
    with pytest.raises(FactError, match='Unknown KV-cache dtype "fp3"'):
        facts("Qwen/Qwen3-8B").kv_bytes_per_token(dtype="fp3")
    with pytest.raises(FactError, match='Unknown state dtype "fp8"'):
        facts("Qwen/Qwen3.5-27B").state_bytes_per_sequence(dtype="fp8")
    with pytest.raises(FactError, match="Tensor parallelism is 0; it must be at least 1"):
        facts("Qwen/Qwen3-8B").kv_bytes_per_token(tp=0)


@pytest.mark.parametrize(("tp", "heads"), [(1, 4), (2, 2), (3, 2), (4, 1), (8, 1)])
def test_kv_heads_are_divided_until_every_rank_has_one(tp: int, heads: int) -> None:
    per_head = 94 * 128 * 2 * 2
    assert facts("Qwen/Qwen3-235B-A22B").kv_bytes_per_token(tp=tp) == heads * per_head


def test_a_latent_is_whole_on_every_rank() -> None:
    model = facts("deepseek-ai/DeepSeek-V3")
    assert model.kv_bytes_per_token(tp=8) == model.kv_bytes_per_token()


def test_sliding_layers_stop_at_their_window() -> None:
    model = facts("openai/gpt-oss-120b")
    per_layer = 8 * 64 * 2 * 2
    assert model.layer_counts() == {LayerKind.SLIDING: 18, LayerKind.FULL: 18}
    assert model.kv_bytes_per_token(kind=LayerKind.FULL) == 18 * per_layer
    assert model.kv_bytes_per_token(kind=LayerKind.SLIDING) == 18 * per_layer
    assert model.kv_bytes_per_token(kind=LayerKind.LINEAR) == 0
    assert {group.window for group in model.layers if group.kind is LayerKind.SLIDING} == {128}


def test_full_layers_of_gemma_4_have_heads_of_their_own() -> None:
    groups = {group.kind: group for group in facts("google/gemma-4-26B-A4B").layers}
    sliding, full = groups[LayerKind.SLIDING], groups[LayerKind.FULL]
    assert (sliding.layers, sliding.kv_heads, sliding.key_dim, sliding.window) == (25, 8, 256, 1024)
    assert (full.layers, full.kv_heads, full.key_dim, full.window) == (5, 2, 512, None)


def test_layers_that_share_a_cache_have_none_of_their_own() -> None:
    shared = facts("gemma4", num_kv_shared_layers=10)
    own = facts("gemma4")
    assert shared.layer_counts() == own.layer_counts()
    assert shared.kv_bytes_per_token() < own.kv_bytes_per_token()


def test_sliding_heads_of_mimo() -> None:
    config = {
        **CONFIGS["XiaomiMiMo/MiMo-V2-Flash"],
        "swa_num_attention_heads": 64,
        "swa_num_key_value_heads": 8,
    }
    model = checkpoint_from_config({**config, "swa_head_dim": 192, "swa_v_head_dim": 128}, id="x")
    assert model.kv_bytes_per_token(dtype="fp8") == 9 * 4 * 320 + 39 * 8 * 320
    # transformers writes none of these keys: its model doubles the KV heads of sliding layers by itself.
    unsaid = checkpoint_from_config(CONFIGS["XiaomiMiMo/MiMo-V2-Flash"], id="x")
    assert unsaid.kv_bytes_per_token(dtype="fp8") == model.kv_bytes_per_token(dtype="fp8")


def test_deepseek_v4_compresses_what_is_beyond_its_window() -> None:
    model = facts("deepseek-ai/DeepSeek-V4-Flash")
    assert model.layer_counts() == {LayerKind.MLA: 41, LayerKind.SLIDING: 2}
    by_ratio = {group.tokens_per_entry: group.layers for group in model.layers if group.kind is LayerKind.MLA}
    assert by_ratio == {4: 21, 128: 20}
    per_token = 21 * (584 + 132) / 4 + 20 * 584 / 128
    grown = model.kv_bytes_per_token(kind=LayerKind.MLA, dtype="fp8_ds_mla")
    assert grown == pytest.approx(per_token)


@pytest.mark.parametrize(
    ("name", "dtype", "expected", "source"),
    [
        ("Qwen/Qwen3.5-27B", "bf16", 78.4e6, "benchmark notes: 78.4 MB per slot"),
        (
            "Qwen/Qwen3.5-27B",
            None,
            48 * (48 * 128 * 128 * 4 + 10_240 * 3 * 2),
            "without mamba_ssm_dtype: 32 bits, as published pools of Qwen3.6 have them",
        ),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            None,
            23 * (64 * 64 * 128 * 4 + 6_144 * 3 * 2),
            "vLLM 0.32 mamba2_state_shape, FP32",
        ),
        (
            "kimi_linear",
            None,
            21 * (32 * 128 * 128 * 4 + 3 * 32 * 128 * 3 * 2),
            "vLLM 0.32 kda_state_shape, FP32",
        ),
        ("Qwen/Qwen3-8B", None, 0, "no linear layers"),
        (
            "granitemoehybrid",
            None,
            36 * (128 * 64 * 128 * 2 + 8_448 * 3 * 2),
            "vLLM 0.32 mamba2_state_shape, in the model's dtype",
        ),
        (
            "falcon_h1",
            None,
            44 * (24 * 128 * 256 * 2 + 3_584 * 3 * 2),
            "vLLM 0.32 mamba2_state_shape, in the model's dtype",
        ),
        (
            "jamba",
            None,
            28 * (8_192 * 16 * 2 + 8_192 * 3 * 2),
            "vLLM 0.32 mamba1_state_shape, in the model's dtype",
        ),
        ("lfm2", None, 10 * 1_024 * 2 * 2, "vLLM 0.32 short_conv_state_shape"),
    ],
)
def test_state_bytes_per_sequence(name: str, dtype: str | None, expected: float, source: str) -> None:
    assert facts(name).state_bytes_per_sequence(dtype=dtype) == pytest.approx(expected, rel=0.001), source


def test_the_state_is_in_the_dtype_of_the_config_and_divided_among_ranks() -> None:
    model = facts("Qwen/Qwen3.5-27B", mamba_ssm_dtype="float32")
    assert model.state_bytes_per_sequence() == 48 * (48 * 128 * 128 * 4 + 10_240 * 3 * 2)
    assert model.state_bytes_per_sequence(tp=2) * 2 == model.state_bytes_per_sequence()


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, {"full": 2, "sliding": 2}),
        ({"use_sliding_window": True, "max_window_layers": 3}, {"full": 3, "sliding": 1}),
        ({"use_sliding_window": False}, {"full": 4}),
        ({"model_type": "mistral"}, {"sliding": 4}),
        ({"model_type": "mistral", "sliding_window": None}, {"full": 4}),
        ({"model_type": "mistral", "sliding_window": 4096}, {"full": 4}),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 4}, {"sliding": 3, "full": 1}),
        ({"model_type": "gemma2"}, {"sliding": 2, "full": 2}),
        ({"model_type": "minimax_m2", "attn_type_list": [1, 1, 1, 1]}, {"full": 4}),
        ({"layer_types": ["chunked_attention"] * 4}, {"sliding": 4}),
        ({"layer_type_counts": {"full_attention": 1, "sliding_attention": 3}}, {"full": 1, "sliding": 3}),
    ],
)
def test_kinds_of_layers(llama: dict[str, object], change: dict[str, object], kinds: dict[str, int]) -> None:
    config = {**llama, "model_type": "qwen3", "num_hidden_layers": 4, "sliding_window": 512, **change}
    counts = checkpoint_from_config(config, id="x").layer_counts()
    assert {kind.value: count for kind, count in counts.items()} == kinds


def test_llama_4_attends_in_chunks_but_for_every_fourth_layer() -> None:
    model = facts("llama4", max_position_embeddings=1 << 20)
    assert model.layer_counts() == {LayerKind.SLIDING: 36, LayerKind.FULL: 12}
    assert {group.window for group in model.layers} == {8192, None}


def test_layers_of_falcon_h1_attend_and_keep_a_state() -> None:
    model = facts("falcon_h1", layers_block_type=["hybrid"] * 44)
    assert model.layer_counts() == {LayerKind.FULL: 44, LayerKind.LINEAR: 44, LayerKind.NONE: 44}
    assert [group.state is not None for group in model.layers] == [False, True, False]


@pytest.mark.parametrize("dim", ["auto", 64])
def test_mamba_heads_without_a_declared_size(dim: object) -> None:
    model = facts("bamba", mamba_d_head=dim)
    assert model.state_bytes_per_sequence() == 29 * (128 * 64 * 128 * 2 + (8_192 + 256) * 3 * 2)


LING = {
    "model_type": "bailing_hybrid",
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 256,
    "num_attention_heads": 4,
    "head_dim": 16,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "short_conv_kernel_size": 4,
    "no_kda_lora": True,
}


def test_ling_3_attends_in_the_last_layer_of_a_group_and_in_an_incomplete_group() -> None:
    model = checkpoint_from_config({**LING, "num_hidden_layers": 14, "layer_group_size": 6}, id="x")
    assert model.layer_counts() == {LayerKind.LINEAR: 10, LayerKind.MLA: 4}
    # vLLM 0.32 kda_state_shape: FP32, and 16 bits for the convolution.
    assert model.state_bytes_per_sequence() == 10 * (4 * 16 * 16 * 4 + 3 * 64 * 3 * 2)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"layer_types": ["full_attention", "quantum_attention"]},
            "layer type 'quantum_attention' is not known",
        ),
        ({"layer_types": ["full_attention"]}, "has 1 entries for 2 layers"),
        ({"layer_types": "full_attention"}, "expected a list of short texts"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M?"}, "layer type '?' is not known"),
        ({"model_type": "nemotron_h"}, "hybrid_override_pattern or layers_block_type is missing"),
        ({"model_type": "minimax_m2", "attn_type_list": [0, 1]}, "lightning attention"),
        ({"layer_types": ["linear_attention"] * 2}, "linear attention in a model of type 'llama'"),
        ({"model_type": "qwen3_next", "full_attention_interval": 0}, "expected between 1 and 4096"),
        ({"model_type": "deepseek_v4", "q_lora_rank": 8}, "compress_ratios is missing"),
        ({"model_type": "deepseek_v4", "layer_types": ["x", "y"]}, "layer type 'x' is not known"),
        ({"model_type": "granitemoehybrid"}, "hybrid_override_pattern or layers_block_type is missing"),
        ({"model_type": "lfm2"}, "hybrid_override_pattern or layers_block_type is missing"),
        ({"model_type": "jamba"}, "attn_layer_period is missing"),
        ({"model_type": "falcon_h1"}, "mamba_num_heads or mamba_n_heads is missing"),
        ({"model_type": "cwm"}, "layer_types is missing"),
        ({"model_type": "bailing_moe", "layer_group_size": 2}, "linear attention in a model of type"),
        ({"model_type": "inkling_text", "layer_types": ["hybrid", "hybrid"]}, "inkling_text is not known"),
        # Ling 2.5 has the name of Ling 3, and another linear attention.
        ({"model_type": "bailing_hybrid", "layer_group_size": 2}, "short_conv_kernel_size"),
        ({"num_hidden_layers": 4097}, "expected between 1 and 4096"),
        ({"num_hidden_layers": 0}, "expected between 1 and 4096"),
    ],
)
def test_unknown_layers_are_an_error(
    llama: dict[str, object], change: dict[str, object], complaint: str
) -> None:
    with pytest.raises(FactError) as caught:
        checkpoint_from_config({**llama, **change}, id="x")
    assert complaint in caught.value.what


GROUPS = st.builds(
    LayerGroup,
    kind=st.sampled_from([LayerKind.FULL, LayerKind.SLIDING, LayerKind.MLA]),
    layers=st.integers(1, 64),
    kv_heads=st.integers(1, 16),
    key_dim=st.sampled_from([64, 128, 576]),
    value_dim=st.sampled_from([0, 128]),
    window=st.none() | st.integers(1, 4096),
    tokens_per_entry=st.sampled_from([1, 4, 128]),
    index_dim=st.sampled_from([0, 128]),
)


@given(group=GROUPS, tp=st.integers(1, 16))
def test_a_token_takes_no_more_memory_on_more_ranks(group: LayerGroup, tp: int) -> None:
    alone = group.token_bytes()
    assert group.token_bytes(tp=tp) <= alone
    assert group.token_bytes(tp=tp) * tp >= alone - 1e-6 * alone
    assert group.token_bytes(dtype="fp8") <= alone
