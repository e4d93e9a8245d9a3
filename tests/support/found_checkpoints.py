"""Checkpoints in directories and in caches of the Hub, and nodes that are this machine with a cache of their own."""

import json

from sparkfleet.hostfacts.node import Gpu, NodeFacts, Processors, UnifiedMemory
from sparkfleet.remote.local import LocalChannel

INVENTORY = """
fleet: home
head: spark1
nodes:
  spark1: {address: 192.168.1.11, user: nvidia}
  spark2: {address: 192.168.1.12, user: nvidia}
"""
KEY = 'host_key: "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"'
COMMIT = "9c925d64d72725edaf899c6cb9c377fd0709d9c5"
KNOWN = "Qwen/Qwen3.6-27B-FP8"
CONFIG = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
    "vocab_size": 256, "max_position_embeddings": 512, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
ORDER = {
    "whole": {"config.json": 1 << 20},
    "begun": {},
    "header_bytes": 1 << 20,
    "suffixes": [".safetensors"],
}
SHAPES = {
    "model.embed_tokens": (256, 64),
    "model.layers.0.self_attn.q_proj": (64, 64),
    "model.layers.0.self_attn.k_proj": (32, 64),
    "model.layers.0.self_attn.v_proj": (32, 64),
    "model.layers.0.self_attn.o_proj": (64, 64),
    "model.layers.0.mlp.gate_proj": (128, 64),
    "model.layers.0.mlp.up_proj": (128, 64),
    "model.layers.0.mlp.down_proj": (64, 128),
}


def write(directory, *, weights=True, positions=512):
    """A checkpoint in a directory; `positions` makes it differ from others."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": positions}))
    if weights:
        header, at = {}, 0
        for name, (rows, columns) in SHAPES.items():
            end = at + 2 * rows * columns
            header[f"{name}.weight"] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [at, end]}
            at = end
        content = json.dumps(header).encode()
        with (directory / "model.safetensors").open("wb") as file:
            file.write(len(content).to_bytes(8, "little") + content)
            file.truncate(8 + len(content) + at)
    return directory


def cached(hub, name="Org/Name", **how):
    """The same in a cache of the Hub."""
    folder = hub / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return write(folder / "snapshots" / COMMIT, **how)


class Pretending(LocalChannel):
    """A node that is really this machine, with a Hub cache of its own."""

    def __init__(self, node, hub):
        super().__init__(node)
        self.hub = hub
        self.asked = 0

    async def run(self, argv, *, env=None, **more):
        self.asked += 1
        return await super().run(argv, env={**(env or {}), "HF_HUB_CACHE": str(self.hub)}, **more)


def spark():
    return NodeFacts(
        name="spark1",
        memory=UnifiedMemory(total=130_600_000_000, available=115_000_000_000),
        processors=Processors(count=20, machine="aarch64"),
        gpu=Gpu(name="NVIDIA GB10", driver="580.142"),
        engines={},
    )
