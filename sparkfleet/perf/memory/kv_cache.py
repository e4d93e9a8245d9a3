"""Bytes that a rank caches for its requests: keys and values, recurrent states, and a drafter's own cache.

    kv_bytes, state_bytes    of all requests at their full length; draft_kv_bytes of a drafter's layers
    pool_bytes               of a cache whose size is set in tokens
    block_tokens             of vLLM's hybrid models, whose states are pages of the same pool

Exact if shapes are known; the bands around them are `memory`'s.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sparkfleet.perf.draft_methods import PARALLEL_DRAFTS
from sparkfleet.perf.latency.step_costs import DRAFT_LAYERS
from sparkfleet.perf.memory.engine_sizes import MemoryConfig, fullest_share
from sparkfleet.perf.model_shape import ModelShape

STATE_SLOTS = {"sglang": 4}
"""States kept per running request if it is more than one (MiaAI-Lab/Qwen3.8-27B-SGLang: S = 4 slots)."""
MTP = ("mtp", "nextn")
"""Methods whose drafts are made by a layer of the checkpoint that is like its others."""
BLOCK = 16
"""Tokens of a block, and what the blocks of vLLM's hybrid models are multiples of."""
DRAFT_KV = 2048
"""Cached elements per token of one layer of a dense drafter: 8 heads of 128, keys and values, as most have."""

STAGING_MARGIN = 1.1
"""Blocks on the way to the disk are padded: each has the size of the largest group's
(vLLM 0.32, v1/kv_offload/cpu/spec.py)."""


def kv_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """KV cache of all requests at their full length on one rank; heads are copied if there are more ranks than heads."""
    layers, pages = shape.layers, _pages(shape, run)
    one = layers.kv_elements * pages.tokens * pages.full
    inside = min(run.context, (layers.window or run.context) + BLOCK)  # of layers that DCP leaves whole
    # A sliding layer drops what left its window after each pass: one chunk at a time is kept beside the windows.
    passing = min(run.context - inside, run.chunk)
    sliding = layers.sliding_elements * (inside * run.concurrency + passing)
    return (one * run.concurrency + sliding) * _kept(shape, run) * layers.pool_factor[1]


def pool_bytes(shape: ModelShape, run: MemoryConfig, tokens: int, sliding: float) -> float:
    """KV cache of `tokens` tokens of all requests on one rank; sliding layers keep `sliding` for each of them.

    A drafter's is counted with it: its layers are given as many tokens.
    """
    layers = shape.layers
    each = layers.kv_elements + sliding * layers.sliding_elements
    drafter = draft_kv_bytes(shape, run.model_copy(update={"context": tokens, "concurrency": 1, "dcp": 1}))
    return each * tokens * _kept(shape, run) * layers.pool_factor[1] + drafter


def state_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """Recurrent states of all requests on one rank; verified drafts keep one more each."""
    slots = STATE_SLOTS.get(run.engine, 1) + (run.k if run.method != "none" else 0)
    return one_state_bytes(shape, run) * slots * run.concurrency


def draft_kv_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """A drafter's KV cache on one rank, in the precision of the model's: all its layers, or one of an MTP or EAGLE head."""
    if run.method in ("none", "ngram"):
        return 0.0
    if run.draft is not None:
        alone = run.model_copy(update={"pp": 1, "dcp": 1, "method": "none", "draft": None})
        return kv_bytes(run.draft, alone) + state_bytes(run.draft, alone)
    if run.method in PARALLEL_DRAFTS:
        run = run.model_copy(update={"dcp": 1})  # each rank keeps such a drafter's whole cache
    layers, pages = shape.layers, _pages(shape, run)
    tokens = run.concurrency * pages.tokens
    if run.method in PARALLEL_DRAFTS:
        return draft_layers(run) * DRAFT_KV * tokens * run.kv_bytes / min(run.tp, 8)
    mixers = layers.full or layers.sliding  # the head mixes tokens as the model's own layers do
    each = (layers.kv_elements or layers.sliding_elements) / max(1, mixers)
    one_stage = _kept(shape, run) * run.pp
    return draft_layers(run) * each * pages.full * tokens * one_stage * layers.pool_factor[1]


