"""Shapes: parameters come out as their makers say, from configs and from the facts of a checkpoint alike."""

from __future__ import annotations

import pytest

from sparkfleet.accuracy.models import Stored, find_shape
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.memory.demand import demand
from sparkfleet.perf.memory.engine_sizes import MemoryConfig
from sparkfleet.perf.model_shape import ModelShape, from_checkpoint, from_counts
from sparkfleet.perf.prediction import MemoryUse


def shape(name: str) -> ModelShape:
    return find_shape(name, architectures(), Stored("bf16"))


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("openai/gpt-oss-120b", 116.8, 5.1),
        ("openai/gpt-oss-20b", 20.9, 3.6),
        ("Qwen/Qwen3-235B-A22B", 235, 22),
        ("deepseek-ai/DeepSeek-R1", 671, 37),
        ("deepseek-ai/DeepSeek-V4-Flash", 284, 13),
        ("MiniMaxAI/MiniMax-M2.7", 229, 10.4),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.6, 3.2),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", 120.7, 12.2),
        ("google/gemma-4-26B-A4B-it", 25.2, 3.8),
        ("Qwen/Qwen3.5-397B-A17B", 397, 16.5),
        ("zai-org/GLM-5.2", 744, 40.7),
        ("meta-models/Muse-Glimmer-30B", 27.8, 26.5),  # 29.6 with its vision encoder
    ],
)
def test_parameters_are_as_published(name: str, total: float, active: float) -> None:
    found = shape(name)
    assert _text(found) / 1e9 == pytest.approx(total, rel=0.02)
    assert found.active / 1e9 == pytest.approx(active, rel=0.06)


def _text(found: ModelShape) -> float:
    return sum(part.params for part in found.parts if part.kind not in ("mtp", "vision"))


def test_a_stored_size_tells_how_the_attention_is_stored() -> None:
    found = find_shape("Qwen3.6-35B-A3B", architectures(), Stored("nvfp4", total_bytes=23.6e9))
    assert found.bytes == pytest.approx(23.6e9, rel=0.01)
    attention, experts = found.part("attention"), found.part("experts")
    assert attention is not None
    assert experts is not None
    assert 8.0 < attention.bits < 12.0
    assert experts.bits == 4.5
    absurd = find_shape("Qwen3.6-35B-A3B", architectures(), Stored("nvfp4", total_bytes=500e9))
    assert absurd.bytes < 30e9


def test_counts_alone_give_sensible_shapes() -> None:
    dense, moe = from_counts("d", 8, 8), from_counts("m", 30, 3, notes="gdn hybrid")
    assert dense.params == pytest.approx(8e9, rel=0.1)
    assert dense.hidden == 4096
    assert not dense.moe
    assert moe.kind == "moe-hybrid"
    assert moe.active == pytest.approx(3e9, rel=0.1)
    assert moe.basis == "parameter counts"


@pytest.mark.parametrize(
    ("published", "family"),
    [
        ("AEON-7/Qwen3.6-27B-AEON-Ultimate-Uncensored-NVFP4", "dense-hybrid-5120x64"),
        ("unsloth/Qwen3.6-35B-A3B-GGUF/Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf", "moe-hybrid-2048x40x256"),
        ("r0b0tlab/Agents-A1-NVFP4", "moe-hybrid-2048x40x256"),
        ("LibertAIDAI/GLM-5.3-Flash-NVFP4", "moe-hybrid-4096x45x288"),
    ],
)
def test_siblings_share_a_family(published: str, family: str) -> None:
    assert shape(published).family == family


@pytest.mark.parametrize(
    ("name", "moe", "dense"),
    [
        ("deepseek-ai/DeepSeek-V3", 58, 3),
        ("moonshotai/Kimi-K2-Instruct", 60, 1),
        ("zai-org/GLM-5.2", 75, 3),
        ("stepfun-ai/Step-3.7-Flash", 42, 3),
        ("google/gemma-4-26B-A4B", 30, 0),  # each has a dense feed-forward beside its experts
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 24, 24),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 23, 0),
        ("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", 0, 17),
        ("Qwen/Qwen3-32B", 0, 64),
    ],
)
def test_layers_have_experts_or_none(name: str, moe: int, dense: int) -> None:
    found = shape(name).layers
    assert (found.moe, found.mlp) == (moe, dense)


def test_a_latent_costs_a_prefill_what_is_computed_from_it() -> None:
    """Per head 192 elements of a key and 128 of a value (DeepSeek-V2, arXiv 2405.04434; vLLM 0.32, mla_attention.py)."""
    assert shape("deepseek-ai/DeepSeek-V3").layers.head_flops == 2 * 128 * (192 + 128) * 61
    assert shape("moonshotai/Kimi-K2-Instruct").layers.head_flops == 2 * 64 * (192 + 128) * 61


def test_sparse_attention_reads_the_latents_that_its_index_picks() -> None:
    """576 elements against a query and 512 into the answer (vLLM 0.32, flashmla_sparse.py); the index looks at all."""
    found = shape("deepseek-ai/DeepSeek-V3.2").layers
    assert found.window == 2048
    assert found.window_flops == 2 * 128 * (576 + 512) * 61
    assert found.head_flops == 2 * 64 * 128 * 61
    assert shape("zai-org/GLM-5.2").layers.head_flops == 2 * 32 * 128 * 78  # 32 heads of its index, not 64


def test_index_keys_are_pooled() -> None:
    """GLM-5.3-Flash keeps one for four tokens, in the eleven of its 45 layers that attend."""
    found = shape("zai-org/GLM-5.3-Flash").layers
    assert found.full == 11
    assert found.kv_elements == 11 * (512 + 128 / 4)
    assert found.read_elements == 11 * 128 / 4


def test_a_vision_tower_that_a_config_declares_is_in_the_memory_until_the_weights_are_read():
    """Neither the tower nor the encoder's cache was counted for Qwen3.8-27B, whose weights nobody had read: 1.6 GiB."""
    declared = known_checkpoint("Qwen/Qwen3.8-27B-FP8")
    assert (declared.vision, declared.declares_vision) == (None, True)
    run = MemoryConfig(context=8192)
    with_tower = demand(from_checkpoint(declared), run)
    without = demand(from_checkpoint(declared.model_copy(update={"vision": False})), run)
    assert with_tower.of(MemoryUse.VISION_CACHE) > 0
    assert without.of(MemoryUse.VISION_CACHE) == 0
    assert with_tower.of(MemoryUse.WEIGHTS) > without.of(MemoryUse.WEIGHTS)
