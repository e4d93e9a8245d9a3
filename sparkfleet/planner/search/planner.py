"""Plans deployments on a fleet, packed jointly, with the reason for every choice. Pure: no I/O, no clock.

The hardest come first: pinned ones, then the largest. Each takes its nodes from
those that are left (`memory_ledger.py`), for the best candidate of its ladder (`variant_planner.py`) that has room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.errors import Infeasible
from sparkfleet.perf.local_measurements import LocalMeasurement
from sparkfleet.perf.predictor import Predictor, predicted_content, predictor_of
from sparkfleet.planner.capacity.headroom import reached
from sparkfleet.planner.capacity.joint_sizing import with_room
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.sizing import Sizes, VariantContext
from sparkfleet.planner.engine_args.user_overrides import take_over
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.search import constraints, cpu_models
from sparkfleet.planner.search.custom_workloads import custom_groups
from sparkfleet.planner.search.rung_builder import ServedVariant, nodes_and_bytes_of
from sparkfleet.planner.search.variant_planner import VariantPlanner
from sparkfleet.planner.types.embedded_model import EmbeddedModel
from sparkfleet.planner.types.plan import (
    DeploymentPlan,
    GroupPlan,
    InfeasibleDeployment,
    Plan,
    Rejection,
    SkippedVariant,
    Why,
)
from sparkfleet.specs.deployment import Deployment, TextKind, Variant, drafts_of

ATTEMPTS = 3
"""Orders in which deployments are packed before one is refused."""
FEW = 3
"""Refused deployments for which another order is tried; with more of them the fleet is too small, not badly packed."""

_ORDER = get_args(Why)

Checkpoints = Mapping[str, Checkpoint]


def plan_fleet(
    specs: Sequence[Deployment],
    fleet: Fleet,
    checkpoints: Checkpoints | None = None,
    running: Mapping[str, DeploymentPlan] | None = None,
    measurements: Sequence[LocalMeasurement] = (),
    *,
    embedded: Mapping[str, EmbeddedModel] | None = None,
) -> Plan:
    """The plan that serves all of `specs` on `fleet`.

    Args:
        specs: the deployments.
        fleet: nodes, links.
        checkpoints: facts of the checkpoints by `model` as the deployments name it; custom and embedded ones need none.
        running: plans of what runs now; those of `specs` give their memory back, and keep their nodes if they can.
        measurements: those of this fleet; predictions of the same setups follow it.
        embedded: capabilities of built-in models, by name.

    Deployments that cannot be served are in `refused`, with every rejection and the nearest thing that would fit.
    """
    planning = PlanningContext(
        fleet,
        dict(checkpoints or {}),
        dict(running or {}),
        measurements=tuple(measurements),
        drafts=drafts_of(specs),
        embedded=dict(embedded or {}),
    )
    order = sorted(specs, key=lambda spec: _hardest_first(spec, planning))
    tried: list[tuple[list[Deployment], Plan]] = []
    for _ in range(ATTEMPTS):
        plan = _pack(order, specs, planning)
        tried.append((order, plan))
        late = {refusal.name for refusal in plan.refused}
        again = [spec for spec in order if spec.name in late] + [
            spec for spec in order if spec.name not in late
        ]
        if again == order or len(late) > FEW:
            break
        order = again
    tried.sort(key=lambda attempt: len(attempt[1].refused))
    plan = _with_room(tried, specs, planning)
    return _finished(_at_the_edge(plan, tried[0][0], specs, planning), specs, planning)


def infeasible(refusal: InfeasibleDeployment) -> Infeasible:
    """The error that a refusal is, with every rejection in its message."""
    reasons = "\n".join(f"  {one.what}: {one.reason}{_cited(one)}" for one in refusal.rejected)
    near = "; ".join(refusal.nearest)
    return Infeasible(
        f"{refusal.name}: nothing in this fleet can serve {refusal.model}.",
        means=f"Rejected:\n{reasons}",
        do=f"Nearest: {near}."
        if near
        else "Change the deployment or the inventory as a reason indicates, then run `sparkfleet plan` again.",
    )


def _cited(rejection: Rejection) -> str:
    return f"   {rejection.rule} ({rejection.source})" if rejection.rule else ""


# --- packing ----------------------------------------------------------------------------------------------------------


@dataclass
class PlanningContext:
    """Context of one run of the planner: its inputs, and results shared by all deployments."""

    fleet: Fleet
    checkpoints: dict[str, Checkpoint]
    running: dict[str, DeploymentPlan]
    measurements: tuple[LocalMeasurement, ...] = ()
    drafts: tuple[str, ...] = ()
    """Names of checkpoints that are drafts."""
    embedded: Mapping[str, EmbeddedModel] = field(default_factory=dict)
    """Built-in models, by name."""
    most: Mapping[str, Sizes] = field(default_factory=dict)
    """By deployment, what its open sizes may be at most."""
    edge: frozenset[str] = frozenset()
    """Deployments for which the lower end of their memory is enough (`perf.memory.demand.fits`)."""

    def embedded_model(self, model: str) -> EmbeddedModel | None:
        """A model that would run on a CPU; None if nothing is known about it."""
        checkpoint = self.checkpoints.get(model)
        return self.embedded.get(model) or (EmbeddedModel.of(checkpoint) if checkpoint else None)

    def predictor(self, model: str, content: TextKind = "mixed") -> Predictor | None:
        """Memory and speed of a model that writes such text; None if its checkpoint is not known."""
        checkpoint = self.checkpoints.get(model)
        if checkpoint is None:
            return None
        drafts = tuple((name, self.checkpoints[name]) for name in self.drafts if name in self.checkpoints)
        own = tuple(one for one in self.measurements if one.model == model)
        return predictor_of(checkpoint, own, drafts, predicted_content(content))

    def given_back(self, names: Iterable[str]) -> dict[str, int]:
        """Bytes per node that the running groups of these deployments give back."""
        held: dict[str, int] = defaultdict(int)
        for name in names:
            for group in self.running[name].groups if name in self.running else ():
                for node in group.choice.candidate.shape.nodes:
                    held[node] += int(group.choice.prediction.memory_bytes_per_rank.mid)
        return dict(held)

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

    def nodes_of(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Nodes that run the groups of a deployment now."""
        plan = self.running.get(name)
        return tuple(group.choice.candidate.shape.nodes for group in plan.groups) if plan else ()


