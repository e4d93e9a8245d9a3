"""Nemotron-NAS: blocks of all shapes, and the two published models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from sparkfleet.checkpoints.arch.layers import LayerKind
from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config, read_checkpoint
from sparkfleet.errors import FactError

Weights = list[tuple[str, str, tuple[int, ...]]]


def block(group: int | None, factor: float | None) -> dict[str, object]:
    """As published: heads that share a KV head, and the feed-forward as a factor; None if there is none."""
    attention = {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False}
    return {"attention": attention, "ffn": {"ffn_mult": factor, "no_op": factor is None}}


def config(blocks: Sequence[object], **changes: object) -> dict[str, object]:
    return {
        "model_type": "nemotron-nas",
        "hidden_size": 256,
        "intermediate_size": None,
        "num_hidden_layers": len(blocks),
        "num_attention_heads": 4,
        "num_key_value_heads": None,
        "vocab_size": 256,
        "block_configs": blocks,
        **changes,
    }


MIXED = [block(2, 5.25), block(None, 1.0), block(4, 2.625), block(2, None)]

Runs = Sequence[tuple[int, int | None, float | None]]

# fmt: off
SUPER_49B: Runs = [
    (1, 8, 2.625), (5, 8, 5.25), (2, None, 2.625), (3, 8, 5.25), (1, None, 3.28125), (30, 8, 5.25),
    (1, None, 1.3125), (2, None, 2.625), (1, None, 1.3125), (1, None, 5.25), (1, None, 1.3125),
    (1, None, 2.625), (3, None, 1.3125), (1, 8, 5.25), (1, None, 1.3125), (2, None, 1.0),
    (1, None, 1.3125), (3, None, 1.0), (2, None, 1.3125), (2, None, 0.5), (2, None, 1.0), (2, None, 0.5),
    (1, None, 1.0), (2, None, 0.5), (9, 8, 5.25),
]
ULTRA_253B: Runs = [
    (1, 16, 0.4875), (1, 16, 0.975), (6, 16, 1.4625), (1, 16, 1.95), (4, None, None), (3, 16, 1.95),
    (2, 16, 4.875), (6, None, None), (3, 16, 4.875), (5, None, None), (3, 16, 4.875), (1, 16, 2.4375),
    (3, None, None), (3, 16, 1.95), (1, None, 1.95), (1, 16, 4.875), (1, None, 4.875), (5, None, None),
    (4, 16, 4.875), (5, None, None), (4, 16, 4.875), (5, None, None), (4, 16, 4.875), (5, None, None),
    (4, 16, 4.875), (5, None, None), (1, 16, 4.875), (3, 16, 3.4125), (2, None, None), (1, 16, 2.925),
    (3, 16, 2.4375), (2, None, 2.4375), (1, 16, 2.4375), (1, None, None), (7, None, 2.4375),
    (1, 16, 2.4375), (5, None, None), (1, 16, 2.925), (1, 16, 4.875), (1, None, 4.875), (1, 16, 4.875),
    (8, None, None), (1, None, 36.5625), (8, None, None), (1, None, 39.0), (8, None, None),
    (1, None, 31.40625), (5, None, None), (1, None, 27.5625), (1, None, 1.95), (1, 16, 1.95),
    (1, 16, 2.4375), (1, None, None), (2, 16, 2.4375), (1, 16, 3.4125), (4, 16, 4.875), (1, 16, 2.4375),
]
# fmt: on
"""Of Llama-3_3-Nemotron-Super-49B-v1 and Llama-3_1-Nemotron-Ultra-253B-v1, as Megatron-Bridge copies their config.json
(llama_nemotron_config.py, 2cec89e0): so many layers, heads in a group, factor."""


def test_parameters_and_cache_are_those_of_the_model() -> None:
    facts = checkpoint_from_config(config(MIXED), id="x")
    # vLLM 0.32, DeciLMForCausalLM with these blocks: its parameters, and bytes per token of its cache specs.
    assert facts.total_parameters == 2_066_176
    assert facts.kv_bytes_per_token(dtype="bf16") == 1280
    assert facts.layer_counts() == {LayerKind.FULL: 3, LayerKind.NONE: 1}
    assert {group.kv_heads for group in facts.layers} == {2, 0, 1}


@pytest.mark.parametrize(
    ("runs", "hidden", "heads", "total", "attending"),
    [(SUPER_49B, 8192, 64, 49.87, 49), (ULTRA_253B, 16_384, 128, 253.4, 64)],
)
def test_published_sizes(runs: Runs, hidden: int, heads: int, total: float, attending: int) -> None:
    blocks = [block(group, factor) for count, group, factor in runs for _ in range(count)]
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "vocab_size": 128_256}
    facts = checkpoint_from_config(config(blocks, **sizes), id="x")
    assert facts.total_parameters / 1e9 == pytest.approx(total, rel=0.0005)
    assert facts.layer_counts()[LayerKind.FULL] == attending
    assert facts.kv_bytes_per_token(dtype="bf16") == attending * 8 * 128 * 2 * 2


def weights() -> Weights:
    """Of two layers: one that does nothing, and one that attends and has no feed-forward."""
    attention = "model.layers.1.self_attn."
    return [
        ("model.embed_tokens.weight", "BF16", (256, 256)),
        (attention + "q_proj.weight", "BF16", (256, 256)),
        (attention + "k_proj.weight", "BF16", (128, 256)),
        (attention + "v_proj.weight", "BF16", (128, 256)),
        (attention + "o_proj.weight", "BF16", (256, 256)),
        ("lm_head.weight", "BF16", (256, 256)),
    ]


def test_a_layer_without_attention_and_feed_forward_has_no_weights(
    make_checkpoint: Callable[..., Path],
) -> None:
    facts = read_checkpoint(make_checkpoint(config([block(None, None), block(2, None)]), weights()))
    assert facts.parameters_by_part()[Part.ATTENTION] == 2 * 256 * (256 + 128)
    assert facts.kv_bytes_per_token(dtype="bf16") == 2 * 64 * 2 * 2


def test_a_layer_whose_weights_are_missing_is_an_error(make_checkpoint: Callable[..., Path]) -> None:
    source = make_checkpoint(config([block(None, 1.0), block(2, None)]), weights())
    with pytest.raises(FactError, match="no weights for 1 of 2 layers"):
        read_checkpoint(source)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"block_configs": None}, "block_configs is missing"),
        ({"block_configs": []}, "a list of layers"),
        ({"block_configs": {"0": MIXED[0]}}, "a list of layers"),
        ({"block_configs": [1]}, "a list of objects"),
        ({"block_configs": [{"attention": {"no_op": True}}]}, "block 0: ffn is missing"),
        ({"block_configs": [{"attention": {}, "ffn": {"no_op": True}}]}, "n_heads_in_group is missing"),
        (
            {"block_configs": [{"attention": {"replace_with_linear": True}}]},
            "one matrix in place of the layer's part",
        ),
        ({"block_configs": [block(2, -1.0)]}, "ffn_mult is -1.0"),
        ({"num_hidden_layers": 5}, "has 4 entries for 5 layers"),
    ],
)
def test_unsupported_blocks_are_an_error(changes: Mapping[str, object], complaint: str) -> None:
    with pytest.raises(FactError) as caught:
        checkpoint_from_config({**config(MIXED), **changes}, id="x")
    assert complaint in caught.value.what
