"""Predicted memory and speed, each number with its error band and its provenance, and what they depend on."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import Strict

from sparkfleet.specs.deployment import Method
from sparkfleet.values import Value

DECLARED = "declared in the deployment"
"""Basis of the memory of a custom workload: nothing is predicted of it."""


class Provenance(StrEnum):
    """Provenance of a number, best first."""

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    MODELLED = "modelled"
    UNKNOWN = "unknown"


class Band(Value):
    """A number with its error band: `low <= mid <= high`, all in the unit the field's name ends with."""

    low: float
    mid: float
    high: float
    provenance: Provenance = Provenance.MODELLED
    basis: str = ""
    """Its basis, e.g. "14 measurements" or "safetensors headers"."""


class Split(NamedTuple):
    """Split of one engine instance, on whatever nodes: memory and speed depend on it, and not on the nodes."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dcp: int = 1
    """Ranks of TP that share one copy of the KV cache, split by tokens."""

    @property
    def ranks(self) -> int:
        """Number of ranks, each on a node of its own."""
        return self.tp * self.pp

    @property
    def speed_key(self) -> tuple[int, int, int]:
        """The degrees that speed depends on: distributed experts move as many bytes as split ones."""
        return self.tp, self.pp, self.dcp

    def __str__(self) -> str:
        """`TP=2 EP=2`."""
        parts = [f"TP={self.tp}"]
        parts += [f"PP={self.pp}"] if self.pp > 1 else []
        parts += [f"EP={self.ep}"] if self.ep > 1 else []
        parts += [f"DCP={self.dcp}"] if self.dcp > 1 else []
        return " ".join(parts)


class Speculation(Value):
    """A speculative method. `tokens` is the number of draft tokens per step (k); `draft` its checkpoint, if any."""

    method: Method = "none"
    tokens: int = 0
    draft: str | None = None
    topk: int = 1
    """Branches per step of a beam (SGLang's NEXTN and EAGLE)."""
    beam_tokens: int | None = None
    """Draft tokens of the whole beam, if they are passed to the engine."""
    busy: int | None = None
    """Draft tokens per step from `busy_from` requests at once on, at most `tokens`; None: the same for any number."""
    busy_from: int | None = None

    def at(self, concurrency: int) -> Speculation:
        """The method with the one depth that it has for so many requests at once."""
        if self.busy is None or self.busy_from is None:
            return self
        tokens = self.busy if concurrency >= self.busy_from else self.tokens
        return self._fixed(tokens)

    def at_most(self, tokens: int) -> Speculation:
        """The method with no more draft tokens per step than that, alone and under load."""
        fewer = self._fixed(min(self.tokens, tokens))
        if self.busy is None or self.busy >= fewer.tokens:
            return fewer
        return fewer.model_copy(update={"busy": self.busy, "busy_from": self.busy_from})

    def _fixed(self, tokens: int) -> Speculation:
        chain = self.beam_tokens == self.tokens + 1
        spelled = tokens + 1 if chain else self.beam_tokens
        return self.model_copy(
            update={"tokens": tokens, "beam_tokens": spelled, "busy": None, "busy_from": None}
        )

    def __str__(self) -> str:
        if self.method == "none":
            return "no speculation"
        name = self.method.upper()
        if self.beam_tokens is not None:
            name = {"NEXTN": "EAGLE"}.get(name, name)
        beam = f" top-{self.topk}" if self.topk > 1 else ""
        spelled = f", {self.beam_tokens} draft tokens" if self.beam_tokens is not None else ""
        crowd = f" ({self.busy} from {self.busy_from} requests)" if self.busy is not None else ""
        return f"{name} k={self.tokens}{beam}{spelled}{crowd}"


Verdict = Literal["fits", "tight", "no"]


class MemoryUse(StrEnum):
    """Parts of a rank's memory, as plans print them."""

    WEIGHTS = "weights"
    KV_CACHE = "KV cache"
    DRAFT_KV = "draft KV"
    STATES = "states"
    DRAFTER = "drafter"
    ACTIVATIONS = "activations"
    PROCESS = "process"
    CUDA_GRAPHS = "CUDA graphs"
    COMMUNICATORS = "communicators"
    VISION_CACHE = "vision encoder cache"
    LOADING = "loading"
    KV_STAGING = "KV on its way to the disk"
    SPARE = "KV cache beyond that"
    """KV cache beyond the need: an engine takes all of its share."""


KV = (MemoryUse.KV_CACHE, MemoryUse.DRAFT_KV)
"""Keys and values, the model's and the drafter's."""


VLLM_POOL = (*KV, MemoryUse.STATES)
"""Parts of vLLM's KV cache: recurrent states are blocks of it."""


class MemoryPart(Value):
    """One thing that takes memory on a rank."""

    name: Annotated[MemoryUse, Strict(False)]
    bytes: float


class DepthPrediction(Value):
    """Decode steps with other depths of a draft, from which the speed follows for any acceptance."""

    published: float
    """Tokens per step of the planned depth by published acceptance, whatever this fleet has counted."""
    steps_alone: tuple[float, ...]
    """Decode steps per second of one request alone with 0, 1, … draft tokens, as modelled."""
    steps_loaded: tuple[float, ...]
    """The same of each of the planned requests at once."""
    accepted_loaded: float
    """Tokens per step with which the rate of all planned requests was predicted."""


class SharedKv(Value):
    """A candidate as it would be with one KV cache for the ranks that keep copies of it (decode context parallelism)."""

    dcp: int
    """Ranks that keep the same KV."""
    largest_context: int
    """Tokens that would fit at the planned concurrency."""
    largest_concurrency: int
    """Requests at once that would fit at the planned context."""
    decode_tps: float
    """Predicted tok/s of one request alone."""
    undrafted: bool = False
    """True if it runs without speculation only."""
    refused_by: str = ""
    """Id of the rule that speaks against it on the planned engine; "" if none does."""


class Prediction(Value):
    """Prediction of a candidate. None means: not known."""

    memory_bytes_per_rank: Band
    memory_parts: tuple[MemoryPart, ...] = ()
    """Parts of the middle of the band, largest first."""
    verdict: Verdict = "fits"
    """`tight`: it fits by the middle of the band, not by its upper end."""
    weights_bytes: int = 0
    """Of the checkpoint, to be staged on every node of the shape."""
    weights_estimated: bool = False
    """Only the config is known: sizes follow from it, not from the weight files."""
    ttft_ms: Band | None = None
    decode_tps_per_request: Band | None = None
    decode_tps_aggregate: Band | None = None
    prefill_tps: Band | None = None
    prompt: int | None = None
    """Prompt length that `ttft_ms` and `prefill_tps` are for, tokens."""
    long_prompt_ms: Band | None = None
    """TTFT of a long prompt that is prefilled whole, if KV is kept on the disk (`planner/capacity/kv_disk.py`)."""
    concurrency: int | None = None
    """Requests at once that `decode_tps_aggregate` is for; `decode_tps_per_request` is one request alone."""
    largest_context: int | None = None
    """Tokens that would fit at the planned concurrency with the same verdict, everything else on the nodes as planned."""
    largest_concurrency: int | None = None
    """Requests at once that would fit at the planned context, likewise."""
    shared_kv: SharedKv | None = None
    """None if no rank keeps a copy of another's KV, they share it already, or the context would hardly be longer."""
    accepted: float | None = None
    """Tokens per step of speculative decoding."""
    depths: DepthPrediction | None = None
    """None without speculation, and with drafts from the text itself, whose steps are not all counted."""
    check_ttft_ms: Band | None = None
    """Of the short request that every group is measured with right after its start."""
    check_decode_tps: Band | None = None
    """Of the same."""
