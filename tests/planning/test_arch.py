"""Shapes: parameters come out as their makers say, from configs and from the facts of a checkpoint alike."""

from __future__ import annotations

import pytest

from sparkfleet.bench.shapes import find_arch, from_counts
from sparkfleet.facts.checkpoint import checkpoint_from_config
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.planning.arch import Arch, from_checkpoint


def arch(name: str) -> Arch:
    return find_arch(name, architectures(), total_b=None, active_b=None, notes="")


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
    found = arch(name)
    assert found.params / 1e9 == pytest.approx(total, rel=0.02)
    assert found.active / 1e9 == pytest.approx(active, rel=0.06)


def _text(found: Arch) -> float:
    return sum(part.params for part in found.parts if part.kind not in ("mtp", "vision"))


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3.5-27B",
        "Qwen/Qwen3.5-35B-A3B",
        "openai/gpt-oss-120b",
        "google/gemma-4-26B-A4B",
        "MiniMaxAI/MiniMax-M2.7",
        "deepseek-ai/DeepSeek-V4-Flash",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "meta-models/Muse-Glimmer-30B",
    ],
)
def test_a_checkpoint_and_its_summary_agree(name: str) -> None:
    exact = from_checkpoint(checkpoint_from_config(architectures()[name], id=name))
    summary = arch(name)
    assert exact.family == summary.family
    assert _text(exact) == pytest.approx(_text(summary), rel=0.02)
    assert exact.active == pytest.approx(summary.active, rel=0.05)
    assert exact.layers.kv_elements == pytest.approx(summary.layers.kv_elements, rel=0.1)
    assert exact.layers.kv_heads == summary.layers.kv_heads
    assert exact.layers.state_bytes == pytest.approx(summary.layers.state_bytes, rel=1.1)
    assert exact.layers.head_flops == pytest.approx(summary.layers.head_flops, rel=0.5)


def test_a_stored_size_tells_how_the_attention_is_stored() -> None:
    bits = {"attention": 8.1, "mlp": 4.5, "experts": 4.5, "shared": 8.1, "head": 16.0, "embedding": 16.0}
    sized = arch("Qwen3.6-35B-A3B").quantised(bits, 22.6e9)
    assert sized.bytes == pytest.approx(22.6e9, rel=0.01)
    attention, experts = sized.part("attention"), sized.part("experts")
    assert attention is not None
    assert experts is not None
    assert attention.bits > 8.1
    assert experts.bits == 4.5
    absurd = arch("Qwen3.6-35B-A3B").quantised(bits, 500e9)
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
    assert arch(published).family == family
