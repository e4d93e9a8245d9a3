"""The context of one run of the planner: its inputs, and lookups in them that all deployments share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.perf.latency.local_acceptance import LocalAcceptance
from sparkfleet.perf.local_measurements import LocalMeasurement
from sparkfleet.perf.predictor import Predictor, predictor_of
from sparkfleet.perf.workload import predicted_content
from sparkfleet.planner.capacity.proposal import Sizes
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.types.cpu_model import CpuModel
from sparkfleet.planner.types.node_load import NodeLoad
from sparkfleet.planner.types.plan import DeploymentPlan, GroupPlan
from sparkfleet.specs.deployment import Deployment


@dataclass
class PlanningContext:
    """Context of one run of the planner: its inputs, and results shared by all deployments."""

    fleet: Fleet
    checkpoints: dict[str, Checkpoint]
    running: dict[str, DeploymentPlan]
    measurements: tuple[LocalMeasurement, ...] = ()
    acceptances: Mapping[str, tuple[LocalAcceptance, ...]] = field(default_factory=dict)
    """By deployment: acceptance of drafts on its own requests."""
    drafts: tuple[str, ...] = ()
    """Names of checkpoints that are drafts."""
    builtin_models: Mapping[str, CpuModel] = field(default_factory=dict)
    """Built-in models, by name."""
    most: Mapping[str, Sizes] = field(default_factory=dict)
    """By deployment, what its open sizes may be at most."""
    edge: frozenset[str] = frozenset()
    """Deployments for which the lower end of their memory is enough (`perf.memory.demand.fits`)."""
    resized: bool = False
    """Groups that run do not keep the share of `concurrency` that they were sized for."""
    replaced: frozenset[str] = frozenset()
    """Deployments that are planned: those of them that run give their memory back."""
    yielding: frozenset[str] = frozenset()
    """Deployments on demand that are loaded: they give their memory to whatever starts."""
    unloaded: frozenset[str] = frozenset()
    """Deployments on demand that are not: they hold no memory."""
    beside: tuple[NodeLoad, ...] = ()
    """Memory that the other deployments of the same call hold."""
    takes_turns: bool = False
    """One on demand is planned: it may have memory that is kept for lost nodes, and gives it back when that is needed."""

    def cpu_model(self, model: str) -> CpuModel | None:
        """A model that would run on a CPU; None if nothing is known about it."""
        checkpoint = self.checkpoints.get(model)
        return self.builtin_models.get(model) or (CpuModel.of(checkpoint) if checkpoint else None)

    def predictor(self, model: str, spec: Deployment) -> Predictor | None:
        """Memory and speed of a model that writes a deployment's text; None if its checkpoint is not known."""
        checkpoint = self.checkpoints.get(model)
        if checkpoint is None:
            return None
        drafts = tuple((name, self.checkpoints[name]) for name in self.drafts if name in self.checkpoints)
        own = tuple(one for one in self.measurements if one.model == model)
        counted = tuple(one for one in self.acceptances.get(spec.name, ()) if one.model == model)
        return predictor_of(checkpoint, own, drafts, predicted_content(spec.content), counted)

    def given_back(self) -> dict[str, int]:
        """Bytes per node that running groups give back: of deployments that are replaced, or on demand."""
        held: dict[str, int] = defaultdict(int)
        for name in (self.replaced | self.yielding) - self.unloaded:
            for group in self.running[name].groups if name in self.running else ():
                for node in group.choice.candidate.shape.nodes:
                    held[node] += int(group.choice.prediction.memory_bytes_per_rank.mid)
        return dict(held)

    def kept(self) -> dict[str, dict[str, dict[str, int]]]:
        """Bytes that running deployments keep for groups that lose a node: by that node, by the node that they are on, by
        deployment. Without those that are planned."""
        found: dict[str, dict[str, dict[str, int]]] = {node: {} for node in self.fleet.by_name}
        for name, plan in self.running.items():
            if name in self.replaced or not plan.keeps_standby:
                continue
            for group in plan.groups:
                for lost in group.choice.candidate.shape.nodes:
                    rung = group.without(lost)
                    for node, size in group.further(rung).items() if rung is not None else ():
                        at = found.setdefault(lost, {}).setdefault(node, {})
                        at[name] = at.get(name, 0) + size
        return found

    def most_kept(self) -> dict[str, int]:
        """Bytes that running deployments keep on each node, for the loss of one node: of whichever takes most."""
        most: dict[str, int] = defaultdict(int)
        for by_node in self.kept().values():
            for node, by_name in by_node.items():
                most[node] = max(most[node], sum(by_name.values()))
        return dict(most)

    def ports_beside(self, names: Collection[str]) -> dict[tuple[str, int | None], str]:
        """Declared ports of the gateway and of the running deployments beside these, by node and port, with their owner.

        A port that both have, as an earlier release stored it, is left out: what runs can be planned again where it is.
        """
        own = {at for name in names if name in self.running for at in self.running[name].declared_ports}
        others = ((name, plan) for name, plan in self.running.items() if name not in names)
        ports: dict[tuple[str, int | None], str] = {
            at: name for name, plan in others for at in plan.declared_ports - own
        }
        return {**ports, **dict.fromkeys(self.fleet.endpoint_ports, "the gateway")}

    def groups_of(self, name: str, variant: int) -> tuple[GroupPlan, ...]:
        """Groups of a deployment's variant that run now, and keep their sizes."""
        plan = None if self.resized else self.running.get(name)
        return tuple(group for group in plan.groups if group.variant == variant) if plan else ()

    def nodes_of(self, name: str, number: int) -> tuple[tuple[str, ...], ...]:
        """Nodes that run the groups of one variant of a deployment now."""
        plan = self.running.get(name)
        groups = plan.groups if plan else ()
        return tuple(group.choice.candidate.shape.nodes for group in groups if group.variant == number)
