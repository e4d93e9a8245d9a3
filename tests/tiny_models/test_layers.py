from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from sparkfleet.tiny_models import drafting, layers
from sparkfleet.tiny_models.layers import AttentionInputs, HeadLayer, HeadShape
from sparkfleet.tiny_models.training import Row


@pytest.fixture(scope="module")
def model(checkpoint):
    return AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="sdpa"
    ).requires_grad_(False)


@pytest.fixture(scope="module")
def part(model, checkpoint) -> HeadLayer:
    """The model's own weights, as if they were a head's."""
    tensors = {name: tensor.float() for name, tensor in load_file(checkpoint / "model.safetensors").items()}
    return HeadLayer(tensors, HeadShape.of(model.config), "model.")


ROWS = [
    Row([5, 6, 7, 8, 9, 10], [1.0] * 6, [0, 1, 2, 3, 4, 5]),
    Row([11, 6, 12, 8, 3, 10], [1.0] * 6, [0, 1, 2, 3, 4, 5]),
]
CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, -1, -1)


def test_a_layer_does_what_transformers_does(model, part):
    """Attention with grouped heads and their norms, rotary places, the MLP, residuals and norms."""
    lesson = drafting.lesson(model, ROWS)
    for number, (before, after) in enumerate(zip(lesson.streams, lesson.streams[1:], strict=False)):
        layer = part.within(f"layers.{number}.")
        inputs = layer.norm("input_layernorm", before)
        out = layers.mlp(layer, before + layers.attention(layer, inputs, lesson.places, CAUSAL))
        torch.testing.assert_close(out, after, rtol=1e-4, atol=1e-4)
    last = part.norm("norm", lesson.streams[-1])
    torch.testing.assert_close(last @ lesson.output.T, lesson.logits, rtol=1e-4, atol=1e-4)


def test_further_states_count_as_if_they_were_in_the_input(part):
    layer = part.within("layers.0.")
    inputs, places = torch.randn(2, 6, part.shape.hidden), torch.arange(6).expand(2, -1)
    whole = layers.attention(layer, inputs, places, CAUSAL)
    seen = AttentionInputs(inputs[:, :4], places[:, :4])
    split = layers.attention(layer, inputs[:, 4:], places[:, 4:], CAUSAL[:, 4:], seen)
    torch.testing.assert_close(split, whole[:, 4:], rtol=1e-4, atol=1e-5)


def test_a_new_layer_has_the_requested_parts(part):
    plain = layers.new_layer("x.", part.shape)
    assert len(plain) == 9
    wide = layers.new_layer("x.", part.shape, inputs=2, bias=True, qk_norm=True)
    assert wide["x.self_attn.q_proj.weight"].shape[1] == 2 * plain["x.self_attn.q_proj.weight"].shape[1]
    added = {name.removeprefix("x.self_attn.") for name in wide.keys() - plain.keys()}
    assert added == {"q_norm.weight", "k_norm.weight", "q_proj.bias", "k_proj.bias", "v_proj.bias"}
