"""Values of planning, from nodes and candidates to a whole plan.

Plan
├── NodeLoad …                    deployments on each node, and the memory that is left
├── StandbyOffer …                what `standby: true` would keep for one of them
├── DeploymentPlan …              one public model name
│   ├── GroupPlan …               one engine instance each: its ladder, best candidate first
│   ├── SkippedVariant …                 a variant that is not served beside the others
│   └── Rejection …               a candidate that was not taken, with the reason
└── InfeasibleDeployment …        a deployment that the fleet cannot serve, with the nearest thing that it could
"""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, ConfigDict, Field

from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles
from sparkfleet.knowledge.engines import engine_flags
from sparkfleet.perf.prediction import Prediction, Speculation, Split
from sparkfleet.planner.types.node_load import NodeLoad, StandbyOffer
from sparkfleet.planner.types.rung_facts import PublishedRuns, RepeatedPrefill
from sparkfleet.specs.deployment import EngineName, Objective, RuntimeName
from sparkfleet.units import three_digits
from sparkfleet.values import Value

NODES_NAMED = 4
"""Nodes that a shape names in words; of more it names the first and the last."""


class GroupShape(Value):
    """A split (`perf.predictor.Split`) placed on nodes of the fleet: one rank per node, in the order of `nodes`.

    A class of its own, with the split's fields, because plans are stored and shown as JSON in this form.
    """

    nodes: tuple[str, ...]
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dcp: int = 1

    @property
    def split(self) -> Split:
        """The split without its nodes."""
        return Split(self.tp, self.pp, self.ep, self.dcp)

    @property
    def ranks(self) -> int:
        """Number of ranks of the group."""
        return self.split.ranks

    def __str__(self) -> str:
        return f"{self._where} · {self.split}"

    @property
    def _where(self) -> str:
        if len(self.nodes) <= NODES_NAMED:
            return "+".join(self.nodes)
        return f"{self.nodes[0]}+…+{self.nodes[-1]} ({len(self.nodes)} nodes)"


READ_FILES = "--safetensors-load-strategy=eager"
"""vLLM then reads whole files of weights instead of mapping them (model_executor/model_loader/weight_utils.py)."""

ENGINE_LABELS = {**engine_flags.ENGINE_LABELS, "custom": "custom"}


class Candidate(Value):
    """Shape × engine × image × speculation × settings for one variant: everything needed to launch a group."""

    model: str
    """Hub id, `builtin:NAME`, or an absolute directory."""
    shape: GroupShape
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
    quant: str = ""
    """Format of the weights, as rules name it ("fp8", "nvfp4", "gptq-int4"); "" if nothing is known or quantised."""
    kv_dtype: str = "auto"
    """Precision of the KV cache; "auto" follows the checkpoint."""
    batch_tokens: int | None = None
    """Most tokens of one prefill step, passed to the engine; None: `engine_args` set it, or the engine's default applies."""
    kv_cache_bytes: int | None = None
    """Size of the KV pool per rank, bytes; None leaves it to `memory_fraction`."""
    memory_fraction: float | None = None
    """Share of a node's memory that the engine may take; None: its sizes decide. Of the smallest node, if they differ."""
    memory_fractions: tuple[float, ...] = ()
    """The share of each rank, by rank; (): `memory_fraction` on all. Set if their nodes differ in memory."""
    kv_disk_bytes: int | None = None
    """Most bytes of KV that are kept on the node's disk; None: none are."""
    kv_staging_bytes: int | None = None
    """Memory through which KV goes to the disk and back, bytes; None without `kv_disk_bytes`."""
    speculative: tuple[tuple[str, str], ...] = ()
    """Further keys of the engine's speculative configuration, as rules require them."""
    engine_args: tuple[str, ...] = ()
    """The deployment's own and those that rules require."""
    env: tuple[tuple[str, str], ...] = ()
    media_domains: tuple[str, ...] = ()
    """Hosts from which the engine may fetch images, video and sound; (): none."""
    gguf: GgufFiles | None = None
    """For engine `llama.cpp`: the checkpoint's files."""
    gguf_draft: GgufFiles | None = None
    """The same of the draft's checkpoint, if the method has one."""
    mmap: bool = True
    """False: vLLM reads its weight files as a whole instead of mapping them. True for every other engine."""
    trust_remote_code: bool = False
    """True if the engine may run code of the checkpoint, which is pinned to a commit or a directory."""
    command: tuple[str, ...] = ()
    """For engine `custom`."""
    port: int | None = None
    """Port of engine `custom`."""
    health: str = "/health"
    stage_model: bool = False
    """True if the model of engine `custom` is on its node, copied like other engines'."""

    @property
    def is_staged(self) -> bool:
        """True if the checkpoint is copied to the nodes before the start."""
        return self.engine != "custom" or self.stage_model

    @property
    def declared_ports(self) -> frozenset[tuple[str, int]]:
        """Each node of a custom workload with its port; none for an engine, whose port is chosen at its start."""
        return frozenset((node, self.port) for node in self.shape.nodes if self.port is not None)

    def fraction_of(self, rank: int) -> float | None:
        """Share of its node's memory that the engine of a rank may take."""
        return self.memory_fractions[rank] if self.memory_fractions else self.memory_fraction

    @property
    def stack(self) -> str:
        """Engine and version in words; with the image if the version is not known."""
        label = ENGINE_LABELS[self.engine]
        if self.engine_version:
            return f"{label} {self.engine_version}"
        image = (self.image or "").partition("@")[0].rpartition("/")[2]
        return f"{label} ({image})" if image else label

    @property
    def how(self) -> str:
        """Everything but the nodes: engine, quantisation, speculation, in words."""
        if self.engine == "custom":
            return self.stack
        parts = (self.stack, self.quant.upper(), str(self.speculation))
        return " · ".join(part for part in parts if part)

    def __str__(self) -> str:
        return f"{self.shape} · {self.how}"


