"""What a rank needs of its node's unified memory, and whether it is there.

    demand(arch, run)            items: weights, KV, state, activations, graphs, communicators, drafter, process, …
    fit(demand, node)            fits / tight / does not fit, and by how much

Bytes throughout. Weights, and KV and states of known shapes, are exact; the rest are bands from measurements
(`knowledge/hardware.yaml`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import Literal, NamedTuple

from sparkfleet.knowledge.entries import Measured
from sparkfleet.knowledge.hardware import hardware
from sparkfleet.planning.arch import EXACT, Arch
from sparkfleet.planning.pinned import WHOLE_PROMPT
from sparkfleet.planning.plan import Band, Provenance
from sparkfleet.planning.speed import CHUNK, DRAFT_LAYERS, PARALLEL_DRAFTS
from sparkfleet.values import Value

GB = 1e9
GIB = float(1 << 30)

PLAIN_ENGINES = ("llama.cpp", "ollama", "ds4")
"""Engines of one process without torch: no profiling run, no graphs pool, no communicator to speak of."""
FLOOR = 4.0 * GIB
"""MemAvailable that careful operators never go below (the "4 GiB rule"; 3.5 was seen stable: luisefigueroa/pulsar)."""
TIDIEST_IDLE = 117.0 * GIB
"""MemAvailable of an idle Spark without a desktop; 114 to 118 GiB were published (luisefigueroa/pulsar)."""
UNEVEN = 1.03
"""Ranks that are no power of two pad heads and experts (MiniMax-M3 and DeepSeek-V4.1 on three nodes)."""
STATE_SLOTS = {"sglang": 4}
"""States kept per running request where it is more than one (MiaAI-Lab/Qwen3.8-27B-SGLang: S = 4 slots)."""
MTP = ("mtp", "nextn")
"""Methods whose drafts are made by a layer of the checkpoint that is like its others."""
POOLED = ("KV cache", "draft KV", "states")
"""What lies in vLLM's pool."""
OUTSIDE = ("communicators", "CUDA graphs")
"""What vLLM takes beside the share that it is given."""
BLOCK = 16
"""Tokens of a block, and what the blocks of vLLM's hybrid models are multiples of."""
LEAST_STEP = 256
"""Tokens of a prefill step that an engine has room for, however little it is asked for."""
DRAFT_KV = 2048
"""Cached elements per token of one layer of a dense drafter: 8 heads of 128, keys and values, as most have."""


class Verdict(StrEnum):
    """Whether it fits."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"


class Run(Value):
    """How a checkpoint is run, as far as memory depends on it."""

    engine: str = "vllm"
    tp: int = 1
    pp: int = 1
    ep: int = 1
    context: int = 8192
    """Longest prompt + completion, tokens."""
    concurrency: int = 1
    """Requests of that length at once."""
    kv_bytes: float = 1.0
    """Bytes per cached element."""
    kv_pool: float | None = None
    """Bytes of KV per rank where it is pinned; context × concurrency does not count then."""
    method: str = "none"
    k: int = 0
    draft: Arch | None = None
    """The separate drafter, where its shapes are known."""
    chunk: int = CHUNK
    eager: bool = False
    vision: bool = False
    device: Literal["cuda", "cpu"] = "cuda"


class NodeMemory(Value):
    """One node's memory, from facts."""

    total: float
    """MemTotal."""
    used: float | None = None
    """By the operating system and whatever else is not ours; None takes what an idle headless Spark uses."""
    placed: float = 0.0
    """By our own groups that are already there."""

    @property
    def free(self) -> tuple[float, float]:
        """(careful, at most) bytes for one more rank: with the host's reserve kept, and what operators get by with."""
        careful, at_most = (
            self.total - (idle if self.used is None else self.used) - self.placed for idle in _idle()
        )
        return careful - _reserve(self.total), at_most - min(FLOOR, 0.035 * self.total)


class Item(Value):
    """One thing that takes memory on a rank."""

    name: str
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

    def of(self, name: str) -> float:
        """Bytes of one item, 0 where it is not there."""
        return sum(item.mid for item in self.items if item.name == name)


class Fit(Value):
    """Whether a rank fits its node."""

    verdict: Verdict
    needs: Band
    free: float
    """Bytes that may be used with the host's reserve kept."""


def demand(arch: Arch, run: Run) -> Demand:
    """What the fullest rank needs, item by item."""
    if run.device == "cpu":
        return Demand(items=tuple(_cpu_items(arch, run)), basis=arch.basis)
    return Demand(items=tuple(_items(arch, run)), basis=arch.basis)


