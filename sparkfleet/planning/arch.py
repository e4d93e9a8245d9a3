"""What of a checkpoint matters to memory and speed: parameters and bits by part, layers by kind, KV and state sizes.

`from_checkpoint` makes an `Arch` of the facts of a checkpoint; `bench/shapes.py` makes one of what a published
measurement says about its model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from sparkfleet.facts.checkpoint import Checkpoint, LayerGroup, LayerKind
from sparkfleet.facts.checkpoint import Part as CheckpointPart
from sparkfleet.values import Value

PartKind = Literal["embedding", "head", "attention", "mlp", "experts", "shared", "vision", "mtp"]

_Bits = Callable[["Part"], float]

BF16_BITS = 16.0

EXACT = (1.0, 1.0, 1.0)
"""`Layers.pool_factor` where shapes are known and pages hold nothing but KV."""


class Part(Value):
    """One kind of weights. `params` counts all of it, `active` what one token passes through."""

    kind: PartKind
    params: float
    active: float
    bits: float = BF16_BITS
    """Bits per parameter as stored, scales included."""

    @property
    def bytes(self) -> float:
        """Size on disk and in memory, bytes."""
        return self.params * self.bits / 8


class Layers(Value):
    """How many layers of each kind, and what they keep per token and per sequence."""

    full: int = 0
    sliding: int = 0
    linear: int = 0
    """Linear attention, GDN, KDA, Mamba: a state per sequence instead of KV per token."""
    moe: int = 0
    mlp: int = 0
    window: int = 0
    """Tokens that a sliding layer keeps."""
    kv_elements: float = 0.0
    """Cached elements per token, summed over the full layers."""
    read_elements: float | None = None
    """Elements that a decode step reads per token of context where sparse attention looks at less than it keeps."""
    sliding_elements: float = 0.0
    """Cached elements per token, summed over the sliding layers."""
    state_bytes: float = 0.0
    """Recurrent state per sequence, summed over the linear layers, bytes."""
    kv_heads: int = 1
    """How far KV can be split by tensor parallelism; 1 for a latent (MLA) cache, which every rank keeps whole."""
    pool_factor: tuple[float, float, float] = EXACT
    """Bytes that a pool takes per byte of KV that it keeps, at least, mostly and at most: `POOLS`, or a guess at shapes."""
    packed_kv_bytes: float = 0.0
    """Bytes per cached element where engines have one layout, whatever precision is asked for; 0: what is asked for."""
    head_flops: float = 0.0
    """FLOPs per query token and context token, summed over the full layers."""
    window_flops: float = 0.0
    """The same for sliding layers, and for what sparse attention picks, for context inside the window."""

    @property
    def blocks(self) -> int:
        """Layers that mix tokens: as many as there are all-reduces after attention."""
        return self.full + self.sliding + self.linear

    @property
    def mixers(self) -> int:
        """Layers that mix channels: as many as there are all-reduces after an MLP or the experts."""
        return self.moe + self.mlp


class Arch(Value):
    """A checkpoint as memory and speed see it."""

    name: str
    family: str = ""
    """Checkpoints of one family have equal shapes, whatever their format: see `shape_family`."""
    hidden: int
    vocab: int
    parts: tuple[Part, ...]
    layers: Layers
    experts: int = 0
    top_k: int = 0
    mtp_layers: int = 0
    vision: bool = False
    basis: str = "config"
    """Where the shapes come from, e.g. "config.json" or "parameter counts"."""

    def part(self, kind: PartKind) -> Part | None:
        """The part of that kind, or None."""
        return next((part for part in self.parts if part.kind == kind), None)

    @property
    def params(self) -> float:
        """Parameters in all."""
        return sum(part.params for part in self.parts)

    @property
    def active(self) -> float:
        """Parameters that one token passes through."""
        return sum(part.active for part in self.parts)

    @property
    def bytes(self) -> float:
        """Bytes of all weights."""
        return sum(part.bytes for part in self.parts)

    @property
    def moe(self) -> bool:
        """Has routed experts."""
        return self.experts > 0

    @property
    def kind(self) -> str:
        """Class of architecture for factors: dense or moe, and whether its attention is hybrid, sliding or latent."""
        mixing = "moe" if self.moe else "dense"
        if self.layers.linear:
            return f"{mixing}-hybrid"
        return f"{mixing}-sliding" if self.layers.sliding else mixing

    def quantised(self, bits: Mapping[PartKind, float], total_bytes: float | None = None) -> Arch:
        """The same shapes with `bits` per part.

        `total_bytes` is the size of the weights where it is known: what the routed experts (or the MLPs of a dense
        model) leave over tells how the attention and the rest are stored, which no label says.
        """
        parts = tuple(part.model_copy(update={"bits": bits.get(part.kind, part.bits)}) for part in self.parts)
        if total_bytes is not None:
            parts = _fit_bits(parts, total_bytes)
        return self.model_copy(update={"parts": parts})


def _fit_bits(parts: tuple[Part, ...], total_bytes: float) -> tuple[Part, ...]:
    """Change the bits of attention and shared parts (then of everything linear) so that the sum is `total_bytes`."""
    soft = {"attention", "shared"}
    known = sum(part.bytes for part in parts if part.kind not in soft)
    params = sum(part.params for part in parts if part.kind in soft)
    if params > 0:
        bits = 8 * (total_bytes - known) / params
        if 3.0 <= bits <= BF16_BITS + 0.5:
            return _with_bits(parts, soft, lambda _: bits)
    linear = soft | {"mlp", "experts"}
    fixed = sum(part.bytes for part in parts if part.kind not in linear)
    scale = (total_bytes - fixed) / max(1.0, sum(part.bytes for part in parts if part.kind in linear))
    if 0.6 <= scale <= 1.6:
        return _with_bits(parts, linear, lambda part: min(BF16_BITS, part.bits * scale))
    return parts


def _with_bits(parts: tuple[Part, ...], kinds: set[str], bits: _Bits) -> tuple[Part, ...]:
    return tuple(
        part.model_copy(update={"bits": bits(part)}) if part.kind in kinds else part for part in parts
    )


COMPRESSED = (2.0, 2.3, 3.1)
"""DeepSeek V4: compressed entries, index keys, windows and the compressors' states share pages, and how full these are
depends on the release and the longest context. Published at 1,048,576 tokens: 10.3 KB a token (26.3 GiB hold 2.74M;
Reederey87), 7 KB (19.85 GiB, 3.03M; tonyd2wild), 7.8 KB (NVFP4, 18.08 GiB, 2.49M), of 3.4 that are kept in FP8. An early
image took 30.7 (nepenth)."""
SPARSE_GROUPED = (1.0, 2.4, 2.9)
"""Qwen3.8-Flash-Next: its index keeps keys of its own beside the KV, in pages of the same size. Published on two nodes:
16.46 GiB hold 992,584 tokens in FP8 (WeZZard), 21.28 GiB 736,837 in BF16 (MiaAI-Lab)."""
GUESSED = (0.3, 1.0, 1.5)
"""Shapes that are not known but estimated from parameter counts: DeepSeek-V4.1-Flash keeps 0.31 of what that says
(tonyd2wild), Laguna-S-2.1 0.75 (MiaAI-Lab)."""
POOLS = {"qwen4_exp": SPARSE_GROUPED}
"""`Layers.pool_factor` by `model_type`, where the layers do not say it."""

_PART_KINDS: Mapping[CheckpointPart, PartKind] = {
    CheckpointPart.ATTENTION: "attention",
    CheckpointPart.LINEAR_ATTENTION: "attention",
    CheckpointPart.MLP: "mlp",
    CheckpointPart.EXPERTS: "experts",
    CheckpointPart.SHARED_EXPERTS: "shared",
    CheckpointPart.ROUTER: "shared",
    CheckpointPart.NORMS: "shared",
    CheckpointPart.OTHER: "shared",
    CheckpointPart.EMBEDDING: "embedding",
    CheckpointPart.HEAD: "head",
    CheckpointPart.VISION: "vision",
    CheckpointPart.MTP: "mtp",
    CheckpointPart.DRAFT: "mtp",
}


def from_checkpoint(checkpoint: Checkpoint) -> Arch:
    """The facts of a checkpoint as memory and speed see them, with the bits that are stored."""
    params: dict[PartKind, float] = defaultdict(float)
    active: dict[PartKind, float] = defaultdict(float)
    stored: dict[PartKind, float] = defaultdict(float)
    for portion in checkpoint.weights:
        kind = _PART_KINDS[portion.part]
        params[kind] += portion.parameters
        active[kind] += portion.parameters * checkpoint.active_share(portion.part)
        stored[kind] += portion.bytes
    parts = [
        Part(kind=kind, params=count, active=active[kind], bits=8 * stored[kind] / count)
        for kind, count in params.items()
        if count > 0
    ]
    if checkpoint.tie_word_embeddings:  # one matrix: stored as the embedding, read as the head
        embedding = next(part for part in parts if part.kind == "embedding")
        parts[parts.index(embedding)] = embedding.model_copy(update={"active": 0.0})
        parts.append(embedding.model_copy(update={"kind": "head", "params": 0.0}))
    arch = Arch(
        name=checkpoint.id,
        hidden=checkpoint.hidden_size,
        vocab=checkpoint.vocab_size,
        parts=tuple(parts),
        layers=_layers(checkpoint),
        experts=checkpoint.experts,
        top_k=checkpoint.experts_per_token,
        mtp_layers=checkpoint.declared_mtp_layers if checkpoint.mtp_layers is None else checkpoint.mtp_layers,
        vision=bool(checkpoint.vision),
        basis="safetensors headers" if checkpoint.weights_known else "config.json",
    )
    return arch.model_copy(update={"family": shape_family(arch)})


def from_size(name: str, params: float, bits: float) -> Arch:
    """A dense model of which only the size is known: layers as models of that size have, all weights in one part."""
    billions = params / 1e9
    layers = max(4, round(34 * (billions / 8) ** 0.27))
    return Arch(
        name=name,
        hidden=64 * round(64 * (billions / 8) ** 0.36),
        vocab=150_000,
        parts=(Part(kind="mlp", params=params, active=params, bits=bits),),
        layers=Layers(full=layers, mlp=layers, kv_elements=2048.0 * layers, kv_heads=8),
        basis="its name",
    )


def shape_family(arch: Arch) -> str:
    """A name for all checkpoints with the same shapes, e.g. "moe-hybrid-2048x40x256": width, layers, experts."""
    experts = f"x{arch.experts}" if arch.experts else ""
    return f"{arch.kind}-{arch.hidden}x{arch.layers.blocks}{experts}"


def _layers(checkpoint: Checkpoint) -> Layers:
    found = _Sums()
    for group in checkpoint.layers:
        _count(group, found)
    compressed = any(group.tokens_per_entry > 1 for group in checkpoint.layers)
    mixers = found.plain or found.full + found.sliding + found.linear
    return Layers(
        full=found.full,
        sliding=found.sliding,
        linear=found.linear,
        moe=mixers if checkpoint.experts else 0,
        mlp=0 if checkpoint.experts else mixers,
        window=found.window,
        kv_elements=found.kv,
        read_elements=found.read if found.read < found.kv else None,
        sliding_elements=found.sliding_kv,
        state_bytes=found.state,
        kv_heads=found.kv_heads or 1,
        pool_factor=COMPRESSED if compressed else POOLS.get(checkpoint.model_type, EXACT),
        packed_kv_bytes=1.0 if compressed else 0.0,
        head_flops=found.head_flops,
        window_flops=found.window_flops,
    )


@dataclass(slots=True)
class _Sums:
    full: int = 0
    sliding: int = 0
    linear: int = 0
    plain: int = 0
    window: int = 0
    kv: float = 0.0
    read: float = 0.0
    sliding_kv: float = 0.0
    state: float = 0.0
    kv_heads: int = 0
    head_flops: float = 0.0
    window_flops: float = 0.0


PICKED = 2048
"""Entries that sparse attention reads per query (`index_topk` of DeepSeek V3.2 and GLM-5; 512 in DeepSeek V4)."""
INDEX_HEADS = 64
"""Heads of the index that picks them (DeepSeek V3.2, V4; 32 in GLM-5)."""


def _count(group: LayerGroup, sums: _Sums) -> None:
    """Add one kind of layers; a latent has key and value in one and is kept whole by every rank."""
    n, width = group.layers, float(group.kv_heads * (group.key_dim + group.value_dim))
    flops = 2.0 * n * group.query_heads * (group.key_dim + (group.value_dim or group.key_dim))
    latent = group.kind is LayerKind.MLA or group.value_dim == 0
    if group.kind is LayerKind.NONE:
        sums.plain += n
    elif group.kind is LayerKind.LINEAR:
        sums.linear += n
        sums.state += n * (group.state.bytes() if group.state else 0)
    elif group.kind is LayerKind.SLIDING and not latent:
        sums.sliding += n
        sums.sliding_kv += n * width
        sums.window, sums.window_flops = group.window or sums.window, sums.window_flops + flops
    elif group.kind is LayerKind.SLIDING:  # a latent that keeps its window only (DeepSeek V4's first layers)
        sums.full += n
        sums.window_flops += flops
    else:
        _count_full(group, sums, n, width, flops, latent=latent)


def _count_full(group: LayerGroup, sums: _Sums, n: int, width: float, flops: float, *, latent: bool) -> None:
    """Layers that look at all context, through an index where they are sparse."""
    sums.full += n
    sums.kv += n * (width + group.index_dim) / group.tokens_per_entry
    sums.read += n * (group.index_dim or width) / group.tokens_per_entry
    sums.kv_heads = 1 if latent else max(sums.kv_heads, group.kv_heads)
    if group.index_dim:
        sums.head_flops += 2.0 * n * INDEX_HEADS * group.index_dim / group.tokens_per_entry
        sums.window, sums.window_flops = PICKED, sums.window_flops + flops
    else:
        sums.head_flops += flops / group.tokens_per_entry