def _hardest_first(spec: Deployment, planning: PlanningContext) -> tuple[bool, float, str]:
    """Those that may use few nodes, then the largest: what is left over suits the small ones."""
    variants = spec.resolved()
    sizes = [
        float(planning.checkpoints[v.model].bytes_on_disk)
        for v in variants
        if v.model in planning.checkpoints
    ]
    declared = [float(v.memory_bytes or 0) for v in variants]
    return (not any(v.nodes for v in variants), -max((*sizes, *declared)), spec.name)


def _with_room(
    tried: Sequence[tuple[Sequence[Deployment], Plan]], specs: Sequence[Deployment], planning: PlanningContext
) -> Plan:
    """The best attempt, with open sizes lowered if refused deployments then have room.

    Args:
        tried: orders of the deployments with their plans, the fewest refusals first.
        specs: the deployments in the caller's order.
        planning: inputs of the planner.
    """
    best = tried[0][1]
    for order, plan in tried:
        if len(best.refused) > FEW or not any(_crowded_out(one, specs, planning) for one in plan.refused):
            break

        def pack(most: Mapping[str, Sizes], order: Sequence[Deployment] = order) -> Plan:
            return _pack(order, specs, replace(planning, most=most))

        found = with_room(plan, pack)
        if len(found.refused) < len(best.refused):
            return found
    return best


def _at_the_edge(
    plan: Plan, order: Sequence[Deployment], specs: Sequence[Deployment], planning: PlanningContext
) -> Plan:
    """The plan with what it refuses for its memory on nodes that are left over, if the lower end of its memory fits there.

    The others are placed first, as before.
    """
    late = {one.name for one in plan.refused if any(why.why == "memory" for why in one.rejected)}
    if not late or len(plan.refused) > FEW:
        return plan
    again = sorted(order, key=lambda spec: spec.name in late)
    found = _pack(again, specs, replace(planning, edge=frozenset(late)))
    better = {one.name for one in found.refused} < {one.name for one in plan.refused}
    return found if better else plan