def fit(needs: Demand, node: NodeMemory) -> Fit:
    """Fits: the pessimistic end leaves the host's reserve. Does not fit: even the optimistic one goes below the floor."""
    careful, at_most = node.free
    band = needs.band
    verdict = Verdict.TIGHT if band.low <= at_most else Verdict.DOES_NOT_FIT
    if band.high <= careful:
        verdict = Verdict.FITS
    return Fit(verdict=verdict, needs=band, free=max(0.0, careful))


def slots(arch: Arch, run: Run, share: float) -> int | None:
    """Requests of the run's context that vLLM runs at once where it is given a share of a 128 GB Spark; the others wait.

    None where that cannot be told: shapes are guessed, pages have bands, or the model itself has no room in the share.
    """
    if arch.layers.pool_factor != EXACT:
        return None
    one, two = (demand(arch, run.model_copy(update={"concurrency": n})) for n in (1, 2))
    pooled, more = (sum(map(needs.of, POOLED)) for needs in (one, two))
    total = hardware().boxes[0].memory_total_gb.value * GB
    left = share * total - one.band.mid + sum(map(one.of, OUTSIDE))
    return None if left < 0 or more <= pooled else 1 + int(left / (more - pooled))


def weight_bytes(arch: Arch, run: Run) -> float:
    """Weights on the fullest rank: layers are divided, embedding and head among tensor-parallel ranks, vision is copied.

    Expert parallelism deals whole experts out: the fullest rank has one more than others where they do not divide.
    """
    uneven = UNEVEN if run.tp not in (1, 2, 4, 8, 16) else 1.0
    layers = sum(part.bytes for part in arch.parts if part.kind in ("attention", "mlp", "shared"))
    routed = sum(part.bytes for part in arch.parts if part.kind == "experts")
    ends = [part.bytes / run.tp for part in arch.parts if part.kind in ("embedding", "head")]
    vision = (
        sum(part.bytes for part in arch.parts if part.kind == "vision") if run.vision or arch.vision else 0.0
    )
    if run.ep > 1 and arch.experts:
        dealt = routed * _share(arch.experts, run.ep) / (max(1.0, run.tp / run.ep) * run.pp)
    else:
        dealt = uneven * routed / (run.tp * run.pp)
    divided = uneven * layers / (run.tp * run.pp) + dealt
    return divided + (sum(ends) if run.pp == 1 else max(ends, default=0.0)) + vision


def kv_bytes(arch: Arch, run: Run) -> float:
    """KV cache of all requests at their full length on one rank; heads are copied where there are more ranks than heads."""
    layers, pages = arch.layers, _pages(arch, run)
    one = layers.kv_elements * pages.tokens * pages.full
    inside = min(run.context, (layers.window or run.context) + BLOCK)
    # A sliding layer drops what left its window after each pass: one chunk at a time is kept beside the windows.
    passing = min(run.context - inside, run.chunk)
    sliding = layers.sliding_elements * (inside * run.concurrency + passing)
    return (one * run.concurrency + sliding) * _kept(arch, run) * layers.pool_factor[1]


def pool_bytes(arch: Arch, run: Run, tokens: int, sliding: float) -> float:
    """KV cache of `tokens` tokens on one rank, whoever they belong to; sliding layers keep `sliding` for each of them.

    A drafter's is counted with it: its layers are given as many tokens.
    """
    layers = arch.layers
    each = layers.kv_elements + sliding * layers.sliding_elements
    drafter = draft_kv_bytes(arch, run.model_copy(update={"context": tokens, "concurrency": 1}))
    return each * tokens * _kept(arch, run) * layers.pool_factor[1] + drafter


def state_bytes(arch: Arch, run: Run) -> float:
    """Recurrent states of all requests on one rank; verified drafts keep one more each."""
    slots = STATE_SLOTS.get(run.engine, 1) + (run.k if run.method != "none" else 0)
    return _one_state(arch, run) * slots * run.concurrency


def draft_bytes(arch: Arch, run: Run) -> float:
    """A drafter's weights: its own where its shapes are known, the MTP part of the checkpoint, or layers like the model's.

    A draft model is cut among the tensor-parallel ranks as its target is; no stage of a pipeline divides it.
    """
    if run.method in ("none", "ngram"):
        return 0.0
    if run.draft is not None:
        head = 0.0 if run.method == "draft" else sum(p.bytes for p in run.draft.parts if p.kind == "mtp")
        alone = run.model_copy(update={"pp": 1, "ep": 1, "vision": False})
        return weight_bytes(run.draft, alone) + head / run.tp
    if run.method in MTP:
        mtp = arch.part("mtp")
        return (_one_layer(arch) if mtp is None else mtp.bytes) / run.tp
    return _draft_layers(run) * 12.0 * arch.hidden**2 * 2


