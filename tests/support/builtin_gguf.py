"""GGUF files of the built-in tiny models, written from their own checkpoints: what convert_hf_to_gguf.py makes of them.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_F32, _BF16 = 0, 30
"""Types of tensors (ggml.h)."""
MOSTLY_BF16 = 32
NORMAL, CONTROL = 1, 3
"""Kinds of tokens."""

HEAD_NAMES = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
}
"""Tensors of draft heads (EAGLE-3, DFlash) that no model has."""
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "hidden_norm": "attn_norm_2",
}
ADDED_TO = ("attn_output", "ffn_down")
"""Matrices whose products a layer adds to its input: with zeros it gives out what it was given."""


TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\n<tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content %}
        {{- message.content }}
    {%- endif %}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}
            {{- '<tool_call>\\n{"name": "' }}
            {{- call.function.name }}
            {{- '", "arguments": ' }}
            {%- if call.function.arguments is string %}
                {{- call.function.arguments }}
            {%- else %}
                {{- call.function.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""The checkpoint's own template, with tools in the form of Qwen's: llama.cpp derives a parser of calls from it."""


class Tensor(NamedTuple):
    """A tensor with its GGUF name and type; the dimensions in GGUF's order, the fastest first."""

    name: str
    shape: tuple[int, ...]
    kind: int
    data: bytes


def write_builtin_gguf(checkpoint: Path, path: Path) -> Path:
    """Writes the checkpoint in this directory (Qwen3, BF16, one safetensors file) as one GGUF file. Returns its path."""
    write_gguf(path, metadata_of(checkpoint), tuple(tensors_of(checkpoint / "model.safetensors")))
    return path


def write_builtin_target(checkpoint: Path, path: Path) -> Path:
    """The same with one more layer, which changes nothing: llama.cpp gives drafts the input of a layer, never the output of
    the last one, which the heads of the built-in models read. Returns its path."""
    tensors = list(tensors_of(checkpoint / "model.safetensors"))
    metadata = metadata_of(checkpoint)
    last, layers = f"blk.{metadata['qwen3.block_count'] - 1}.", metadata["qwen3.block_count"]
    for one in [one for one in tensors if one.name.startswith(last)]:
        name = one.name.removeprefix(last)
        data = bytes(len(one.data)) if name.startswith(ADDED_TO) else one.data
        tensors.append(one._replace(name=f"blk.{layers}.{name}", data=data))
    write_gguf(path, {**metadata, "qwen3.block_count": layers + 1}, tensors)
    return path


def write_builtin_head(checkpoint: Path, target: Path, path: Path) -> Path:
    """Writes a draft head of the built-in models (EAGLE-3 or DFlash), with its target's vocabulary. Returns its path."""
    config = json.loads((checkpoint / "config.json").read_text())
    is_eagle = "Eagle3" in config["architectures"][0]
    arch = "eagle3" if is_eagle else "dflash"
    own = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
        "rope.dimension_count": config["head_dim"],
    }
    words = {key: one for key, one in metadata_of(target).items() if key.startswith("tokenizer.")}
    if is_eagle:
        own |= {
            "target_layers": config["eagle_aux_hidden_state_layer_ids"],
            "target_hidden_size": config["hidden_size"],
        }
    else:
        # The input of the layer after each.
        own |= {
            "target_layers": [layer + 1 for layer in config["dflash_config"]["target_layer_ids"]],
            "block_size": config["block_size"],
        }
        words["tokenizer.ggml.mask_token_id"] = config["dflash_config"]["mask_token_id"]
    tensors = list(tensors_of(checkpoint / "model.safetensors"))
    if is_eagle:
        tensors = [_interleaved(one, config) for one in tensors]
    general = {"general.architecture": arch, "general.name": path.stem, "general.file_type": MOSTLY_BF16}
    write_gguf(path, {**general, **{f"{arch}.{key}": one for key, one in own.items()}, **words}, tensors)
    return path


