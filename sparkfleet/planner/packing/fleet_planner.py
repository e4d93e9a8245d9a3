"""Plans deployments on a fleet, packed jointly, with the reason for every choice. Pure: no I/O, no clock.

The hardest come first: pinned ones, then the largest. Each takes its nodes from those that are left (`memory_ledger.py`),
for each of its variants (`deployment_planner.py`): the best candidate of its ladder that has room (`variant_planner.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.perf.latency.local_acceptance import LocalAcceptance
from sparkfleet.perf.local_measurements import LocalMeasurement
from sparkfleet.planner.capacity.headroom import reached
from sparkfleet.planner.capacity.joint_sizing import sizes_of, with_even_sizes, with_room
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.proposal import Sizes, VariantCase
from sparkfleet.planner.engine_args.user_overrides import take_over
from sparkfleet.planner.packing.deployment_planner import plan_deployment
from sparkfleet.planner.packing.planning_context import PlanningContext
from sparkfleet.planner.packing.served_variant import nodes_and_bytes_of
from sparkfleet.planner.packing.shared_kv import shared_kv
from sparkfleet.planner.packing.standby import with_standbys
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.search.rule_effects import allows
from sparkfleet.planner.types.cpu_model import CpuModel
from sparkfleet.planner.types.plan import DeploymentPlan, GroupPlan, InfeasibleDeployment, Plan
from sparkfleet.specs.deployment import Deployment, drafts_of

ATTEMPTS = 3
"""Orders in which deployments are packed before one is refused."""
FEW = 3
"""Refused deployments for which another order is tried; with more of them the fleet is too small, not badly packed."""

Checkpoints = Mapping[str, Checkpoint]


def plan_fleet(
    specs: Sequence[Deployment],
    fleet: Fleet,
    checkpoints: Checkpoints | None = None,
    running: Mapping[str, DeploymentPlan] | None = None,
    measurements: Sequence[LocalMeasurement] = (),
    *,
    acceptances: Mapping[str, tuple[LocalAcceptance, ...]] | None = None,
    builtin_models: Mapping[str, CpuModel] | None = None,
    resized: bool = False,
    yielding: Collection[str] = (),
    unloaded: Collection[str] = (),
) -> Plan:
    """The plan that serves all of `specs` on `fleet`.

    Args:
        specs: the deployments.
        fleet: nodes, links.
        checkpoints: facts of the checkpoints by the `model` of deployments; custom workloads and built-in models need none.
        running: plans of what runs now; those of `specs` give their memory back, and keep their nodes if they can.
        measurements: those of this fleet; predictions of the same setups follow it.
        acceptances: by deployment, acceptance of drafts on its own requests; predictions with the same drafts follow it, and
            open depths are chosen by it.
        builtin_models: capabilities of built-in models, by name.
        resized: groups that run do not keep the share of `concurrency` that they were sized for.
        yielding: deployments on demand among `running` that are loaded: their memory counts as free.
        unloaded: deployments on demand among `running` that are not: they hold no memory.

    Deployments on demand have all the memory that the others leave, each of them: they take turns. Deployments that cannot
    be served are in `refused`, with every rejection and the nearest thing that would fit.
    """
    planning = PlanningContext(
        fleet,
        dict(checkpoints or {}),
        dict(running or {}),
        measurements=tuple(measurements),
        acceptances=dict(acceptances or {}),
        drafts=drafts_of(specs),
        builtin_models=dict(builtin_models or {}),
        resized=resized,
        replaced=frozenset(spec.name for spec in specs),
        yielding=frozenset(yielding),
        unloaded=frozenset(unloaded),
    )
    always = [spec for spec in specs if not spec.on_demand]
    first = _planned(always, planning)
    apart = replace(planning, beside=first.nodes, takes_turns=True)
    return _joined(first, [_planned([spec], apart) for spec in specs if spec.on_demand], specs)


def _joined(first: Plan, others: Sequence[Plan], specs: Sequence[Deployment]) -> Plan:
    """One plan of several, each with one deployment on demand beside the first."""
    if not others:
        return first
    names = [spec.name for spec in specs]
    plans = (first, *others)
    held = {(load.node, placed) for one in others for load in one.nodes for placed in load.placed}
    nodes = [
        load.model_copy(
            update={
                "on_demand": tuple(
                    sorted(placed for node, placed in held if node == load.node and placed not in load.placed)
                )
            }
        )
        for load in first.nodes
    ]
    return Plan(
        deployments=tuple(
            sorted((one for plan in plans for one in plan.deployments), key=lambda one: names.index(one.name))
        ),
        refused=tuple(
            sorted((one for plan in plans for one in plan.refused), key=lambda one: names.index(one.name))
        ),
        nodes=tuple(nodes),
    )


def _planned(specs: Sequence[Deployment], planning: PlanningContext) -> Plan:
    """The plan of deployments that run at once."""
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
    plan = _evenly(_with_room(tried, specs, planning), tried[0][0], specs, planning)
    plan = _finished(_at_the_edge(plan, tried[0][0], specs, planning), specs, planning)
    return with_standbys(plan, specs, planning)


def _hardest_first(spec: Deployment, planning: PlanningContext) -> tuple[bool, float, str]:
    """Deployments that may use few nodes first, then the largest: what is left over suits the small ones."""
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


def _evenly(
    plan: Plan, order: Sequence[Deployment], specs: Sequence[Deployment], planning: PlanningContext
) -> Plan:
    """The plan with open sizes shared more evenly among deployments that share a node, if all are served.

    What runs keeps its sizes, since it would be started again.
    """
    if plan.refused or not 1 < len(specs) <= FEW:
        return plan
    asked = {spec.name: spec for spec in specs}

    def pack(most: Mapping[str, Sizes]) -> Plan:
        return _pack(order, specs, replace(planning, most={**planning.most, **most}))

    def alone(name: str) -> Sizes | None:
        found = _pack([asked[name]], [asked[name]], planning).of(name)
        return None if found is None else sizes_of(found)

    running = {name: sizes_of(one) for name, one in planning.running.items() if name in asked}
    return with_even_sizes(plan, pack, alone, {name: one for name, one in running.items() if one})


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
    kept = {} if planning.takes_turns else planning.most_kept()
    ledger = MemoryLedger(planning.fleet, planning.given_back(), kept=kept)
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
    predictor = planning.predictor(variant.model, spec)
    if predictor is None or choice.prediction.decode_tps_per_request is None:
        return group
    variant, _ = take_over(variant)
    nodes, taken = nodes_and_bytes_of(group)
    case, room = VariantCase(spec, variant, predictor, planning.fleet), ledger.shared(nodes).plus(taken)
    most = reached(case, choice, room, allows=allows)
    prediction = choice.prediction.model_copy(update=most)
    choice = choice.model_copy(update={"prediction": prediction})
    prediction = prediction.model_copy(update={"shared_kv": shared_kv(case, choice, room)})
    return group.model_copy(
        update={"ladder": (choice.model_copy(update={"prediction": prediction}), *group.ladder[1:])}
    )


def _pack(order: Sequence[Deployment], specs: Sequence[Deployment], planning: PlanningContext) -> Plan:
    names = {spec.name for spec in specs}
    kept = {} if planning.takes_turns else planning.most_kept()
    ledger = MemoryLedger(planning.fleet, planning.given_back(), planning.ports_beside(names), kept)
    for load in planning.beside:
        for name, held in load.placed:
            ledger.put(name, (load.node,), held)
    plans: dict[str, DeploymentPlan] = {}
    refused: dict[str, InfeasibleDeployment] = {}
    for at, spec in enumerate(order):
        share = max(1, _empty_nodes(ledger) // (len(order) - at))
        groups, rejected, missing = plan_deployment(spec, planning, ledger, share)
        if groups:
            plans[spec.name] = DeploymentPlan(
                name=spec.name,
                objective=spec.objective,
                groups=tuple(groups),
                left_out=tuple(missing),
                rejected=tuple(rejected),
                drivers=tuple((node.name, node.gpu.driver) for node in planning.fleet.nodes if node.gpu),
            )
        else:
            model = spec.resolved()[0].model
            refused[spec.name] = InfeasibleDeployment(
                name=spec.name,
                model=model,
                rejected=tuple(rejected),
                nearest=tuple(dict.fromkeys(words for one in missing for words in one.nearest)),
            )
    return Plan(
        deployments=tuple(plans[spec.name] for spec in specs if spec.name in plans),
        refused=tuple(refused[spec.name] for spec in specs if spec.name in refused),
        nodes=ledger.loads(),
    )


def _empty_nodes(ledger: MemoryLedger) -> int:
    return sum(not load.placed for load in ledger.loads())
