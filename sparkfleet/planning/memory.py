"""What a rank needs of its node's unified memory, and whether it is there.

    demand(arch, run)            items: weights, KV, state, activations, graphs, communicators, drafter, process, …
    fit(demand, node)            fits / tight / does not fit, and by how much
    largest(arch, run, node)     the largest context, or number of requests, that would fit

Bytes throughout. Weights, KV and state are exact; the rest are bands from measurements (`knowledge/hardware.yaml`).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

from sparkfleet.knowledge.entries import Measured
from sparkfleet.knowledge.hardware import hardware
from sparkfleet.planning.arch import Arch
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
    draft_bytes: float | None = None
    """Size of a separate drafter where it is known."""
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


def largest(arch: Arch, run: Run, node: NodeMemory, *, what: Literal["context", "concurrency"]) -> int:
    """The largest context (in steps of 1,024 tokens) or concurrency that is not refused; 0 where none is."""
    step = 1024 if what == "context" else 1
    low, high = 0, (1 << 21) // step if what == "context" else 1024
    while low < high:
        middle = (low + high + 1) // 2
        tried = run.model_copy(update={what: middle * step})
        if fit(demand(arch, tried), node).verdict is Verdict.DOES_NOT_FIT:
            high = middle - 1
        else:
            low = middle
    return low * step


def weight_bytes(arch: Arch, run: Run) -> float:
    """Weights on the fullest rank: layers are divided, embedding and head among tensor-parallel ranks, vision is copied."""
    uneven = UNEVEN if run.tp not in (1, 2, 4, 8, 16) else 1.0
    layers = sum(part.bytes for part in arch.parts if part.kind in ("attention", "mlp", "experts", "shared"))
    ends = [part.bytes / run.tp for part in arch.parts if part.kind in ("embedding", "head")]
    vision = (
        sum(part.bytes for part in arch.parts if part.kind == "vision") if run.vision or arch.vision else 0.0
    )
    return (
        uneven * layers / (run.tp * run.pp) + (sum(ends) if run.pp == 1 else max(ends, default=0.0)) + vision
    )


def kv_bytes(arch: Arch, run: Run) -> float:
    """KV cache of all requests at their full length on one rank; heads are copied where there are more ranks than heads."""
    layers = arch.layers
    one = layers.kv_elements * run.context
    if layers.sliding:
        one += layers.sliding_elements * min(run.context, layers.window or run.context)
    return one * run.kv_bytes * run.concurrency / (min(run.tp, layers.kv_heads) * run.pp)


def pool_bytes(arch: Arch, run: Run, tokens: int, sliding: float) -> float:
    """KV cache of `tokens` tokens on one rank, whoever they belong to; sliding layers keep `sliding` for each of them."""
    layers = arch.layers
    each = layers.kv_elements + sliding * layers.sliding_elements
    return each * tokens * run.kv_bytes / (min(run.tp, layers.kv_heads) * run.pp)


def state_bytes(arch: Arch, run: Run) -> float:
    """Recurrent states of all requests on one rank; verified drafts keep one more each."""
    slots = STATE_SLOTS.get(run.engine, 1) + (run.k if run.method != "none" else 0)
    return arch.layers.state_bytes * slots * run.concurrency / (run.tp * run.pp)


def draft_bytes(arch: Arch, run: Run) -> float:
    """A drafter's weights: its own size where known, the MTP part of the checkpoint, or layers like the model's own."""
    if run.method in ("none", "ngram"):
        return 0.0
    if run.draft_bytes is not None:
        return run.draft_bytes
    mtp = arch.part("mtp")
    if run.method in ("mtp", "nextn") and mtp is not None:
        return mtp.bytes / run.tp
    count = DRAFT_LAYERS if run.method in PARALLEL_DRAFTS else 1
    return (
        count * 12.0 * arch.hidden**2 * 2
        + (_one_mtp_experts(arch) if run.method in ("mtp", "nextn") else 0.0) / run.tp
    )


def _items(arch: Arch, run: Run) -> Iterator[Item]:
    memory = hardware().memory
    plain = run.engine in PLAIN_ENGINES
    yield _exact("weights", weight_bytes(arch, run))
    yield _exact("KV cache", kv_bytes(arch, run) if run.kv_pool is None else run.kv_pool)
    yield _exact("states", state_bytes(arch, run))
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


def _activations(arch: Arch, run: Run) -> Item:
    """The largest intermediate of one chunk, and the logits of a batch: what a profiling run finds."""
    tokens = min(run.chunk, max(run.context, 256))
    chunk = tokens * arch.hidden * 2 * 14.0
    logits = min(256, 4 * max(run.concurrency, 1)) * arch.vocab * 4.0 / run.tp
    return Item(name="activations", low=0.5 * chunk, mid=chunk + logits, high=2.5 * chunk + 2 * logits)


def _cpu_items(arch: Arch, run: Run) -> Iterator[Item]:
    yield _exact("weights", weight_bytes(arch, run))
    yield _exact("KV cache", kv_bytes(arch, run) if run.kv_pool is None else run.kv_pool)
    yield _measured("process", hardware().cpu_generic.engine_memory_gb)


def _one_mtp_experts(arch: Arch) -> float:
    experts = arch.part("experts")
    return experts.bytes / max(1, arch.layers.moe) if experts else 0.0


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
