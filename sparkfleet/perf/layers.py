"""Layers of a model by kind, with what each keeps and computes: KV, states, FLOPs of attention."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.values import Value

EXACT = (1.0, 1.0, 1.0)
"""`Layers.pool_factor` if shapes are known and pages hold nothing but KV."""
COMPRESSED = (2.0, 2.2, 3.0)
"""DeepSeek V4: compressed entries, index keys, windows and the compressors' states share pages, and how full these are
depends on the release and the longest context. Published at 1,048,576 tokens: 10.3 KB a token (26.3 GiB hold 2.74M;
Reederey87), 7 KB (19.85 GiB, 3.03M; tonyd2wild), 7.8 KB (NVFP4, 18.08 GiB, 2.49M), of 3.4 that are kept in FP8. An early
image took 30.7 (nepenth)."""
SPARSE_GROUPED = (1.0, 2.4, 2.9)
"""Qwen3.8-Flash-Next: its index keeps keys of its own beside the KV, in pages of the same size. Published on two nodes:
16.46 GiB hold 992,584 tokens in FP8 (WeZZard), 21.28 GiB 736,837 in BF16 (MiaAI-Lab)."""
SHARED_LATENTS = (1.0, 3.2, 3.5)
"""DeepSeek V4.1: four layers keep latents and index keys, and pages hold windows of the others beside them. Published on
each of four nodes: 5.15 GiB hold 1,070,168 tokens (tonyd2wild), 5.2 KB a token of 1.6 that its elements have in FP8."""
POOLS = {"qwen4_exp": SPARSE_GROUPED, "deepseek_v41": SHARED_LATENTS}
"""`Layers.pool_factor` by `model_type`, if the layers do not determine it."""


class Layers(Value):
    """Layers by kind, and the bytes each keeps per token and per sequence."""

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
    """Elements that a decode step reads per token of context if sparse attention reads less than it keeps."""
    sliding_elements: float = 0.0
    """Cached elements per token, summed over the sliding layers."""
    state_bytes: float = 0.0
    """Recurrent state per sequence, summed over the linear layers, bytes."""
    state_elements: float = 0.0
    """Its elements, for engines that keep all of them in one precision."""
    kv_heads: int = 1
    """Largest number of ranks over which tensor parallelism splits the KV cache; 1 for a latent (MLA) cache, which
    every rank keeps whole."""
    pool_factor: tuple[float, float, float] = EXACT
    """Bytes that a pool takes per byte of KV that it keeps, at least, mostly and at most: `POOLS`, or a guess at shapes."""
    packed_kv_bytes: float = 0.0
    """Bytes per cached element if engines have one layout for every precision; 0: by the precision."""
    head_flops: float = 0.0
    """FLOPs per query token and context token, summed over the full layers."""
    window_flops: float = 0.0
    """The same for sliding layers, and for what sparse attention picks, for context inside the window."""
    query_elements: float = 0.0
    """Elements of a token's queries and of its attention's outputs, summed over the full layers; a latent's as they are
    multiplied with it."""
    gathers_context: bool = False
    """True if full layers have dense latents, which a prefill with DCP gathers in place of the queries."""

    @property
    def blocks(self) -> int:
        """Layers that mix tokens: as many as there are all-reduces after attention."""
        return self.full + self.sliding + self.linear

    @property
    def mixers(self) -> int:
        """Layers that mix channels: as many as there are all-reduces after an MLP or the experts."""
        return self.moe + self.mlp


def layers_of(checkpoint: Checkpoint) -> Layers:
    """The layers of a checkpoint, summed by kind."""
    found = _Sums()
    for group in checkpoint.layers:
        _count(group, found)
    compressed = any(group.tokens_per_entry > 1 for group in checkpoint.layers)
    window = found.window or max((tokens for _, tokens in found.bounded), default=0)
    return Layers(
        full=found.full,
        sliding=found.sliding,
        linear=found.linear,
        moe=checkpoint.moe_layers,
        mlp=checkpoint.dense_layers,
        window=window,
        kv_elements=found.kv,
        read_elements=found.read if found.read < found.kv else None,
        sliding_elements=found.sliding_kv,
        state_bytes=found.state,
        state_elements=found.state_elements,
        kv_heads=found.kv_heads or found.sliding_kv_heads or 1,
        pool_factor=POOLS.get(checkpoint.model_type, COMPRESSED if compressed else EXACT),
        packed_kv_bytes=1.0 if compressed else 0.0,
        head_flops=found.head_flops,
        window_flops=sum(flops * tokens for flops, tokens in found.bounded) / max(1, window),
        query_elements=found.queries,
        gathers_context=found.dense_latents,
    )


@dataclass(slots=True)
class _Sums:
    full: int = 0
    sliding: int = 0
    linear: int = 0
    window: int = 0
    """Of the layers whose cache is no longer than that."""
    kv: float = 0.0
    read: float = 0.0
    sliding_kv: float = 0.0
    state: float = 0.0
    state_elements: float = 0.0
    kv_heads: int = 0
    sliding_kv_heads: int = 0
    head_flops: float = 0.0
    queries: float = 0.0
    dense_latents: bool = False
    bounded: list[tuple[float, int]] = field(default_factory=list)
    """(FLOPs per query token and token that is read, most of these), for layers that do not read all context."""


def _count(group: LayerGroup, sums: _Sums) -> None:
    """Add one kind of layers; a latent has key and value in one and is kept whole by every rank."""
    n, width = group.layers, float(group.kv_heads * (group.key_dim + group.value_dim))
    flops = 2.0 * n * group.query_heads * (group.prefill_dim or group.key_dim + group.value_dim)
    latent = group.kind is LayerKind.MLA or group.value_dim == 0
    if group.kind is LayerKind.LINEAR:
        sums.linear += n
        sums.state += n * (group.state.bytes() if group.state else 0)
        sums.state_elements += n * (group.state.elements if group.state else 0)
    elif group.kind is LayerKind.SLIDING and not latent:
        sums.sliding += n
        sums.sliding_kv += n * width
        sums.sliding_kv_heads = max(sums.sliding_kv_heads, group.kv_heads)
        sums.window = group.window or sums.window
        sums.bounded.append((flops, group.window or 0))
    elif group.kind is LayerKind.SLIDING:  # a latent that keeps its window only (DeepSeek V4's first layers)
        sums.full += n
        sums.bounded.append((flops, group.window or 0))
    elif group.kind is not LayerKind.NONE:
        _count_full(group, sums, n, width, flops, latent=latent)


def _count_full(group: LayerGroup, sums: _Sums, n: int, width: float, flops: float, *, latent: bool) -> None:
    """Layers that look at all context, through an index if they are sparse."""
    index = group.index_dim / group.index_pool
    sums.full += n
    sums.kv += n * (width + index) / group.tokens_per_entry
    sums.read += n * (index if group.picked else width) / group.tokens_per_entry
    sums.kv_heads = 1 if latent else max(sums.kv_heads, group.kv_heads)
    sums.queries += n * group.query_heads * (group.key_dim + (group.value_dim or group.key_dim))
    sums.dense_latents |= latent and not group.picked
    if group.picked:
        sums.head_flops += 2.0 * n * group.index_heads * index / group.tokens_per_entry
        sums.bounded.append((flops, group.picked + (group.window or 0)))
        return
    sums.head_flops += flops / group.tokens_per_entry
    if group.window:
        sums.bounded.append((flops, group.window))