def _interleaved(one: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Rows of queries and keys in llama.cpp's order for Llama: pairs that are rotated together beside each other."""
    if not one.name.endswith(("attn_q.weight", "attn_k.weight")):
        return one
    size, row = config["head_dim"], len(one.data) // one.shape[1]
    order = (
        first + half * (size // 2) + pair
        for first in range(0, one.shape[1], size)
        for pair in range(size // 2)
        for half in (0, 1)
    )
    return one._replace(data=b"".join(one.data[at * row : (at + 1) * row] for at in order))


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
    """Writes a GGUF file. Whole numbers become uint32, lists of them int32."""
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
        for key, value in metadata.items():
            file.write(_text(key) + _typed(value))
        offset = 0
        for one in tensors:
            dimensions = struct.pack(f"<I{len(one.shape)}Q", len(one.shape), *one.shape)
            file.write(_text(one.name) + dimensions + struct.pack("<IQ", one.kind, offset))
            offset += _aligned(len(one.data))
        file.write(b"\0" * (_aligned(file.tell()) - file.tell()))
        for one in tensors:
            file.write(one.data.ljust(_aligned(len(one.data)), b"\0"))


def metadata_of(checkpoint: Path) -> dict[str, Any]:
    """The keys that llama.cpp reads for a Qwen3, from the checkpoint's config and tokenizer."""
    config = json.loads((checkpoint / "config.json").read_text())
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    special = {one["content"] for one in tokenizer["added_tokens"]}
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    merges = tokenizer["model"]["merges"]
    return {
        "general.architecture": "qwen3",
        "general.name": "tiny",
        "general.file_type": MOSTLY_BF16,
        "qwen3.block_count": config["num_hidden_layers"],
        "qwen3.context_length": config["max_position_embeddings"],
        "qwen3.embedding_length": config["hidden_size"],
        "qwen3.feed_forward_length": config["intermediate_size"],
        "qwen3.attention.head_count": config["num_attention_heads"],
        "qwen3.attention.head_count_kv": config["num_key_value_heads"],
        "qwen3.attention.key_length": config["head_dim"],
        "qwen3.attention.value_length": config["head_dim"],
        "qwen3.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "qwen3.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.token_type": [CONTROL if word in special else NORMAL for word in vocabulary],
        "tokenizer.ggml.merges": [one if isinstance(one, str) else " ".join(one) for one in merges],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.padding_token_id": config["pad_token_id"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def tensors_of(file: Path) -> Iterator[Tensor]:
    """The tensors of a safetensors file in BF16. Vectors become F32, which llama.cpp requires of norms."""
    raw = file.read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + size])
    for name, about in header.items():
        if name == "__metadata__":
            continue
        assert about["dtype"] == "BF16", name
        begin, end = (8 + size + at for at in about["data_offsets"])
        data, shape = raw[begin:end], tuple(reversed(about["shape"]))
        if len(shape) == 1:
            yield Tensor(_name(name), shape, _F32, _as_f32(data))
        else:
            yield Tensor(_name(name), shape, _BF16, data)


def _name(name: str) -> str:
    if name in NAMES or name in HEAD_NAMES:
        return (NAMES | HEAD_NAMES)[name]
    if name.startswith("midlayer."):
        name = f"model.layers.0.{name.removeprefix('midlayer.')}"
    number, _, part = name.removeprefix("model.").removeprefix("layers.").partition(".")
    return f"blk.{number}.{LAYER_NAMES[part.removesuffix('.weight')]}.weight"


def _as_f32(bf16: bytes) -> bytes:
    """The upper halves of F32, in the order of bytes of the file."""
    return b"".join(b"\0\0" + bf16[at : at + 2] for at in range(0, len(bf16), 2))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _typed(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
    return struct.pack(f"<IIQ{len(value)}i", _ARRAY, _INT32, len(value), *value)
