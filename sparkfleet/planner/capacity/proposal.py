"""The planner's nouns between a variant and its candidates.

VariantCase   everything that is the same for all proposals of one variant; `case` in the functions that take it
Proposal         split, place, engine and speculation; no image yet
Sizing           the sizes of a proposal, and the memory that they take
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sparkfleet.perf.prediction import Band, MemoryPart, MemoryUse, Speculation, Split, Verdict
from sparkfleet.perf.predictor import Predictor
from sparkfleet.planner.engine_args.engine_args import KvPool
from sparkfleet.planner.place.fleet_map import Fleet, Pool
from sparkfleet.planner.types.group_share import requests_share
from sparkfleet.specs.deployment import Deployment, EngineName, Objective, Variant

DEFAULT_CONTEXT = 32_768
DEFAULT_CONCURRENCY = {"interactive": 4, "throughput": 16, "context": 1}
"""If the deployment sets none: a person or a few agents; many clients; one long document."""


class Proposal(NamedTuple):
    """A candidate before an image, sizes and nodes are chosen."""

    split: Split
    pool: Pool
    engine: EngineName
    speculation: Speculation


class KvSizing(NamedTuple):
    """The KV cache on each rank that the deployment's own arguments fix."""

    pool: KvPool
    bytes: float
    requests: float
    """Number of requests of the whole context that it holds at once; 0 if that is not known."""


class Sizes(NamedTuple):
    """Longest context of a request, and the requests that decode together in one group."""

    context: int
    concurrency: int


class Sizing(NamedTuple):
    """Sizing of a proposal on its nodes."""

    context: int
    concurrency: int
    kv_dtype: str
    needs: Band
    parts: tuple[MemoryPart, ...]
    verdict: Verdict
    cache: KvSizing | None = None

    @property
    def sizes(self) -> Sizes:
        """The context and concurrency."""
        return Sizes(self.context, self.concurrency)

    @property
    def spare(self) -> float:
        """Bytes of KV beyond the need: the engine takes all of its share of the memory."""
        return sum(part.bytes for part in self.parts if part.name == MemoryUse.SPARE)

    @property
    def staging(self) -> float:
        """Bytes of memory through which KV goes to the disk and back; 0 if none is kept there."""
        return sum(part.bytes for part in self.parts if part.name == MemoryUse.KV_STAGING)


@dataclass(frozen=True, slots=True)
class VariantCase:
    """The case of one variant: everything that is the same for all of its proposals."""

    spec: Deployment
    variant: Variant
    predictor: Predictor
    fleet: Fleet
    share: int = 1
    """Nodes that this variant may take if the deployment does not set `replicas`."""
    most: Sizes | None = None
    """Upper bounds of the sizes that the deployment leaves open, so that others fit beside it."""
    edge: bool = False
    """It would be refused otherwise: the lower end of its memory is enough (`perf.memory.demand.fits`)."""
    among: int | None = None
    """Most groups that share a `concurrency` that is set, if `replicas` is open; None: as many as there are nodes for."""
    each: int | None = None
    """Requests at once in each group, whatever their number; None: its share of the `concurrency` that is set."""

    deployment_share: int = 1
    """Nodes that all variants of the deployment may take together."""
    below: int | None = None
    """Ranks of which only fewer are planned; None: any number."""

    def others(self, ranks: int) -> str:
        """The others for which so many nodes are kept, if they are more than this variant's share."""
        return "deployments" if ranks > self.deployment_share else "variants"

    @property
    def objective(self) -> Objective:
        """Objective of the planner's choice."""
        return self.spec.objective

    @property
    def concurrency(self) -> int:
        """Requests of all groups that are to decode together; of a node or a group, if the deployment leaves them open."""
        return self.variant.concurrency or self.concurrency_of(1)

    @property
    def is_load_open(self) -> bool:
        """True if the number of requests follows the nodes: the objective is the throughput of many, and none is set."""
        return self.objective == "throughput" and self.variant.concurrency is None

    def concurrency_of(self, ranks: int) -> int:
        """Requests that a group of so many ranks is to decode together: its share of those that the deployment sets."""
        if self.variant.concurrency is not None:
            return self.each or requests_share(self.variant.concurrency, self.groups(ranks))
        usual = DEFAULT_CONCURRENCY[self.objective] * (ranks if self.is_load_open else 1)
        return usual if self.most is None else min(usual, self.most.concurrency)

    @property
    def context(self) -> int:
        """Longest context of a request, if it fits."""
        longest = self.predictor.checkpoint.max_positions or DEFAULT_CONTEXT
        usual = longest if self.objective == "context" else min(DEFAULT_CONTEXT, longest)
        return self.variant.context or (usual if self.most is None else min(usual, self.most.context))

    @property
    def share_of_group(self) -> int:
        """Nodes that each replica may take of them: two on the same nodes would halve each other's speed."""
        nodes = min(self.share, len(self.variant.nodes)) if self.variant.nodes else self.share
        return nodes // (self.variant.replicas or 1)

    def load(self, ranks: int = 1) -> int:
        """Requests at once in a group that the objective looks at: one alone, or all of them together."""
        return self.concurrency_of(ranks) if self.objective == "throughput" else 1

    def groups(self, ranks: int) -> int:
        """Number of groups of that many ranks that fit."""
        most = self.share // ranks if self.objective == "throughput" else 1
        most = most if self.among is None else min(most, self.among)
        return self.variant.replicas or max(1, most if self.is_load_open else min(most, self.concurrency))
