"""Checkpoints as they lie on disk: real safetensors headers before sparse, empty data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path

import pytest

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


def write_safetensors(path: Path, header: Mapping[str, object], data_bytes: int) -> None:
    content = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        file.truncate(8 + len(content) + data_bytes)


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


LlamaWeights = Callable[..., list[tuple[str, str, tuple[int, ...]]]]
Maker = Callable[..., Path]


@pytest.fixture
def llama() -> dict[str, object]:
    """A config that may be changed."""
    return dict(LLAMA)


@pytest.fixture(name="llama_weights")
def _llama_weights() -> LlamaWeights:
    return llama_weights


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Maker:
    """Write a checkpoint: its config, and its weights in one file or (a mapping) in several with an index."""

    def make(
        config: Mapping[str, object] | None = None,
        weights: Weights | Mapping[str, Weights] | None = None,
        name: str = "model",
    ) -> Path:
        directory = tmp_path / name
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(LLAMA if config is None else config))
        if isinstance(weights, Mapping):
            _write_shards(directory, weights)
        elif weights is not None:
            write_safetensors(directory / "model.safetensors", *safetensors(weights))
        return directory

    return make


def _write_shards(directory: Path, shards: Mapping[str, Weights]) -> None:
    entries = {}
    for file, weights in shards.items():
        listed = list(weights)
        write_safetensors(directory / file, *safetensors(listed))
        entries |= {name: file for name, _, _ in listed}
    index = {"metadata": {"total_size": 0}, "weight_map": entries}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
