"""Parts of a model, and the part of each tensor by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import NamedTuple

from sparkfleet.values import Value


class Part(StrEnum):
    """A part of a model that is loaded, sharded and read in its own way."""

    ATTENTION = "attention"
    LINEAR_ATTENTION = "linear_attention"
    MLP = "mlp"
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared_experts"
    ROUTER = "router"
    EMBEDDING = "embedding"
    HEAD = "head"
    NORMS = "norms"
    VISION = "vision"
    MTP = "mtp"
    DRAFT = "draft"
    OTHER = "other"


class Portion(Value):
    """The weights of one part with one format of storage."""

    part: Part
    dtype: str
    """As the safetensors header calls it ("BF16", "U8", "I32"); packed weights hold several parameters per element."""
    format: str
    """Format for the engine: "bf16", "fp8", "nvfp4", "mxfp4", "int4", …; "scale" for scales and zeros."""
    parameters: int
    """0 for scales, zeros and other tensors that only serve to unpack."""
    bytes: int

    @property
    def loaded_bytes(self) -> int:
        """Bytes in an engine's memory: weights of 32 bits are loaded in 16, but for routers, which may stay as they are.

        vLLM 0.32 (config/model.py, `_resolve_auto_dtype`) and SGLang 0.5.23 (srt/configs/model_config.py,
        `_get_and_verify_dtype`) do so unless a `--dtype` is given.
        """
        return self.bytes // 2 if self.format == "fp32" and self.part is not Part.ROUTER else self.bytes

    def scaled(self, factor: float) -> Portion:
        """The same with its bytes times a factor."""
        return self.model_copy(update={"bytes": round(self.bytes * factor)})


HEAD_NAMES = frozenset({"lm_head", "embed_out"})
TOP_LEVEL_HEADS = frozenset({"head", "output"})
EMBEDDING_NAMES = frozenset(
    {
        "embed_tokens",
        "embed_tokens_per_layer",
        "embeddings",
        "embed",
        "wte",
        "wpe",
        "word_embeddings",
        "tok_embeddings",
        "ngram_embedding",
        "engram",
    }
)
VISION_NAMES = frozenset(
    {
        "visual",
        "vit",
        "vpm",
        "multi_modal_projector",
        "mm_projector",
        "patch_merge_mlp",
        "patch_merger",
        "img_projector",
    }
)
MTP_NAMES = frozenset({"mtp", "mtp_layers", "mtp_block", "nextn", "nextn_layers"})
DRAFT_PREFIXES = ("draft", "dspark", "dflash", "eagle", "medusa")
ROUTER_NAMES = frozenset(
    {"gate", "router", "shared_expert_gate", "tid2eid", "e_score_correction_bias", "expert_bias"}
)
EXPERT_NAMES = frozenset({"experts", "moe"})
LINEAR_NAMES = frozenset({"linear_attn", "mamba", "ssm"})
ATTENTION_NAMES = frozenset({"self_attn", "attn", "attention", "self_attention"})
ATTENTION_LEAVES = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"})
MLP_NAMES = frozenset({"mlp", "feed_forward", "ffn"})
MLP_LEAVES = frozenset(
    {"gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1_latent_proj", "fc2_latent_proj"}
)

_LAYER = re.compile(r"\blayers\.(\d{1,6})(?![\d*])")


def layer_of(name: str) -> int | None:
    """The number of the decoder layer in a tensor's name; None if there is none."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


class PartNames:
    """Assigns parts by names, for a model with `layers` decoder layers of which those in `linear` are linear.

    `dense`: it has no experts, so that a "shared" feed-forward (Granite 4) is its only one.
    """

    def __init__(self, layers: int, linear: Collection[int] = (), *, dense: bool = False) -> None:
        self.layers = layers
        self.dense = dense
        self.linear = frozenset(linear)
        self._known: dict[_Name, Part] = {}

    def part(self, name: str) -> Part:
        """The part of a tensor or module."""
        layer = layer_of(name)
        words = tuple(word for word in name.split(".") if not word.isdigit())
        key = _Name(words, layer in self.linear, layer is not None and layer >= self.layers, self.dense)
        part = self._known.get(key)
        if part is None:
            part = self._known[key] = next((part for part, fits in RULES if fits(key)), Part.OTHER)
        return part


class _Name(NamedTuple):
    """A name without its numbers."""

    words: tuple[str, ...]
    linear: bool
    beyond: bool
    """In a layer after the last one: DeepSeek and GLM store their MTP head there."""
    dense: bool

    def has(self, names: frozenset[str]) -> bool:
        return not names.isdisjoint(self.words)

    def speaks_of(self, *pieces: str) -> bool:
        return any(piece in word for word in self.words for piece in pieces)

    def starts(self, *prefixes: str) -> bool:
        return any(word.startswith(prefixes) for word in self.words)


RULES: tuple[tuple[Part, Callable[[_Name], bool]], ...] = (
    (Part.VISION, lambda name: name.has(VISION_NAMES) or name.speaks_of("vision", "image")),
    (Part.OTHER, lambda name: name.speaks_of("audio", "sound")),
    (Part.MTP, lambda name: name.has(MTP_NAMES) or name.beyond),
    (Part.DRAFT, lambda name: name.starts(*DRAFT_PREFIXES)),
    (Part.EMBEDDING, lambda name: name.has(EMBEDDING_NAMES)),
    (Part.HEAD, lambda name: name.has(HEAD_NAMES) or name.words[0] in TOP_LEVEL_HEADS),
    (Part.ROUTER, lambda name: name.has(ROUTER_NAMES)),
    (Part.MLP, lambda name: name.dense and "shared_mlp" in name.words),
    (Part.SHARED_EXPERTS, lambda name: name.starts("shared_expert", "share_expert", "shared_mlp")),
    (Part.EXPERTS, lambda name: name.has(EXPERT_NAMES)),
    # Kimi Linear gives its dense layers the same name.
    (Part.MLP, lambda name: "block_sparse_moe" in name.words and name.has(MLP_LEAVES)),
    (Part.EXPERTS, lambda name: "block_sparse_moe" in name.words),
    (Part.NORMS, lambda name: name.speaks_of("norm") or name.starts("ln_")),
    (Part.LINEAR_ATTENTION, lambda name: name.has(LINEAR_NAMES)),
    (Part.LINEAR_ATTENTION, lambda name: name.has(ATTENTION_NAMES) and name.linear),
    (Part.ATTENTION, lambda name: name.has(ATTENTION_NAMES | ATTENTION_LEAVES)),
    (Part.MLP, lambda name: name.has(MLP_NAMES | MLP_LEAVES)),
    # Nemotron-H names every layer "mixer", whatever its kind; LFM2 has convolutions.
    (Part.LINEAR_ATTENTION, lambda name: ("mixer" in name.words or "conv" in name.words) and name.linear),
)
"""In this order: the first match decides; a tensor without a match is OTHER."""