class Rung(Value):
    """One step of a ladder: a candidate, its prediction, and the reason for its place.

    Its JSON keeps the name `said` of earlier releases, which stores and `--json` have.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    candidate: Candidate
    prediction: Prediction
    reason: str
    order: str = ""
    """Reason for its place behind a slower rung; "" if there is none."""
    rules: tuple[str, ...] = ()
    """Ids of rules that changed the candidate (flags, environment, limits)."""
    notes: tuple[str, ...] = ()
    """Warnings and doubts, one line each, with the rule's id."""
    uncured: tuple[str, ...] = ()
    """Ids of rules by which it is known to compute wrong results, without a published cure."""
    repeated_prefill: RepeatedPrefill | None = None
    """Tokens that each turn prefills again; None: its prefix cache is not known to miss anything."""
    worth: float = 0.0
    """Value under the objective with all discounts. Plans of equal objectives and requests compare by it."""
    published: PublishedRuns = PublishedRuns()
    """Published runs of it."""
    pinned: tuple[str, ...] = Field(
        default=(), validation_alias=AliasChoices("pinned", "said"), serialization_alias="said"
    )
    """Settings fixed by the deployment's own arguments, each in a few words."""

    def speed(self, objective: Objective) -> str:
        """Predicted speed under an objective: of all requests for `throughput`, else of one; "" if it is not known."""
        alone, many = self.prediction.decode_tps_per_request, self.prediction.decode_tps_aggregate
        if objective == "throughput" and many is not None:
            return f"{three_digits(many.mid)} tok/s shared by {self.prediction.concurrency}"
        return f"{three_digits(alone.mid)} tok/s" if alone is not None else ""


Why = Literal["failed", "rule", "memory", "slower", "wanted", "engine", "node"]
"""Kinds of reasons: it failed here, a rule, too little memory, another is better, the deployment, the engine, the node."""


class Rejection(Value):
    """A candidate (or a class of them) that was not taken."""

    what: str
    """The candidate in words."""
    reason: str
    why: Why = "engine"
    tps: float | None = None
    """Tokens per second that are predicted for one request alone; None if they are not."""
    ranks: int = 0
    """Nodes on which it does not fit; 0 if another reason rejects it."""
    rule: str = ""
    """Id of the rule that caused it, for `sparkfleet explain`."""
    source: str = ""
    engine: str = ""
    """The engine, by the name that deployments give it; "" if it is not about one."""
    methods: tuple[str, ...] = ()
    """Speculative methods that it is about."""


