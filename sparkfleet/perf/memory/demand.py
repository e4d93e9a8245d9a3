"""Memory demand of a rank against its node's unified memory.

    demand(shape, run)           items: weights, KV, state, activations, graphs, communicators, drafter, process, …
    NodeMemory.room              bytes that a node has for one more rank
    fits(needs, room)            the verdict: fits, tight or no

Bytes throughout. Weights, and KV and states of known shapes, are exact; the rest are bands from measurements
(`knowledge/hardware.yaml`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sparkfleet.knowledge.data_file import MeasuredRange
from sparkfleet.knowledge.hardware import hardware
from sparkfleet.perf.draft_methods import PARALLEL_DRAFTS
from sparkfleet.perf.layers import EXACT
from sparkfleet.perf.memory import llama_cpp
from sparkfleet.perf.memory.engine_sizes import WHOLE_PROMPT, MemoryConfig, fullest_share
from sparkfleet.perf.memory.kv_cache import (
    MTP,
    draft_kv_bytes,
    draft_layers,
    kv_bytes,
    one_state_bytes,
    staging_bytes,
    state_bytes,
    whole_block,
)
from sparkfleet.perf.model_shape import ModelShape
from sparkfleet.perf.prediction import VLLM_POOL, Band, MemoryUse, Provenance, Verdict
from sparkfleet.units import GB, GIB
from sparkfleet.values import Value

PLAIN_ENGINES = ("llama.cpp", "ollama", "ds4")
"""Engines of one process without torch: no profiling run, no graphs pool, no communicator to speak of."""
FLOOR = 4.0 * GIB
"""MemAvailable that careful operators never go below (the "4 GiB rule"; 3.5 was seen stable: luisefigueroa/pulsar)."""
TIDIEST_IDLE = 117.0 * GIB
"""MemAvailable of an idle Spark without a desktop; 114 to 118 GiB were published (luisefigueroa/pulsar)."""
UNEVEN = 1.03
"""Ranks that are no power of two pad heads and experts (MiniMax-M3 and DeepSeek-V4.1 on three nodes)."""
OUTSIDE = (MemoryUse.COMMUNICATORS, MemoryUse.CUDA_GRAPHS)
"""Memory that vLLM takes beside its share."""
DSPARK_STAGES = 3
"""Blocks like the model's own, experts included, that a DeepSeek-V4 with DSpark inside has for drafts
(deepseek-ai/DeepSeek-V4-Flash-0731; NVIDIA/TensorRT-LLM, pull request 15808)."""
LEAST_STEP = 256
"""Tokens of a prefill step that an engine has room for, however little it is asked for."""


class MemoryBudget(NamedTuple):
    """Bytes for one more rank: with the host's reserve kept, and at most."""

    careful: float
    at_most: float

    def plus(self, size: float) -> MemoryBudget:
        """The room without something of that size."""
        return MemoryBudget(self.careful + size, self.at_most + size)


def fits(needs: Band, room: MemoryBudget, *, edge: bool = False) -> Verdict:
    """The verdict on a rank that needs so much: the planner's, and the one that published setups are held against.

    - "fits": the upper end of the band leaves the host its reserve.
    - "tight": the middle leaves the host what careful operators get by with (`FLOOR`).
    - "no": it does not.

    Args:
        needs: bytes of the fullest rank.
        room: bytes that its node has.
        edge: "tight" even if only the lower end leaves so much. Six of the 74 published setups are of this kind. Their
            operators went below the floor: GLM-5.2 in int4 on four leaves 0.6 to 0.9 GB of MemAvailable and has 4 GB in
            swap (tonyd2wild/GLM-5.2-QuantTrio-200K-4x-DGX-Spark, "Boot telemetry"), MiniMax-M3 in int4 on two takes
            0.929 of the memory, the largest share with which it starts (jvr0x/dgx-spark-bench, recipes/minimax-m3-dual).
            So the planner does this only for what it would refuse otherwise, and with nothing beside it.
    """
    if needs.high <= room.careful:
        return "fits"
    return "tight" if (needs.low if edge else needs.mid) <= room.at_most else "no"


