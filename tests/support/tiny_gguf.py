"""GGUF files for tests: a writer of the format, and a small Llama."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

Tensors = Sequence[tuple[str, int, tuple[int, ...]]]
"""Name, ggml's number of the type, and shape, the contiguous dimension first."""

F32, F16, Q8_0, Q4_K, Q6_K, BF16, MXFP4 = 0, 1, 8, 12, 14, 30, 39
_SIZES = {
    F32: (1, 4),
    F16: (1, 2),
    Q8_0: (32, 34),
    Q4_K: (256, 144),
    Q6_K: (256, 210),
    BF16: (1, 2),
    MXFP4: (32, 17),
}
ALIGNMENT = 32


def text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def value(given: object) -> bytes:
    """A value with its type."""
    if isinstance(given, bool):
        return struct.pack("<I?", 7, given)
    if isinstance(given, int):
        return struct.pack("<II", 4, given)
    if isinstance(given, float):
        return struct.pack("<If", 6, given)
    if isinstance(given, str):
        return struct.pack("<I", 8) + text(given)
    assert isinstance(given, list)
    items = [value(item) for item in given]
    kind = items[0][:4] if items else struct.pack("<I", 4)
    return struct.pack("<I", 9) + kind + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)


def header(metadata: Mapping[str, object], tensors: Tensors, version: int = 3) -> bytes:
    content = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    content += b"".join(text(key) + value(given) for key, given in metadata.items())
    offset = 0
    for name, kind, shape in tensors:
        content += (
            text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", size) for size in shape)
        )
        content += struct.pack("<IQ", kind, offset)
        offset += padded(stored(kind, shape))
    return content


def gguf(metadata: Mapping[str, object], tensors: Tensors, version: int = 3, fill: bytes = b"\0") -> bytes:
    """A whole file, its weights filled with one byte."""
    start = header(metadata, tensors, version)
    data = sum(padded(stored(kind, shape)) for _, kind, shape in tensors)
    return start.ljust(padded(len(start)), b"\0") + fill * data


def stored(kind: int, shape: Sequence[int]) -> int:
    elements = 1
    for size in shape:
        elements *= size
    block, size = _SIZES[kind]
    return elements // block * size


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def llama_keys(**changes: object) -> dict[str, object]:
    """Keys of a Llama of two layers; a key `general__name` is `general.name`, any other one the architecture's."""
    keys: dict[str, object] = {
        "general.architecture": "llama",
        "general.license": "apache-2.0",
        "general.sampling.temp": 0.75,
        "general.sampling.top_k": 20,
        "llama.block_count": 2,
        "llama.context_length": 8192,
        "llama.embedding_length": 256,
        "llama.feed_forward_length": 512,
        "llama.attention.head_count": 8,
        "llama.attention.head_count_kv": 2,
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.ggml.tokens": ["a", "b"] * 300,
    }
    return keys | {key.replace("__", "."): given for key, given in changes.items()}


def llama_tensors(layers: int = 2, kind: int = Q4_K) -> list[tuple[str, int, tuple[int, ...]]]:
    found: list[tuple[str, int, tuple[int, ...]]] = [
        ("token_embd.weight", Q6_K, (256, 600)),
        ("output_norm.weight", F32, (256,)),
        ("output.weight", Q6_K, (256, 600)),
    ]
    for layer in range(layers):
        found += [
            (f"blk.{layer}.attn_norm.weight", F32, (256,)),
            (f"blk.{layer}.attn_q.weight", kind, (256, 256)),
            (f"blk.{layer}.attn_k.weight", kind, (256, 64)),
            (f"blk.{layer}.attn_v.weight", Q6_K, (256, 64)),
            (f"blk.{layer}.attn_output.weight", kind, (256, 256)),
            (f"blk.{layer}.ffn_norm.weight", F32, (256,)),
            (f"blk.{layer}.ffn_gate.weight", kind, (256, 512)),
            (f"blk.{layer}.ffn_up.weight", kind, (256, 512)),
            (f"blk.{layer}.ffn_down.weight", Q6_K, (512, 256)),
        ]
    return found


def llama_gguf(kind: int = Q4_K, fill: bytes = b"\0", **changes: object) -> bytes:
    return gguf(llama_keys(**changes), llama_tensors(kind=kind), fill=fill)


def llama_shards(count: int = 2, kind: int = Q4_K, fill: bytes = b"\0") -> list[bytes]:
    """The same Llama in several files, as llama-gguf-split makes them."""
    tensors = llama_tensors(kind=kind)
    size = -(-len(tensors) // count)
    files = []
    for number in range(count):
        split = {"split__no": number, "split__count": count, "split__tensors__count": len(tensors)}
        own = (
            llama_keys(**split)
            if number == 0
            else {key.replace("__", "."): one for key, one in split.items()}
        )
        files.append(gguf(own, tensors[number * size : (number + 1) * size], fill=fill))
    return files


def tower_gguf(kind: int = F16) -> bytes:
    """A vision tower."""
    keys: dict[str, object] = {"general.architecture": "clip", "clip.has_vision_encoder": True}
    return gguf(keys, [("v.patch_embd.weight", kind, (64, 64)), ("mm.0.weight", kind, (64, 256))])