class GroupPlan(Value):
    """One group: the ladder that is tried from the top."""

    ladder: tuple[Rung, ...]
    variant: int = 0
    """Index of the deployment's variant that it serves."""
    family: str = ""
    """`model_type` of the checkpoint's config; "" if it is not known."""
    vision: bool | None = None
    """True if its weights have a vision tower; None if that is not known."""
    shared_concurrency: int | None = None
    """`concurrency` of the deployment if it was sized for a share of it; None: for all of it, or none is set."""

    @property
    def choice(self) -> Rung:
        """The rung that is tried first."""
        return self.ladder[0]

    @property
    def own_rungs(self) -> tuple[Rung, ...]:
        """Rungs on the nodes of the choice."""
        return tuple(rung for rung in self.ladder if not self.is_elsewhere(rung))

    @property
    def rungs_elsewhere(self) -> tuple[Rung, ...]:
        """Rungs that do without a node of the choice: places to go on if that is lost."""
        return tuple(rung for rung in self.ladder if self.is_elsewhere(rung))

    def is_elsewhere(self, rung: Rung) -> bool:
        """True if a rung does without a node of the choice."""
        return not set(self.choice.candidate.shape.nodes) <= set(rung.candidate.shape.nodes)

    def without(self, node: str) -> Rung | None:
        """The first rung that does without a node; None if each needs it."""
        return next((rung for rung in self.ladder if node not in rung.candidate.shape.nodes), None)

    def further(self, rung: Rung) -> dict[str, int]:
        """Bytes that a rung takes on nodes beside those of the choice."""
        size, own = round(rung.prediction.memory_bytes_per_rank.mid), self.choice.candidate.shape.nodes
        return {node: size for node in rung.candidate.shape.nodes if node not in own}

    def rung_index(self, at: int) -> int:
        """Index of the rung that a group at position `at` has: the last one if it fell while a shorter ladder was made."""
        return min(at, len(self.ladder) - 1)

    def rung_at(self, at: int) -> Rung:
        """The rung that a group at position `at` has (`rung_index`)."""
        return self.ladder[self.rung_index(at)]


class SkippedVariant(Value):
    """A variant that nothing can serve, of a deployment whose others are served."""

    variant: int
    """Index of the deployment's variant."""
    model: str
    reason: str
    """The reason that weighs most."""
    nearest: tuple[str, ...] = ()
    """The nearest things that would fit, in words."""


class DeploymentPlan(Value):
    """Serving of one deployment: its groups, and the rejected candidates."""

    name: str
    objective: Objective
    groups: tuple[GroupPlan, ...]
    left_out: tuple[SkippedVariant, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    keeps_standby: bool = False
    """Memory of other nodes is kept for its groups (`standby: true`)."""
    drivers: tuple[tuple[str, str], ...] = ()
    """The fleet's nodes that have a GPU, and which version of its driver they had when this was planned."""

    @property
    def tps(self) -> float | None:
        """Predicted tok/s under its objective: for `throughput` of all requests of all groups together, else of one request
        on the slowest group; None if a group's is not known."""
        found = [group.choice.prediction for group in self.groups]
        many = self.objective == "throughput"
        bands = [one.decode_tps_aggregate if many else one.decode_tps_per_request for one in found]
        rates = [band.mid for band in bands if band is not None]
        if not rates or len(rates) < len(bands):
            return None
        return sum(rates) if many else min(rates)

    @property
    def declared_ports(self) -> frozenset[tuple[str, int]]:
        """Node and port of each of its custom workloads."""
        return frozenset(at for group in self.groups for at in group.choice.candidate.declared_ports)


class InfeasibleDeployment(Value):
    """A deployment that the fleet cannot serve."""

    name: str
    model: str
    rejected: tuple[Rejection, ...]
    nearest: tuple[str, ...] = ()
    """The nearest things that would fit, in words."""


class Plan(Value):
    """The whole answer for a set of deployments on a fleet."""

    deployments: tuple[DeploymentPlan, ...]
    refused: tuple[InfeasibleDeployment, ...] = ()
    nodes: tuple[NodeLoad, ...] = ()
    offers: tuple[StandbyOffer, ...] = ()
    """Of deployments that do not set `standby`."""

    def of(self, name: str) -> DeploymentPlan | None:
        """The plan of one deployment, None if it was refused or not asked for."""
        return next((one for one in self.deployments if one.name == name), None)