class NodeMemory(Value):
    """One node's memory, from facts."""

    total: float
    """MemTotal."""
    used: float | None = None
    """By the operating system and whatever else is not ours; None takes what an idle headless Spark uses."""

    @property
    def room(self) -> MemoryBudget:
        """Memory that one more rank may take: with the host's reserve kept, and with the least that operators leave it."""
        careful, at_most = (self.total - (idle if self.used is None else self.used) for idle in _idle())
        return MemoryBudget(careful - _reserve(self.total), at_most - min(FLOOR, 0.035 * self.total))


class Item(Value):
    """One thing that takes memory on a rank."""

    name: MemoryUse
    low: float
    mid: float
    high: float


class Demand(Value):
    """Everything that one rank needs; the fullest rank counts."""

    items: tuple[Item, ...]
    basis: str

    @property
    def band(self) -> Band:
        """The sum as a band."""
        low, mid, high = (sum(getattr(item, end) for item in self.items) for end in ("low", "mid", "high"))
        return Band(low=low, mid=mid, high=high, provenance=Provenance.MODELLED, basis=self.basis)

    def of(self, use: MemoryUse) -> float:
        """Bytes of one item, 0 if it is not there."""
        return sum(item.mid for item in self.items if item.name == use)


def demand(shape: ModelShape, run: MemoryConfig) -> Demand:
    """Memory of the fullest rank, item by item."""
    if run.device == "cpu":
        return Demand(items=tuple(_cpu_items(shape, run)), basis=shape.basis)
    return Demand(items=tuple(_items(shape, run)), basis=shape.basis)


def max_num_seqs(shape: ModelShape, run: MemoryConfig, share: float) -> int | None:
    """Requests of the run's context that vLLM runs at once with a share of a 128 GB Spark; the others wait.

    None if that is not known: shapes are guessed, pages have bands, or the model itself has no room in the share.
    """
    if shape.layers.pool_factor != EXACT:
        return None
    one, two = (demand(shape, run.model_copy(update={"concurrency": n})) for n in (1, 2))
    pooled, more = (sum(map(needs.of, VLLM_POOL)) for needs in (one, two))
    total = hardware().boxes[0].memory_total_gb.value * GB
    left = share * total - one.band.mid + sum(map(one.of, OUTSIDE))
    return None if left < 0 or more <= pooled else 1 + int(left / (more - pooled))


def weight_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """Weights on the fullest rank: layers are divided, embedding and head among tensor-parallel ranks, vision is copied.

    Expert parallelism distributes whole experts: the fullest rank has one more than others if they do not divide.
    """
    uneven = UNEVEN if run.tp not in (1, 2, 4, 8, 16) else 1.0
    layers = sum(part.bytes for part in shape.parts if part.kind in ("attention", "mlp", "shared"))
    routed = sum(part.bytes for part in shape.parts if part.kind == "experts")
    tables = {"embedding": shape.table_bytes if run.disk_tables else 0.0}
    ends = [
        (part.bytes - tables.get(part.kind, 0.0)) / run.tp
        for part in shape.parts
        if part.kind in ("embedding", "head")
    ]
    vision = (
        sum(part.bytes for part in shape.parts if part.kind == "vision")
        if run.vision or shape.vision
        else 0.0
    )
    if run.ep > 1 and shape.experts:
        dealt = routed * fullest_share(shape.experts, run.ep) / (max(1.0, run.tp / run.ep) * run.pp)
    else:
        dealt = uneven * routed / (run.tp * run.pp)
    divided = uneven * layers / (run.tp * run.pp) + dealt
    return divided + (sum(ends) if run.pp == 1 else max(ends, default=0.0)) + vision


def draft_bytes(shape: ModelShape, run: MemoryConfig) -> float:
    """A drafter's weights: its own if its shapes are known, the MTP part of the checkpoint, or layers like the model's.

    A draft model is split among the tensor-parallel ranks as its target is; no stage of a pipeline divides it.
    """
    if run.method in ("none", "ngram"):
        return 0.0
    if run.draft is not None:
        head = 0.0 if run.method == "draft" else sum(p.bytes for p in run.draft.parts if p.kind == "mtp")
        alone = run.model_copy(update={"pp": 1, "ep": 1, "vision": False})
        return weight_bytes(run.draft, alone) + head / run.tp
    if run.draft_size is not None:
        return run.draft_size / run.tp
    if run.method in MTP:
        mtp = shape.part("mtp")
        return (_one_layer(shape) if mtp is None else mtp.bytes) / run.tp
    return draft_layers(run) * 12.0 * shape.hidden**2 * 2


