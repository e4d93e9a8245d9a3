"""Plans one deployment on what is left of the fleet: groups for each of its variants, or the reasons for having none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.knowledge.hardware import is_known_gpu
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.proposal import VariantCase
from sparkfleet.planner.cpu.cpu_groups import NEEDS_CPU_BUILD, cpu_groups, runs_on_cpu
from sparkfleet.planner.cpu.cpu_misfits import cpu_misfit
from sparkfleet.planner.cpu.cpu_rung import CpuWeights
from sparkfleet.planner.cpu.cpu_stacks import uses_gpu
from sparkfleet.planner.engine_args.user_overrides import requests_given, take_over
from sparkfleet.planner.packing.custom_workloads import custom_groups
from sparkfleet.planner.packing.planning_context import PlanningContext
from sparkfleet.planner.packing.served_variant import ServedVariant, nodes_and_bytes_of
from sparkfleet.planner.packing.shared_groups import shared_groups
from sparkfleet.planner.search import constraints
from sparkfleet.planner.types.group_share import requests_share, share_that_runs, shared
from sparkfleet.planner.types.plan import GroupPlan, Rejection, SkippedVariant, Why
from sparkfleet.specs.deployment import Deployment, Variant

_ORDER = get_args(Why)


def plan_deployment(
    spec: Deployment, planning: PlanningContext, ledger: MemoryLedger, share: int
) -> tuple[list[GroupPlan], list[Rejection], list[SkippedVariant]]:
    """Groups for every variant of a deployment, as far as they fit, all rejections, and the variants left out.

    Unlike replicas are all served. `share`: nodes that it may take of those that others have left.
    """
    groups: list[GroupPlan] = []
    rejected: list[Rejection] = []
    missing: list[SkippedVariant] = []
    variants = spec.resolved()
    for number, variant in enumerate(variants):
        found, reasons, near = serve_variant(spec, number, variant, planning, ledger, share=share)
        known = _known(planning.checkpoints.get(variant.model))
        groups += [group.model_copy(update=known) for group in found]
        rejected += reasons if len(variants) == 1 else [_of_variant(one, variant) for one in reasons]
        if not found:
            reason = _once(reasons)[0].reason if reasons else "no nodes"
            missing.append(
                SkippedVariant(variant=number, model=variant.model, reason=reason, nearest=tuple(near))
            )
    return groups, _once(rejected), missing


def _known(checkpoint: Checkpoint | None) -> dict[str, object]:
    """Capabilities of a group's checkpoint in its plan. A declared vision tower may have been dropped in quantising."""
    if checkpoint is None:
        return {}
    vision = False if checkpoint.vision is None and not checkpoint.declares_vision else checkpoint.vision
    return {"family": checkpoint.model_type, "vision": vision}


def _of_variant(rejection: Rejection, variant: Variant) -> Rejection:
    return rejection.model_copy(update={"what": f"{variant.model.rpartition('/')[2]} · {rejection.what}"})


def serve_variant(
    spec: Deployment,
    number: int,
    variant: Variant,
    planning: PlanningContext,
    ledger: MemoryLedger,
    *,
    share: int,
) -> ServedVariant:
    """Groups for one variant of a deployment, put on the ledger, or the reasons for having none.

    Args:
        spec: the deployment.
        number: which of its variants this is.
        variant: the variant, with the deployment's settings.
        planning: inputs of the planner.
        ledger: what is left of the nodes.
        share: nodes that the deployment may take.
    """
    mistaken = constraints.mistaken(spec, number, variant, planning.fleet)
    if mistaken is not None:
        return ServedVariant([], [mistaken])
    if variant.engine == "custom":
        runs_on = planning.nodes_of(spec.name, number)
        return custom_groups(spec.name, number, variant, planning.fleet, ledger, runs_on=runs_on)
    variant, wrong = take_over(variant)
    if wrong:
        rejected = [constraints.wanted("engine_args", one.reason) for one in wrong]
        return ServedVariant([], rejected, [one.remedy for one in wrong])
    if runs_on_cpu(variant, planning.fleet):
        return _serve_on_cpu(spec, number, variant, planning, ledger)
    case = _case(spec, variant, planning, share)
    if isinstance(case, Rejection):
        return ServedVariant([], [case], _in_reach(spec, variant, planning, ledger, share))
    found = shared_groups(case, number, planning, ledger)
    if not found.groups and variant.parallel is not None and not any(one.rule for one in found.rejected):
        other = _in_another_split(spec, variant, planning, ledger, share)
        found = found._replace(nearest=(*other, *found.nearest))
    return found