def staging_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """Memory through which vLLM moves KV to its disk and back: a request of the whole context and one prefill chunk.

    A request is loaded only once all of it is in this pool. With a smaller one than its prompt vLLM 0.32 evicts the blocks
    that it has just read for those that it reads next, and the request waits without end or gets nothing
    (tests/engines/test_real_kv_disk.py drives its own classes).
    """
    one = run.model_copy(update={"context": run.context + run.chunk, "concurrency": 1})
    _, mid, high = shape.layers.pool_factor
    kv = (kv_bytes(shape, one) + draft_kv_bytes(shape, one)) * high / mid
    return STAGING_MARGIN * (kv + state_bytes(shape, one))


def block_tokens(shape: ModelShape, run: MemoryConfig) -> int:
    """Tokens of a block of vLLM's hybrid models: as many as one linear layer's state is long. 0 if blocks are not so."""
    layers = shape.layers
    if run.engine != "vllm" or not (layers.linear and layers.full and layers.kv_elements):
        return 0
    state = layers.state_bytes / layers.linear / run.tp
    return BLOCK * max(1, math.ceil(state / _token_bytes(shape, run) / BLOCK))


def whole_block(shape: ModelShape, run: MemoryConfig) -> int:
    """The least prefill step that has room for a block of a hybrid model: the power of two above it, 0 if there is none.

    With less vLLM stops at its start ("block_size (2096) must be <= max_num_batched_tokens (2048)").
    """
    block = block_tokens(shape, run)
    return 1 << (block - 1).bit_length() if block else 0


class _Pages(NamedTuple):
    """KV cache of one request in an engine's pool."""

    tokens: int
    """A rank's part of its context, in whole blocks."""
    full: float = 1.0
    """Layers that are counted per layer with KV: groups of unlike layers are filled up to one size."""
    state: float = 0.0
    """Bytes of one slot of all linear layers on a rank; 0 if states are not pages."""


def _pages(shape: ModelShape, run: MemoryConfig) -> _Pages:
    """vLLM's pool has pages of one size for layers of all kinds (v1/core/kv_cache_utils.py, platforms/interface.py).

    A hybrid model's block has as many tokens as a linear layer's state is long, and a group of layers as many as the
    rarer kind has, or the commoner if they are nearly equal. 35.45 GiB hold 8.5057 requests of 131,072 tokens of a
    Qwen3.8-27B (740 pages of 16 layers, 84 + 3 a request), and 6 GiB 2.3256 of 262,144 of a Qwen3.6-35B-A3B: jschmied.
    """
    layers, block = shape.layers, block_tokens(shape, run)
    local = math.ceil(run.context / run.dcp)
    if not block:
        return _Pages(local)
    token = _token_bytes(shape, run)
    same = layers.full + (draft_layers(run) if run.method in MTP and run.draft is None else 0)
    few, many = sorted((same, layers.linear))
    group = many if many < 1.5 * few else few
    linear = group * math.ceil(layers.linear / group)
    full = group * math.ceil(same / group) / same
    return _Pages(block * math.ceil(local / block), full, linear * block * token / run.pp)


def _token_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """Bytes on a rank that one full layer keeps per token."""
    return shape.layers.kv_elements / shape.layers.full * _kept(shape, run) * run.pp


def one_state_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """Bytes of one slot of all linear layers on a rank."""
    paged = _pages(shape, run).state
    return paged or shape.layers.state_bytes / (run.tp * run.pp)


def _kept(shape: ModelShape, run: MemoryConfig) -> float:
    """Bytes on the fullest rank per element of all of a stage's KV: heads are not divided."""
    heads = fullest_share(shape.layers.kv_heads, run.tp)
    return (shape.layers.packed_kv_bytes or run.kv_bytes) * heads / run.pp


def draft_layers(run: MemoryConfig) -> int:
    """Layers of a drafter whose shapes are not known."""
    return DRAFT_LAYERS if run.method in PARALLEL_DRAFTS else 1