def bundled_draft_bytes(shape: ModelShape, *, known: bool) -> float:
    """DSpark's weights inside the checkpoint of its model; `known`: the shape is of the weights, not of the config alone."""
    mtp = shape.part("mtp")
    return mtp.bytes if known and mtp is not None else DSPARK_STAGES * _one_layer(shape)


def step_tokens(shape: ModelShape, run: MemoryConfig) -> int:
    """Tokens of the largest step: a chunk of prefill, and no more than all requests together can have.

    No less than what they decode together: with less vLLM stops at its start ("must be greater than or equal to
    max_num_seqs"; with drafters that propose all at once "max_num_scheduled_tokens").
    """
    together = run.context * (1 if run.chunk == WHOLE_PROMPT else run.concurrency)
    chunk = min(run.chunk, max(together, whole_block(shape, run), LEAST_STEP))
    return max(chunk, run.concurrency * (1 + run.k))


def _items(shape: ModelShape, run: MemoryConfig) -> Iterator[Item]:
    if run.engine == "llama.cpp":
        yield from _llama_cpp_items(shape, run)
        return
    memory = hardware().memory
    plain = run.engine in PLAIN_ENGINES
    yield _exact(MemoryUse.WEIGHTS, weight_bytes(shape, run))
    yield from _cache(shape, run)
    yield _exact(MemoryUse.DRAFTER, draft_bytes(shape, run))
    yield _activations(shape, run)
    if plain:
        yield PLAIN_PROCESS
        return
    # torch, CUDA context, API server, scheduler.
    yield Item(name=MemoryUse.PROCESS, low=1.5 * GIB, mid=3.0 * GIB, high=5.0 * GIB)
    if not run.eager:
        yield _measured(MemoryUse.CUDA_GRAPHS, memory.cuda_graphs_gb)
    if run.tp * run.pp > 1:
        yield _measured(MemoryUse.COMMUNICATORS, memory.nccl_communicator_gb)
    if run.vision or shape.vision:
        yield Item(name=MemoryUse.VISION_CACHE, low=0.2 * GIB, mid=0.7 * GIB, high=1.5 * GIB)
    if run.kv_disk:
        yield _exact(MemoryUse.KV_STAGING, staging_bytes(shape, run))
    # The loader's window: what it has read and not yet handed over.
    yield Item(name=MemoryUse.LOADING, low=0.0, mid=0.0, high=min(2.0 * GIB, 0.05 * weight_bytes(shape, run)))


PLAIN_PROCESS = Item(name=MemoryUse.PROCESS, low=0.4 * GIB, mid=0.8 * GIB, high=1.5 * GIB)
"""One process with a CUDA context."""


def _llama_cpp_items(shape: ModelShape, run: MemoryConfig) -> Iterator[Item]:
    """Allocations of llama.cpp: the file, caches of its slots, a buffer for one pass; its cache of prompts is off."""
    yield _exact(MemoryUse.WEIGHTS, weight_bytes(shape, run))
    yield _tied_heads(shape, run.draft)
    kv, (low, mid, high) = llama_cpp.kv_bytes(shape, run), shape.layers.pool_factor
    yield Item(name=MemoryUse.KV_CACHE, low=kv * low / mid, mid=kv, high=kv * high / mid)
    yield _exact(MemoryUse.DRAFTER, draft_bytes(shape, run))
    yield _exact(MemoryUse.DRAFT_KV, llama_cpp.draft_kv_bytes(shape, run))
    states, copies = llama_cpp.state_bytes(shape, run), llama_cpp.checkpoint_bytes(shape, run)
    yield Item(name=MemoryUse.STATES, low=states, mid=states + copies, high=states + copies)
    low, mid, high = llama_cpp.compute_bytes(shape, run)
    yield Item(name=MemoryUse.ACTIVATIONS, low=low, mid=mid, high=high)
    yield PLAIN_PROCESS
    if run.vision or shape.vision:
        yield Item(name=MemoryUse.VISION_CACHE, low=0.1 * GIB, mid=0.5 * GIB, high=1.5 * GIB)


def _tied_heads(*shapes: ModelShape | None) -> Item:
    """The copies of tied embeddings that the GPU multiplies with: those that are looked up stay with the CPU
    (src/llama-model.cpp, TENSOR_DUPLICATED)."""
    size = sum(_tied_head(shape) for shape in shapes if shape is not None)
    return Item(name=MemoryUse.LOADING, low=0.0, mid=size, high=size)