def _serve_on_cpu(
    spec: Deployment, number: int, variant: Variant, planning: PlanningContext, ledger: MemoryLedger
) -> ServedVariant:
    misfit = cpu_misfit(spec, variant, planning.fleet, planning.cpu_model(variant.model))
    if misfit is not None:
        return ServedVariant([], [misfit])
    each = _with_share(spec, number, variant, planning)
    groups, rejected = cpu_groups(
        spec.name,
        number,
        each,
        planning.fleet,
        ledger,
        runs_on=planning.nodes_of(spec.name, number),
        weights=CpuWeights(
            planning.checkpoints.get(variant.model),
            planning.checkpoints.get(variant.speculation.draft or ""),
        ),
    )
    if each.concurrency is not None:
        whole = {"shared_concurrency": shared(variant.concurrency, each.concurrency)}
        groups = [group.model_copy(update=whole) for group in groups]
    everywhere = not groups and all(uses_gpu(node) for node in planning.fleet.nodes)
    return ServedVariant(groups, rejected, [NEEDS_CPU_BUILD] if everywhere else ())


def _with_share(spec: Deployment, number: int, variant: Variant, planning: PlanningContext) -> Variant:
    """The variant with the requests at once of each of its replicas."""
    if variant.concurrency is None or requests_given(variant.engine_args) is not None:
        return variant
    runs = share_that_runs(variant, planning.groups_of(spec.name, number))
    each = runs or requests_share(variant.concurrency, variant.replicas or 1)
    return variant.model_copy(update={"concurrency": each})


def _in_reach(
    spec: Deployment, variant: Variant, planning: PlanningContext, ledger: MemoryLedger, share: int
) -> list[str]:
    """The longest context of the model, if the deployment sets a longer one and this one can be served."""
    predictor = planning.predictor(variant.model, spec)
    most = predictor.checkpoint.max_positions if predictor else None
    if most is None or variant.context is None or variant.context <= most:
        return []
    shorter = variant.model_copy(update={"context": most})
    return [f"fits at context {most}"] if _tried(spec, shorter, planning, ledger, share) else []


def _in_another_split(
    spec: Deployment, variant: Variant, planning: PlanningContext, ledger: MemoryLedger, share: int
) -> list[str]:
    """The split that the planner would choose in place of the deployment's, for which nodes lack room or links."""
    groups = _tried(spec, variant.model_copy(update={"parallel": None}), planning, ledger, share)
    return [f"fits without `parallel`, as {groups[0].choice.candidate.shape.split}"] if groups else []


def _tried(
    spec: Deployment, variant: Variant, planning: PlanningContext, ledger: MemoryLedger, share: int
) -> list[GroupPlan]:
    """Groups of a variant that is not the deployment's; nothing of them stays on the ledger."""
    case = _case(spec, variant, planning, share)
    if isinstance(case, Rejection):
        return []
    groups = shared_groups(case, 0, planning, ledger).groups
    for group in groups:
        ledger.take_back(spec.name, *nodes_and_bytes_of(group))
    return groups


def _case(
    spec: Deployment, variant: Variant, planning: PlanningContext, share: int
) -> VariantCase | Rejection:
    """Stacks for candidates, or the reasons for having none."""
    predictor = planning.predictor(variant.model, spec)
    if predictor is None:
        reason = "unknown checkpoint: sparkfleet needs its directory, its cached config, or a known name"
        return Rejection(what=variant.model, reason=reason, why="wanted")
    fleet = planning.fleet
    known = tuple(node for node in fleet.nodes if node.gpu is not None and is_known_gpu(node.gpu.name))
    if not known:
        return _without_sparks(variant.model)
    if len(known) < len(fleet.nodes):
        fleet = fleet.model_copy(update={"nodes": known})
    case = VariantCase(
        spec,
        variant,
        predictor,
        fleet,
        max(1, share // len(spec.resolved())),
        planning.most.get(spec.name),
        edge=spec.name in planning.edge,
        deployment_share=share,
    )
    return constraints.unwanted(case) or case


def _without_sparks(model: str) -> Rejection:
    """The reason of a fleet that has GPUs, of which none is that of a Spark."""
    return Rejection(
        what=model,
        reason="no node has the GPU of a DGX Spark, a GB10: an engine that is started by hand on another one can be named"
        " under `external` of a deployment",
        why="node",
    )


def _once(rejected: Iterable[Rejection]) -> list[Rejection]:
    """Every rejection once, rules first."""
    return sorted(dict.fromkeys(rejected), key=lambda one: _ORDER.index(one.why))