def draft_kv_bytes(arch: Arch, run: Run) -> float:
    """A drafter's KV cache on one rank, in the precision of the model's: all its layers, or one of an MTP or EAGLE head."""
    if run.method in ("none", "ngram"):
        return 0.0
    if run.draft is not None:
        alone = run.model_copy(update={"pp": 1, "method": "none", "draft": None})
        return kv_bytes(run.draft, alone) + state_bytes(run.draft, alone)
    layers, pages = arch.layers, _pages(arch, run)
    tokens = run.concurrency * pages.tokens
    if run.method in PARALLEL_DRAFTS:
        return _draft_layers(run) * DRAFT_KV * tokens * run.kv_bytes / min(run.tp, 8)
    mixers = layers.full or layers.sliding  # the head mixes tokens as the model's own layers do
    each = (layers.kv_elements or layers.sliding_elements) / max(1, mixers)
    one_stage = _kept(arch, run) * run.pp
    return _draft_layers(run) * each * pages.full * tokens * one_stage * layers.pool_factor[1]


def block_tokens(arch: Arch, run: Run) -> int:
    """Tokens of a block of vLLM's hybrid models: as many as one linear layer's state is long. 0 where blocks are not so."""
    layers = arch.layers
    if run.engine != "vllm" or not (layers.linear and layers.full and layers.kv_elements):
        return 0
    state = layers.state_bytes / layers.linear / run.tp
    return BLOCK * max(1, math.ceil(state / _token_bytes(arch, run) / BLOCK))


def whole_block(arch: Arch, run: Run) -> int:
    """The least prefill step that has room for a block of a hybrid model: the power of two above it, 0 where there is none.

    With less vLLM stops at its start ("block_size (2096) must be <= max_num_batched_tokens (2048)").
    """
    block = block_tokens(arch, run)
    return 1 << (block - 1).bit_length() if block else 0


def step_tokens(arch: Arch, run: Run) -> int:
    """Tokens of the largest step: a chunk of prefill, and no more than all requests together can have.

    No less than what they decode together: with less vLLM stops at its start ("must be greater than or equal to
    max_num_seqs"; with drafters that propose all at once "max_num_scheduled_tokens").
    """
    together = run.context * (1 if run.chunk == WHOLE_PROMPT else run.concurrency)
    chunk = min(run.chunk, max(together, whole_block(arch, run), LEAST_STEP))
    return max(chunk, run.concurrency * (1 + run.k))


class _Pages(NamedTuple):
    """How an engine's pool holds one request."""

    tokens: int
    """Its context in whole blocks."""
    full: float = 1.0
    """Layers that are counted per layer with KV: groups of unlike layers are filled up to one size."""
    state: float = 0.0
    """Bytes of one slot of all linear layers on a rank; 0 where states are not pages."""


def _pages(arch: Arch, run: Run) -> _Pages:
    """vLLM's pool has pages of one size for layers of all kinds (v1/core/kv_cache_utils.py, platforms/interface.py).

    A hybrid model's block has as many tokens as a linear layer's state is long, and a group of layers as many as the
    rarer kind has, or the commoner where they are nearly equal. 35.45 GiB hold 8.5057 requests of 131,072 tokens of a
    Qwen3.8-27B (740 pages of 16 layers, 84 + 3 a request), and 6 GiB 2.3256 of 262,144 of a Qwen3.6-35B-A3B: jschmied.
    """
    layers, block = arch.layers, block_tokens(arch, run)
    if not block:
        return _Pages(run.context)
    token = _token_bytes(arch, run)
    same = layers.full + (_draft_layers(run) if run.method in MTP and run.draft is None else 0)
    few, many = sorted((same, layers.linear))
    group = many if many < 1.5 * few else few
    linear = group * math.ceil(layers.linear / group)
    full = group * math.ceil(same / group) / same
    return _Pages(block * math.ceil(run.context / block), full, linear * block * token / run.pp)


def _token_bytes(arch: Arch, run: Run) -> float:
    """Bytes on a rank that one full layer keeps per token."""
    return arch.layers.kv_elements / arch.layers.full * _kept(arch, run) * run.pp


def _one_state(arch: Arch, run: Run) -> float:
    """Bytes of one slot of all linear layers on a rank."""
    paged = _pages(arch, run).state
    return paged or arch.layers.state_bytes / (run.tp * run.pp)


def _kept(arch: Arch, run: Run) -> float:
    """Bytes on the fullest rank per element of all of a stage's KV: heads are not divided."""
    return (arch.layers.packed_kv_bytes or run.kv_bytes) * _share(arch.layers.kv_heads, run.tp) / run.pp


def _share(things: int, ranks: int) -> float:
    """What the fullest of so many ranks has of all of them, at least one whole."""
    return math.ceil(things / ranks) / things


def _draft_layers(run: Run) -> int:
    return DRAFT_LAYERS if run.method in PARALLEL_DRAFTS else 1