def _tied_head(shape: ModelShape) -> float:
    head, embedding = shape.part("head"), shape.part("embedding")
    tied = head is not None and head.params == 0 and embedding is not None
    return head.active * head.bits / 8 if tied and head is not None else 0.0


def _cache(shape: ModelShape, run: MemoryConfig) -> Iterator[Item]:
    """KV and states; all of them are in the pool if its size is set for vLLM."""
    if run.kv_pool is not None:
        yield _exact(MemoryUse.KV_CACHE, run.kv_pool)
        if run.engine != "vllm":
            yield _exact(MemoryUse.STATES, state_bytes(shape, run))
        return
    yield _pooled(MemoryUse.KV_CACHE, kv_bytes(shape, run), shape, run)
    draft = _pooled(MemoryUse.DRAFT_KV, draft_kv_bytes(shape, run), run.draft or shape, run)
    if run.draft is None and run.method in PARALLEL_DRAFTS:
        # Its layers may all have windows, as those of GLM-5.3-Flash's DFlash2 seem to.
        draft = draft.model_copy(update={"low": 0.0, "high": draft.mid})
    yield draft
    states = state_bytes(shape, run)
    # vLLM keeps one more while it caches prefixes of them (MambaSpec.max_memory_usage_bytes, mode "align").
    spare = one_state_bytes(shape, run) * run.concurrency if run.engine == "vllm" else 0.0
    yield Item(name=MemoryUse.STATES, low=states, mid=states, high=states + spare)


def _pooled(use: MemoryUse, size: float, shape: ModelShape, run: MemoryConfig) -> Item:
    """KV as a band: what pages hold beside it, and heads that cannot be split evenly may all be copied."""
    low, mid, high = shape.layers.pool_factor
    heads = shape.layers.kv_heads
    if heads % run.tp and run.tp % heads:
        high /= fullest_share(heads, run.tp)
    return Item(name=use, low=size * low / mid, mid=size, high=size * high / mid)


def _activations(shape: ModelShape, run: MemoryConfig) -> Item:
    """The largest intermediate of one step, and the logits of a batch: what a profiling run finds."""
    chunk = step_tokens(shape, run) * shape.hidden * 2 * 14.0
    logits = min(256, 4 * max(run.concurrency, 1)) * shape.vocab * 4.0 / run.tp
    return Item(
        name=MemoryUse.ACTIVATIONS, low=0.5 * chunk, mid=chunk + logits, high=2.5 * chunk + 2 * logits
    )


def _cpu_items(shape: ModelShape, run: MemoryConfig) -> Iterator[Item]:
    yield _exact(MemoryUse.WEIGHTS, weight_bytes(shape, run))
    yield _exact(MemoryUse.KV_CACHE, kv_bytes(shape, run) if run.kv_pool is None else run.kv_pool)
    yield _measured(MemoryUse.PROCESS, hardware().cpu_generic.engine_memory_gb)


def _one_layer(shape: ModelShape) -> float:
    """Bytes of one layer like the model's own, and the matrix that joins an embedding to a layer's output."""
    layers = shape.layers
    count = {"attention": layers.blocks, "mlp": layers.mlp, "experts": layers.moe, "shared": layers.mixers}
    own = sum(part.bytes / max(1, count[part.kind]) for part in shape.parts if part.kind in count)
    return own + 4.0 * shape.hidden**2


def _idle() -> tuple[float, float]:
    """Bytes that an idle headless 128 GB Spark uses: (by captures of /proc/meminfo, by the tidiest that was published)."""
    box, memory = hardware().boxes[0], hardware().memory
    total = box.memory_total_gb.value * GB
    return total - memory.idle_available_gb.high * GB, total - TIDIEST_IDLE


def _reserve(total: float) -> float:
    """Reserve of the host; a smaller box keeps less."""
    full = hardware().boxes[0].memory_total_gb.value * GB
    return hardware().memory.host_reserve_gb.low * GB * min(1.0, total / full)


def _exact(use: MemoryUse, size: float) -> Item:
    return Item(name=use, low=size, mid=size, high=size)


def _measured(use: MemoryUse, known: MeasuredRange) -> Item:
    return Item(name=use, low=known.low * GB, mid=known.value * GB, high=known.high * GB)
