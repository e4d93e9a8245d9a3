"""Bytes that llama.cpp allocates for its slots, beside the weights: each has its own part of the caches.

    kv_bytes            keys and values of the full and the sliding layers
    state_bytes         recurrent states, one more per draft token
    draft_kv_bytes      keys and values of the context that drafts
    checkpoint_bytes    copies of what cannot be rolled back, at the prompt's last positions
    compute_bytes       the graph of one pass, and that of the context that drafts

Checked against the buffers that llama-server b11434 logs without a GPU, for models of each kind with weights of zeros
(tests/perf/memory/test_llama_cpp.py has them). Only the compute buffer depends on the device.
"""

from __future__ import annotations

import math

from sparkfleet.knowledge.engines.llama_cpp_settings import CONTEXT_CHECKPOINTS
from sparkfleet.perf.draft_methods import PARALLEL_DRAFTS
from sparkfleet.perf.latency.step_costs import DRAFT_LAYERS
from sparkfleet.perf.memory.engine_sizes import MemoryConfig
from sparkfleet.perf.memory.kv_cache import DRAFT_KV
from sparkfleet.perf.model_shape import ModelShape

CELLS = 256
"""Tokens that each slot's caches are rounded up to (src/llama-context.cpp, src/llama-kv-cache-iswa.cpp)."""
STATE_BYTES = 4
"""Bytes of a state's elements: both kinds are kept in 32 bits (common/common.cpp)."""
WIDTHS = 18.0
"""Activations of one pass in floats per token and unit of width; logged were 14 (dense), 17 (experts), 22 (linear)."""
WIDTHS_BAND = (0.7, 2.0)
"""Times that, at least and at most: CUDA's kernels have pools of their own, which no log without a GPU shows."""


def cells(tokens: int) -> int:
    """Tokens that a cache is allocated for."""
    return CELLS * math.ceil(tokens / CELLS)


def kv_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """Keys and values of all slots; a sliding layer keeps its window and one pass of each."""
    layers = shape.layers
    kept = layers.packed_kv_bytes or run.kv_bytes
    full = layers.kv_elements * cells(run.context)
    sliding = layers.sliding_elements * window_cells(shape, run)
    return (full * layers.pool_factor[1] + sliding) * run.concurrency * kept


def window_cells(shape: ModelShape, run: MemoryConfig) -> int:
    """Tokens of a slot that a sliding layer has room for."""
    return cells(min(run.context, (shape.layers.window or run.context) + run.chunk))


DRAFT_ELEMENT_BYTES = 2
"""Bytes of an element of the cache that drafts are made with: f16, whatever the model's own is (`--spec-draft-type-k`)."""
ROLLED_BACK = ("mtp", "nextn", "eagle3", "dflash", "dflash2", "dspark")
"""Methods for which a recurrent state is kept per draft token (`need_n_rs_seq`). The others copy it before each step."""
FEATURE_LAYERS = {"eagle3": 3, "dflash": DRAFT_LAYERS, "dflash2": DRAFT_LAYERS, "dspark": DRAFT_LAYERS}
"""Layers of the model whose inputs a draft reads: three of EAGLE-3, of DFlash and DSpark as many as it has itself."""


def drafts(run: MemoryConfig) -> bool:
    """True if a second context drafts, beside the model's: of its own MTP layers, or of another file."""
    return run.method not in ("none", "ngram")


def draft_kv_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """Keys and values of the context that drafts, which is as long as the model's: of the draft's layers if its shapes are
    known, of one layer of the model (MTP, EAGLE-3), or of usual ones (DFlash, DSpark)."""
    if not drafts(run):
        return 0.0
    if run.draft is not None:
        alone = run.model_copy(update={"method": "none", "draft": None, "kv_bytes": DRAFT_ELEMENT_BYTES})
        return kv_bytes(run.draft, alone) + state_bytes(run.draft, alone)
    layers = shape.layers
    if run.method in PARALLEL_DRAFTS:
        each: float = DRAFT_LAYERS * DRAFT_KV
    else:
        mixers = layers.full or layers.sliding
        each = (layers.kv_elements or layers.sliding_elements) / max(1, mixers)
    return each * cells(run.context) * run.concurrency * (layers.packed_kv_bytes or DRAFT_ELEMENT_BYTES)


def one_state_bytes(shape: ModelShape) -> float:
    """One recurrent state of all linear layers."""
    return STATE_BYTES * shape.layers.state_elements


def state_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """Recurrent states of all slots: verified drafts keep one more each (`n_rs_seq`)."""
    return one_state_bytes(shape) * (1 + (run.k if run.method in ROLLED_BACK else 0)) * run.concurrency


def checkpoint_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """Copies of states and of sliding windows that slots keep of their prompts; in the same memory as the GPU's."""
    layers = shape.layers
    if not (layers.state_elements or layers.sliding_elements):
        return 0.0
    window = min(run.context, layers.window or 0)
    one = one_state_bytes(shape) + layers.sliding_elements * window * run.kv_bytes
    before_a_step = run.method != "none" and run.method not in ROLLED_BACK
    return (CONTEXT_CHECKPOINTS + before_a_step) * one * run.concurrency


def compute_bytes(shape: ModelShape, run: MemoryConfig) -> tuple[float, float, float]:
    """The graphs' buffers for one pass, as a band: activations, and the mask of 16 bits over the cells of a slot."""
    fixed, widths = _graph_bytes(shape, run)
    low, high = (one * widths for one in WIDTHS_BAND)
    if not drafts(run):
        return fixed + low, fixed + widths, fixed + high
    other, wide = _graph_bytes(run.draft or shape, run)
    features = 4.0 * FEATURE_LAYERS.get(run.method, 0) * shape.hidden * _pass_tokens(run)
    fixed += other + features
    return fixed + low, fixed + widths + wide, fixed + high + WIDTHS_BAND[1] * wide


def _graph_bytes(shape: ModelShape, run: MemoryConfig) -> tuple[float, float]:
    """Mask and outputs of a context for one pass, and its activations, bytes."""
    tokens = _pass_tokens(run)
    masked = cells(run.context) + (window_cells(shape, run) if shape.layers.sliding else 0)
    outputs = 4.0 * shape.vocab * run.concurrency * (1 + run.k)
    return 2.0 * tokens * masked + outputs, 4.0 * WIDTHS * shape.hidden * tokens


def _pass_tokens(run: MemoryConfig) -> int:
    return min(run.chunk, cells(run.context) * run.concurrency)
