"""Bytes that llama.cpp allocates for its slots, beside the weights: each has its own part of the caches.

    kv_bytes            keys and values of the full and the sliding layers
    state_bytes         recurrent states, one more per draft token
    checkpoint_bytes    copies of what cannot be rolled back, at the prompt's last positions
    compute_bytes       the graph of one pass; twice for a context of MTP beside the model's

Checked against the buffers that llama-server b11434 logs without a GPU, for models of each kind with weights of zeros
(tests/perf/memory/test_llama_cpp.py has them). Only the compute buffer depends on the device.
"""

from __future__ import annotations

import math

from sparkfleet.knowledge.engines.llama_cpp_settings import CONTEXT_CHECKPOINTS
from sparkfleet.perf.memory.engine_sizes import MemoryConfig
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


def draft_kv_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """Keys and values of an MTP layer: a context of its own, as long as the model's."""
    layers = shape.layers
    if run.method == "none":
        return 0.0
    mixers = layers.full or layers.sliding
    each = (layers.kv_elements or layers.sliding_elements) / max(1, mixers)
    return each * cells(run.context) * run.concurrency * (layers.packed_kv_bytes or run.kv_bytes)


def one_state_bytes(shape: ModelShape) -> float:
    """One recurrent state of all linear layers."""
    return STATE_BYTES * shape.layers.state_elements


def state_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """Recurrent states of all slots: verified drafts keep one more each (`n_rs_seq`)."""
    return one_state_bytes(shape) * (1 + (run.k if run.method != "none" else 0)) * run.concurrency


def checkpoint_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """Copies of states and of sliding windows that slots keep of their prompts; in the same memory as the GPU's."""
    layers = shape.layers
    if not (layers.state_elements or layers.sliding_elements):
        return 0.0
    window = min(run.context, layers.window or 0)
    one = one_state_bytes(shape) + layers.sliding_elements * window * run.kv_bytes
    return CONTEXT_CHECKPOINTS * one * run.concurrency


def compute_bytes(shape: ModelShape, run: MemoryConfig) -> tuple[float, float, float]:
    """The graph's buffer for one pass, as a band: activations, and the mask of 16 bits over the cells of a slot."""
    tokens = min(run.chunk, cells(run.context) * run.concurrency)
    masked = cells(run.context) + (window_cells(shape, run) if shape.layers.sliding else 0)
    contexts = 1 if run.method == "none" else 2
    mask = 2.0 * tokens * masked
    outputs = 4.0 * shape.vocab * run.concurrency * (1 + run.k)
    widths = 4.0 * WIDTHS * shape.hidden * tokens
    low, high = (one * widths for one in WIDTHS_BAND)
    fixed = contexts * (mask + outputs)
    return fixed + low, fixed + contexts * widths, fixed + contexts * high