def _crowded_out(
    refusal: InfeasibleDeployment, specs: Sequence[Deployment], planning: PlanningContext
) -> bool:
    """True if it is refused for the memory that others of the same call take."""
    alone = [spec for spec in specs if spec.name == refusal.name]
    memory = any(one.why == "memory" for one in refusal.rejected)
    return memory and len(specs) > 1 and not _pack(alone, specs, planning).refused


def _finished(plan: Plan, specs: Sequence[Deployment], planning: PlanningContext) -> Plan:
    """The plan with what every choice could hold beside all the others."""
    ledger = MemoryLedger(planning.fleet, planning.given_back(spec.name for spec in specs))
    for load in plan.nodes:
        for name, held in load.placed:
            ledger.put(name, (load.node,), held)
    asked = {spec.name: spec for spec in specs}
    deployments = [
        one.model_copy(
            update={
                "groups": tuple(_reaching(group, asked[one.name], planning, ledger) for group in one.groups)
            }
        )
        for one in plan.deployments
    ]
    return plan.model_copy(update={"deployments": tuple(deployments)})


def _reaching(
    group: GroupPlan, spec: Deployment, planning: PlanningContext, ledger: MemoryLedger
) -> GroupPlan:
    """The group, its choice with the sizes that its nodes have room for; unchanged if its memory is not modelled."""
    choice, variant = group.choice, spec.resolved()[group.variant]
    predictor = planning.predictor(variant.model, spec.content)
    if predictor is None or choice.prediction.decode_tps_per_request is None:
        return group
    variant, _ = take_over(variant)
    nodes, taken = nodes_and_bytes_of(group)
    most = reached(
        VariantContext(spec, variant, predictor, planning.fleet), choice, ledger.shared(nodes).plus(taken)
    )
    prediction = choice.prediction.model_copy(update=most)
    return group.model_copy(
        update={"ladder": (choice.model_copy(update={"prediction": prediction}), *group.ladder[1:])}
    )


