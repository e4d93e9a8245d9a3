"""The values that planning works on and hands over.

Plan
└── DeploymentPlan                one public model name
    ├── GroupPlan …               one engine instance each: its ladder, best candidate first
    └── Rejection …               what was not taken, and why
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from sparkfleet.spec.deployment import EngineName, Method, Objective, RuntimeName
from sparkfleet.values import Value


class Provenance(StrEnum):
    """Where a number came from, best first."""

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
    """What it rests on, e.g. "14 measurements" or "safetensors headers"."""


class Shape(Value):
    """How one engine instance lies on the fleet. `tp * pp` ranks, one per node, in the order of `nodes`."""

    nodes: tuple[str, ...]
    tp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        """How many ranks the group has."""
        return self.tp * self.pp

    def __str__(self) -> str:
        parallel = f"TP={self.tp}"
        if self.pp > 1:
            parallel += f" PP={self.pp}"
        if self.ep > 1:
            parallel += f" EP={self.ep}"
        return f"{'+'.join(self.nodes)} · {parallel}"


class Speculation(Value):
    """A speculative method. `tokens` is the number of draft tokens per step (k); `draft` its checkpoint, if any."""

    method: Method = "none"
    tokens: int = 0
    draft: str | None = None

    def __str__(self) -> str:
        return "no speculation" if self.method == "none" else f"{self.method.upper()} k={self.tokens}"


class Candidate(Value):
    """Shape × engine × image × speculation × settings for one variant: everything needed to launch a group."""

    model: str
    """Hub id, `builtin:NAME`, or an absolute directory."""
    shape: Shape
    engine: EngineName
    engine_version: str
    runtime: RuntimeName = "process"
    python: str = "python3"
    """For runtime `process`: interpreter of the environment that holds the engine, on every node of the shape."""
    image: str | None = None
    """For runtime `container`: image by digest."""
    speculation: Speculation = Speculation()
    context: int
    """Longest prompt + completion of one request, tokens."""
    concurrency: int
    """Requests that decode together."""
    device: Literal["cuda", "cpu"] = "cuda"
    dtype: str = "auto"
    kv_cache_bytes: int | None = None
    """Size of the KV pool per rank, bytes; None leaves it to `memory_fraction`."""
    memory_fraction: float | None = None
    engine_args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.shape} · {self.engine} {self.engine_version} · {self.speculation}"


class Prediction(Value):
    """What a candidate is expected to do. None means: not known, and said so."""

    memory_bytes_per_rank: Band
    ttft_ms: Band | None = None
    decode_tps_per_request: Band | None = None
    decode_tps_aggregate: Band | None = None
    prefill_tps: Band | None = None


class Rung(Value):
    """One step of a ladder: a candidate, what it should do, and why it stands here."""

    candidate: Candidate
    prediction: Prediction
    reason: str


class Rejection(Value):
    """A candidate (or a class of them) that was not taken."""

    what: str
    """The candidate in words."""
    reason: str
    rule: str = ""
    """Id of the rule that caused it, for `sparkfleet explain`."""
    source: str = ""


class GroupPlan(Value):
    """One group: the ladder that is tried from the top."""

    ladder: tuple[Rung, ...]

    @property
    def choice(self) -> Rung:
        """The rung that is tried first."""
        return self.ladder[0]


class DeploymentPlan(Value):
    """How one deployment is served: its groups, and what was rejected."""

    name: str
    objective: Objective
    groups: tuple[GroupPlan, ...]
    rejected: tuple[Rejection, ...] = ()


class Plan(Value):
    """The whole answer for a set of deployments on a fleet."""

    deployments: tuple[DeploymentPlan, ...]