def _items(arch: Arch, run: Run) -> Iterator[Item]:
    memory = hardware().memory
    plain = run.engine in PLAIN_ENGINES
    yield _exact("weights", weight_bytes(arch, run))
    yield from _cache(arch, run)
    yield _exact("drafter", draft_bytes(arch, run))
    yield _activations(arch, run)
    if plain:
        yield Item(
            name="process", low=0.4 * GIB, mid=0.8 * GIB, high=1.5 * GIB
        )  # one process and a CUDA context
        return
    yield Item(
        name="process", low=1.5 * GIB, mid=3.0 * GIB, high=5.0 * GIB
    )  # torch, CUDA context, API server, scheduler
    if not run.eager:
        yield _measured("CUDA graphs", memory.cuda_graphs_gb)
    if run.tp * run.pp > 1:
        yield _measured("communicators", memory.nccl_communicator_gb)
    if run.vision or arch.vision:
        yield Item(name="vision encoder cache", low=0.2 * GIB, mid=0.7 * GIB, high=1.5 * GIB)
    # The loader's window: what it has read and not yet handed over.
    yield Item(name="loading", low=0.0, mid=0.0, high=min(2.0 * GIB, 0.05 * weight_bytes(arch, run)))


def _cache(arch: Arch, run: Run) -> Iterator[Item]:
    """KV and states; all of them lie in the pool where vLLM is told its size."""
    if run.kv_pool is not None:
        yield _exact("KV cache", run.kv_pool)
        if run.engine != "vllm":
            yield _exact("states", state_bytes(arch, run))
        return
    yield _pooled("KV cache", kv_bytes(arch, run), arch, run)
    draft = _pooled("draft KV", draft_kv_bytes(arch, run), run.draft or arch, run)
    if run.draft is None and run.method in PARALLEL_DRAFTS:
        # Its layers may all have windows, as those of GLM-5.3-Flash's DFlash2 seem to.
        draft = draft.model_copy(update={"low": 0.0, "high": draft.mid})
    yield draft
    states = state_bytes(arch, run)
    # vLLM keeps one more while it caches prefixes of them (MambaSpec.max_memory_usage_bytes, mode "align").
    spare = _one_state(arch, run) * run.concurrency if run.engine == "vllm" else 0.0
    yield Item(name="states", low=states, mid=states, high=states + spare)


def _pooled(name: str, size: float, arch: Arch, run: Run) -> Item:
    """KV as a band: what pages hold beside it, and heads that cannot be dealt out evenly may all be copied."""
    low, mid, high = arch.layers.pool_factor
    heads = arch.layers.kv_heads
    if heads % run.tp and run.tp % heads:
        high /= _share(heads, run.tp)
    return Item(name=name, low=size * low / mid, mid=size, high=size * high / mid)


def _activations(arch: Arch, run: Run) -> Item:
    """The largest intermediate of one step, and the logits of a batch: what a profiling run finds."""
    chunk = step_tokens(arch, run) * arch.hidden * 2 * 14.0
    logits = min(256, 4 * max(run.concurrency, 1)) * arch.vocab * 4.0 / run.tp
    return Item(name="activations", low=0.5 * chunk, mid=chunk + logits, high=2.5 * chunk + 2 * logits)


def _cpu_items(arch: Arch, run: Run) -> Iterator[Item]:
    yield _exact("weights", weight_bytes(arch, run))
    yield _exact("KV cache", kv_bytes(arch, run) if run.kv_pool is None else run.kv_pool)
    yield _measured("process", hardware().cpu_generic.engine_memory_gb)


def _one_layer(arch: Arch) -> float:
    """Bytes of one layer like the model's own, and the matrix that joins an embedding to what a layer says."""
    layers = arch.layers
    count = {"attention": layers.blocks, "mlp": layers.mlp, "experts": layers.moe, "shared": layers.mixers}
    own = sum(part.bytes / max(1, count[part.kind]) for part in arch.parts if part.kind in count)
    return own + 4.0 * arch.hidden**2


def _idle() -> tuple[float, float]:
    """Bytes that an idle headless 128 GB Spark uses: (by captures of /proc/meminfo, by the tidiest that was published)."""
    box, memory = hardware().boxes[0], hardware().memory
    total = box.memory_total_gb.value * GB
    return total - memory.idle_available_gb.high * GB, total - TIDIEST_IDLE


def _reserve(total: float) -> float:
    """What the host keeps; a smaller box keeps less."""
    full = hardware().boxes[0].memory_total_gb.value * GB
    return hardware().memory.host_reserve_gb.low * GB * min(1.0, total / full)


def _exact(name: str, size: float) -> Item:
    return Item(name=name, low=size, mid=size, high=size)


def _measured(name: str, known: Measured) -> Item:
    return Item(name=name, low=known.low * GB, mid=known.value * GB, high=known.high * GB)
