"""A Llama of two small layers: its config, and its weights as the header of a safetensors file describes them."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from sparkfleet.checkpoints.io.safetensors_header import BITS

Weights = Iterable[tuple[str, str, tuple[int, ...]]]

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


def safetensors(weights: Weights) -> tuple[dict[str, object], int]:
    """The header of a file with these tensors one after another, and the bytes of its data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape in weights:
        end = position + prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    return header, position


def llama_weights(layers: int = 2, dtype: str = "BF16") -> list[tuple[str, str, tuple[int, ...]]]:
    """The tensors of `LLAMA`, without its head."""
    found: list[tuple[str, str, tuple[int, ...]]] = [("model.embed_tokens.weight", "BF16", (256, 64))]
    for layer in range(layers):
        start = f"model.layers.{layer}."
        found += [
            (start + "self_attn.q_proj.weight", dtype, (64, 64)),
            (start + "self_attn.k_proj.weight", dtype, (32, 64)),
            (start + "self_attn.v_proj.weight", dtype, (32, 64)),
            (start + "self_attn.o_proj.weight", dtype, (64, 64)),
            (start + "mlp.gate_proj.weight", dtype, (128, 64)),
            (start + "mlp.up_proj.weight", dtype, (128, 64)),
            (start + "mlp.down_proj.weight", dtype, (64, 128)),
            (start + "input_layernorm.weight", "BF16", (64,)),
            (start + "post_attention_layernorm.weight", "BF16", (64,)),
        ]
    return [*found, ("model.norm.weight", "BF16", (64,))]
