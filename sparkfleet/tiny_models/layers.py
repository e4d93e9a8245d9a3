"""The decoder layer of draft heads, as functions of tensors with the names of checkpoints.

transformers has no such layer: a draft head attends to states outside of its input.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional
from transformers import PreTrainedConfig

Weights = dict[str, torch.Tensor]
"""Tensors by their names in the checkpoint, such as "layers.0.self_attn.q_proj.weight"."""


class HeadShape(NamedTuple):
    """Shape of a head's layers: that of the model that it drafts for."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float
    theta: float
    """Base of the rotary embedding."""

    @classmethod
    def of(cls, config: PreTrainedConfig) -> HeadShape:
        """The shape of a Qwen2 or Qwen3."""
        return cls(
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocabulary=config.vocab_size,
            eps=config.rms_norm_eps,
            theta=config.rope_parameters["rope_theta"],
        )


class AttentionInputs(NamedTuple):
    """Further inputs of a layer's attention: states (rows, length, hidden), and their positions (rows, length)."""

    states: torch.Tensor
    places: torch.Tensor


def new_layer(
    prefix: str, shape: HeadShape, *, inputs: int = 1, bias: bool = False, qk_norm: bool = False
) -> Weights:
    """New weights of one layer, whose attention reads `inputs` times the hidden size."""
    heads, kv_heads = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    out = {
        "self_attn.q_proj": new_matrix(heads, shape.hidden * inputs),
        "self_attn.k_proj": new_matrix(kv_heads, shape.hidden * inputs),
        "self_attn.v_proj": new_matrix(kv_heads, shape.hidden * inputs),
        "self_attn.o_proj": new_matrix(shape.hidden, heads),
        "mlp.gate_proj": new_matrix(shape.intermediate, shape.hidden),
        "mlp.up_proj": new_matrix(shape.intermediate, shape.hidden),
        "mlp.down_proj": new_matrix(shape.hidden, shape.intermediate),
        "input_layernorm": torch.ones(shape.hidden),
        "post_attention_layernorm": torch.ones(shape.hidden),
    }
    if qk_norm:
        out |= {f"self_attn.{name}_norm": torch.ones(shape.head_dim) for name in "qk"}
    weights = {f"{prefix}{name}.weight": tensor for name, tensor in out.items()}
    if bias:
        sizes = {"q": heads, "k": kv_heads, "v": kv_heads}
        weights |= {f"{prefix}self_attn.{name}_proj.bias": torch.zeros(size) for name, size in sizes.items()}
    return weights


def new_matrix(outputs: int, inputs: int) -> torch.Tensor:
    """A random matrix, scaled so that states keep their magnitude."""
    return torch.randn(outputs, inputs) / inputs**0.5


class HeadLayer(NamedTuple):
    """A head, or one layer of it."""

    weights: Weights
    """Weights of the whole head."""
    shape: HeadShape
    prefix: str = ""
    """Prefix of the part's names among the weights."""

    def within(self, prefix: str) -> HeadLayer:
        """A part of this one."""
        return self._replace(prefix=self.prefix + prefix)

    def linear(self, name: str, states: torch.Tensor) -> torch.Tensor:
        """States multiplied by the matrix of that name, with its bias if there is one."""
        name = self.prefix + name
        return functional.linear(states, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, name: str, states: torch.Tensor) -> torch.Tensor:
        """RMS norm of the last dimension."""
        weight = self.weights[f"{self.prefix}{name}.weight"]
        return functional.rms_norm(states, weight.shape, weight, self.shape.eps)

    def has(self, name: str) -> bool:
        """True if the checkpoint has that matrix or norm."""
        return f"{self.prefix}{name}.weight" in self.weights


def attention(
    layer: HeadLayer,
    inputs: torch.Tensor,
    places: torch.Tensor,
    mask: torch.Tensor,
    seen: AttentionInputs | None = None,
) -> torch.Tensor:
    """Attention, from (rows, length, n) to (rows, length, hidden).

    Args:
        layer: the layer with the weights.
        inputs: already normalised.
        places: positions of the inputs in their documents (rows, length).
        mask: visible positions (rows, length, seen + length); `seen` comes first.
        seen: further states to attend to, also normalised.
    """
    states, there = inputs, places
    if seen is not None:
        states, there = torch.cat([seen.states, inputs], dim=1), torch.cat([seen.places, places], dim=1)
    query = _turned(_heads(layer, "q", inputs), places, layer.shape)
    key = _turned(_heads(layer, "k", states), there, layer.shape)
    value = _heads(layer, "v", states)
    out = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask.unsqueeze(1), enable_gqa=True
    )
    return layer.linear("self_attn.o_proj", out.transpose(1, 2).flatten(2))


def _heads(layer: HeadLayer, which: str, states: torch.Tensor) -> torch.Tensor:
    """Heads (rows, heads, length, head_dim), normalised by head if the checkpoint has such norms."""
    out = layer.linear(f"self_attn.{which}_proj", states)
    out = out.unflatten(-1, (-1, layer.shape.head_dim)).transpose(1, 2)
    name = f"self_attn.{which}_norm"
    return layer.norm(name, out) if layer.has(name) else out


def _turned(heads: torch.Tensor, places: torch.Tensor, shape: HeadShape) -> torch.Tensor:
    """Rotary embedding, in halves, as in Llama and Qwen."""
    half = shape.head_dim // 2
    speeds = shape.theta ** (-torch.arange(half) / half)
    angles = (places[:, None, :, None] * speeds).repeat(1, 1, 1, 2)
    first, second = heads[..., :half], heads[..., half:]
    return heads * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


def mlp(layer: HeadLayer, states: torch.Tensor) -> torch.Tensor:
    """The second half of a layer, with its norm and its residual."""
    inputs = layer.norm("post_attention_layernorm", states)
    gate = functional.silu(layer.linear("mlp.gate_proj", inputs))
    return states + layer.linear("mlp.down_proj", gate * layer.linear("mlp.up_proj", inputs))