def _pack(order: Sequence[Deployment], specs: Sequence[Deployment], planning: PlanningContext) -> Plan:
    names = {spec.name for spec in specs}
    ledger = MemoryLedger(planning.fleet, planning.given_back(names), planning.ports_beside(names))
    plans: dict[str, DeploymentPlan] = {}
    refused: dict[str, InfeasibleDeployment] = {}
    for at, spec in enumerate(order):
        share = max(1, _empty_nodes(ledger) // (len(order) - at))
        groups, rejected, missing = _serve(spec, planning, ledger, share)
        if groups:
            plans[spec.name] = DeploymentPlan(
                name=spec.name,
                objective=spec.objective,
                groups=tuple(groups),
                left_out=tuple(missing),
                rejected=tuple(_once(rejected)),
                drivers=tuple((node.name, node.gpu.driver) for node in planning.fleet.nodes if node.gpu),
            )
        else:
            model = spec.resolved()[0].model
            refused[spec.name] = InfeasibleDeployment(
                name=spec.name,
                model=model,
                rejected=tuple(_once(rejected)),
                nearest=tuple(dict.fromkeys(words for one in missing for words in one.nearest)),
            )
    return Plan(
        deployments=tuple(plans[spec.name] for spec in specs if spec.name in plans),
        refused=tuple(refused[spec.name] for spec in specs if spec.name in refused),
        nodes=ledger.loads(),
    )


def _empty_nodes(ledger: MemoryLedger) -> int:
    return sum(not load.placed for load in ledger.loads())


def _once(rejected: Iterable[Rejection]) -> list[Rejection]:
    """Every rejection once, rules first."""
    return sorted(dict.fromkeys(rejected), key=lambda one: _ORDER.index(one.why))


def _serve(
    spec: Deployment, planning: PlanningContext, ledger: MemoryLedger, share: int
) -> tuple[list[GroupPlan], list[Rejection], list[SkippedVariant]]:
    """Groups for every variant of a deployment, as far as they fit; unlike replicas are all served."""
    groups: list[GroupPlan] = []
    rejected: list[Rejection] = []
    missing: list[SkippedVariant] = []
    variants = spec.resolved()
    for number, variant in enumerate(variants):
        found, reasons, near = _serve_variant(
            spec, number, variant, planning, ledger, share=max(1, share // len(variants))
        )
        known = _known(planning.checkpoints.get(variant.model))
        groups += [group.model_copy(update=known) for group in found]
        rejected += reasons if len(variants) == 1 else [_of_variant(one, variant) for one in reasons]
        if not found:
            reason = _once(reasons)[0].reason if reasons else "no nodes"
            missing.append(
                SkippedVariant(variant=number, model=variant.model, reason=reason, nearest=tuple(near))
            )
    return groups, rejected, missing


def _known(checkpoint: Checkpoint | None) -> dict[str, object]:
    """Capabilities of a group's checkpoint in its plan. A declared vision tower may have been dropped in quantising."""
    if checkpoint is None:
        return {}
    vision = False if checkpoint.vision is None and not checkpoint.declares_vision else checkpoint.vision
    return {"family": checkpoint.model_type, "vision": vision}


def _of_variant(rejection: Rejection, variant: Variant) -> Rejection:
    return rejection.model_copy(update={"what": f"{variant.model.rpartition('/')[2]} · {rejection.what}"})


def _serve_variant(
    spec: Deployment,
    number: int,
    variant: Variant,
    planning: PlanningContext,
    ledger: MemoryLedger,
    *,
    share: int,
) -> ServedVariant:
    mistaken = constraints.mistaken(spec, number, variant, planning.fleet)
    if mistaken is not None:
        return ServedVariant([], [mistaken])
    if variant.engine == "custom":
        runs_on = planning.nodes_of(spec.name)
        return custom_groups(spec.name, number, variant, planning.fleet, ledger, runs_on=runs_on)
    variant, wrong = take_over(variant)
    if wrong:
        rejected = [constraints.wanted("engine_args", one.reason) for one in wrong]
        return ServedVariant([], rejected, [one.remedy for one in wrong])
    if cpu_models.takes(variant, planning.fleet):
        return _serve_on_cpu(spec, number, variant, planning, ledger)
    case = _case(spec, variant, planning, share)
    if isinstance(case, Rejection):
        return ServedVariant([], [case], _in_reach(spec, variant, planning, ledger, share))
    return VariantPlanner(case, ledger, planning.nodes_of(spec.name)).groups(number)


def _serve_on_cpu(
    spec: Deployment, number: int, variant: Variant, planning: PlanningContext, ledger: MemoryLedger
) -> ServedVariant:
    misfit = cpu_models.misfit(spec, variant, planning.fleet, planning.embedded_model(variant.model))
    if misfit is not None:
        return ServedVariant([], [misfit])
    groups, rejected = cpu_models.embedded_groups(spec.name, number, variant, planning.fleet, ledger)
    everywhere = not groups and all(cpu_models.uses_gpu(node) for node in planning.fleet.nodes)
    return ServedVariant(groups, rejected, [cpu_models.WHERE] if everywhere else ())


def _in_reach(
    spec: Deployment, variant: Variant, planning: PlanningContext, ledger: MemoryLedger, share: int
) -> list[str]:
    """The longest context of the model, if the deployment sets a longer one and this one can be served."""
    predictor = planning.predictor(variant.model, spec.content)
    most = predictor.checkpoint.max_positions if predictor else None
    if most is None or variant.context is None or variant.context <= most:
        return []
    case = _case(spec, variant.model_copy(update={"context": most}), planning, share)
    if isinstance(case, Rejection):
        return []
    groups = VariantPlanner(case, ledger, planning.nodes_of(spec.name)).groups(0).groups
    for group in groups:
        ledger.take_back(spec.name, *nodes_and_bytes_of(group))
    return [f"fits at context {most}"] if groups else []


def _case(
    spec: Deployment, variant: Variant, planning: PlanningContext, share: int
) -> VariantContext | Rejection:
    """Stacks for candidates, or the reasons for having none."""
    predictor = planning.predictor(variant.model, spec.content)
    if predictor is None:
        reason = "unknown checkpoint: sparkfleet needs its directory, its cached config, or a known name"
        return Rejection(what=variant.model, reason=reason, why="wanted")
    fleet = planning.fleet
    with_gpu = tuple(node for node in fleet.nodes if node.gpu is not None)
    if len(with_gpu) < len(fleet.nodes):
        fleet = fleet.model_copy(update={"nodes": with_gpu})
    case = VariantContext(
        spec, variant, predictor, fleet, share, planning.most.get(spec.name), edge=spec.name in planning.edge
    )
    return constraints.unwanted(case) or case
