"""From what is asked for and what is true to what will be done, with reasons. Pure: no I/O, no clock.

    plan_fleet        several deployments on one fleet, packed jointly
    plan_deployment   one deployment; raises Infeasible

The hardest come first: pinned ones, then the largest. Each takes its nodes from what is left (`pack.py`), on the best of its
ladder (`ladder.py`) that has room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from sparkfleet.errors import Infeasible
from sparkfleet.facts.checkpoint import Checkpoint
from sparkfleet.facts.link import LinkFacts
from sparkfleet.facts.node import NodeFacts
from sparkfleet.knowledge.rules import Rule, planning_rules
from sparkfleet.planning import embedded
from sparkfleet.planning.fleet import Fleet
from sparkfleet.planning.ladder import Chooser, Served, nth
from sparkfleet.planning.measured import Measured
from sparkfleet.planning.outlook import Outlook, outlook_of
from sparkfleet.planning.pack import Ledger
from sparkfleet.planning.pinned import misread, take_over
from sparkfleet.planning.plan import (
    Band,
    Candidate,
    DeploymentPlan,
    GroupPlan,
    Plan,
    Prediction,
    Provenance,
    Refusal,
    Rejection,
    Rung,
    Shape,
    Why,
)
from sparkfleet.planning.sizing import Case, quant_of
from sparkfleet.spec.deployment import Deployment, Variant

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
    measurements: Sequence[Measured] = (),
) -> Plan:
    """Choose how to serve all of `specs` on `fleet`.

    Args:
        specs: what is asked for.
        fleet: nodes, links.
        checkpoints: facts of the checkpoints by `model` as the deployments name it; custom and embedded ones need none.
        running: plans of what runs now; those of `specs` give their memory back, and keep their nodes where they can.
        measurements: what was measured on this fleet; predictions of the same setups follow it.

    Deployments that cannot be served stand in `refused`, with every rejection and the nearest thing that would fit.
    """
    known = Desk(fleet, dict(checkpoints or {}), dict(running or {}), measurements=tuple(measurements))
    order = sorted(specs, key=lambda spec: _hardest_first(spec, known))
    best: Plan | None = None
    for _ in range(ATTEMPTS):
        plan = _pack(order, specs, known)
        if best is None or len(plan.refused) < len(best.refused):
            best = plan
        late = {refusal.name for refusal in plan.refused}
        again = [spec for spec in order if spec.name in late] + [
            spec for spec in order if spec.name not in late
        ]
        if again == order or len(late) > FEW:
            break
        order = again
    assert best is not None
    return best


def plan_deployment(
    spec: Deployment,
    nodes: Sequence[NodeFacts],
    held: Mapping[str, int] | None = None,
    *,
    checkpoints: Checkpoints | None = None,
    links: Sequence[LinkFacts] = (),
    assumed: Sequence[str] = (),
    measurements: Sequence[Measured] = (),
) -> DeploymentPlan:
    """Choose how to serve `spec` on `nodes`.

    Args:
        spec: what is asked for.
        nodes: facts of the nodes that may be used.
        held: bytes per node that this deployment's own running groups will give back, by node name.
        checkpoints: facts of the checkpoints by `model`.
        links: the cables between the nodes.
        assumed: nodes that nobody has asked.
        measurements: what was measured on these nodes; predictions of the same setups follow it.

    Raises:
        Infeasible: no candidate is left; the message carries every rejection.
    """
    fleet = Fleet(nodes=tuple(nodes), links=tuple(links), assumed=tuple(assumed))
    desk = Desk(fleet, dict(checkpoints or {}), {}, dict(held or {}), tuple(measurements))
    plan = _pack([spec], [spec], desk)
    if plan.refused:
        raise infeasible(plan.refused[0])
    return plan.deployments[0]


def infeasible(refusal: Refusal) -> Infeasible:
    """The error that a refusal is, with every rejection in its message."""
    reasons = "\n".join(f"  {one.what}: {one.reason}{_cited(one)}" for one in refusal.rejected)
    near = "; ".join(refusal.nearest)
    return Infeasible(
        f"{refusal.name}: nothing in this fleet can serve {refusal.model}.",
        means=f"Rejected:\n{reasons}",
        do=f"Nearest: {near}."
        if near
        else "Change the deployment or the inventory where a reason says so, then `sparkfleet plan` again.",
    )


def _cited(rejection: Rejection) -> str:
    return f"   {rejection.rule} ({rejection.source})" if rejection.rule else ""


# --- packing ----------------------------------------------------------------------------------------------------------


@dataclass
class Desk:
    """What one run of the planner works with, and what it has worked out once for all deployments."""

    fleet: Fleet
    checkpoints: dict[str, Checkpoint]
    running: dict[str, DeploymentPlan]
    held: dict[str, int] = field(default_factory=dict)
    measurements: tuple[Measured, ...] = ()

    def outlook(self, model: str) -> Outlook | None:
        """Memory and speed of a model; None where its checkpoint is not known."""
        checkpoint = self.checkpoints.get(model)
        if checkpoint is None:
            return None
        return outlook_of(checkpoint, tuple(one for one in self.measurements if one.model == model))

    def given_back(self, names: Iterable[str]) -> dict[str, int]:
        """Bytes per node that the running groups of these deployments give back."""
        held: dict[str, int] = defaultdict(int, self.held)
        for name in names:
            for group in self.running[name].groups if name in self.running else ():
                for node in group.choice.candidate.shape.nodes:
                    held[node] += int(group.choice.prediction.memory_bytes_per_rank.mid)
        return dict(held)

    def nodes_of(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Where the groups of a deployment run now."""
        plan = self.running.get(name)
        return tuple(group.choice.candidate.shape.nodes for group in plan.groups) if plan else ()


def _hardest_first(spec: Deployment, desk: Desk) -> tuple[bool, float, str]:
    """Those that may use few nodes, then the largest: what is left over suits the small ones."""
    variants = spec.resolved()
    sizes = [float(desk.checkpoints[v.model].bytes_on_disk) for v in variants if v.model in desk.checkpoints]
    declared = [float(v.memory_bytes or 0) for v in variants]
    return (not any(v.nodes for v in variants), -max((*sizes, *declared)), spec.name)


def _pack(order: Sequence[Deployment], specs: Sequence[Deployment], desk: Desk) -> Plan:
    ledger = Ledger(desk.fleet, desk.given_back(spec.name for spec in specs))
    plans: dict[str, DeploymentPlan] = {}
    refused: dict[str, Refusal] = {}
    for at, spec in enumerate(order):
        share = max(1, _empty_nodes(ledger) // (len(order) - at))
        groups, rejected, near = _serve(spec, desk, ledger, share)
        if groups:
            plans[spec.name] = DeploymentPlan(
                name=spec.name,
                objective=spec.objective,
                groups=tuple(groups),
                rejected=tuple(_once(rejected)),
            )
        else:
            model = spec.resolved()[0].model
            refused[spec.name] = Refusal(
                name=spec.name,
                model=model,
                rejected=tuple(_once(rejected)),
                nearest=tuple(dict.fromkeys(near)),
            )
    return Plan(
        deployments=tuple(plans[spec.name] for spec in specs if spec.name in plans),
        refused=tuple(refused[spec.name] for spec in specs if spec.name in refused),
        nodes=ledger.loads(),
    )


def _empty_nodes(ledger: Ledger) -> int:
    return sum(not load.placed for load in ledger.loads())


def _once(rejected: Iterable[Rejection]) -> list[Rejection]:
    """Every rejection once, rules first."""
    return sorted(dict.fromkeys(rejected), key=lambda one: _ORDER.index(one.why))


def _serve(
    spec: Deployment, desk: Desk, ledger: Ledger, share: int
) -> tuple[list[GroupPlan], list[Rejection], list[str]]:
    """Groups for every variant of a deployment, as far as they fit; unlike replicas are all served."""
    groups: list[GroupPlan] = []
    rejected: list[Rejection] = []
    near: list[str] = []
    variants = spec.resolved()
    for number, variant in enumerate(variants):
        found, reasons, nearest_ = _serve_variant(
            spec, number, variant, desk, ledger, share=max(1, share // len(variants))
        )
        known = _known(desk.checkpoints.get(variant.model))
        groups += [group.model_copy(update=known) for group in found]
        rejected += reasons if len(variants) == 1 else [_of_variant(one, variant) for one in reasons]
        near += nearest_
    return groups, rejected, near


def _known(checkpoint: Checkpoint | None) -> dict[str, object]:
    """What a group's plan says of its checkpoint. A tower that is only declared may have been left out in quantising."""
    if checkpoint is None:
        return {}
    vision = False if checkpoint.vision is None and not checkpoint.declares_vision else checkpoint.vision
    return {"family": checkpoint.model_type, "vision": vision}


def _of_variant(rejection: Rejection, variant: Variant) -> Rejection:
    return rejection.model_copy(update={"what": f"{variant.model.rpartition('/')[2]} · {rejection.what}"})


def _serve_variant(
    spec: Deployment, number: int, variant: Variant, desk: Desk, ledger: Ledger, *, share: int
) -> Served:
    if variant.engine == "custom":
        return _serve_custom(spec, number, variant, desk, ledger)
    variant, wrong = take_over(variant)
    if wrong:
        return [], [_wanted("engine_args", one.reason) for one in wrong], [one.remedy for one in wrong]
    if embedded.takes(variant, desk.fleet):
        groups, rejected = embedded.embedded_groups(spec.name, number, variant, desk.fleet, ledger)
        return groups, rejected, []
    with_gpu = tuple(node for node in desk.fleet.nodes if node.gpu is not None)
    outlook = desk.outlook(variant.model)
    if outlook is None:
        reason = "nothing is known about this checkpoint: its directory, a cached download, or a known name is needed"
        return [], [Rejection(what=variant.model, reason=reason, why="wanted")], []
    fleet = (
        desk.fleet
        if len(with_gpu) == len(desk.fleet.nodes)
        else desk.fleet.model_copy(update={"nodes": with_gpu})
    )
    case = Case(spec, variant, outlook, fleet, share)
    refusal = _unwanted(case)
    if refusal is not None:
        return [], [refusal], []
    return Chooser(case, ledger, desk.nodes_of(spec.name)).groups(number)


# --- custom -----------------------------------------------------------------------------------------------------------


def _serve_custom(spec: Deployment, number: int, variant: Variant, desk: Desk, ledger: Ledger) -> Served:
    """A workload of its own: only its declared memory is known."""
    size_ = float(variant.memory_bytes or 0)
    needs = Band(
        low=size_, mid=size_, high=size_, provenance=Provenance.MODELLED, basis="declared in the deployment"
    )
    groups: list[GroupPlan] = []
    for replica in range(variant.replicas or 1):
        prefer = nth(desk.nodes_of(spec.name), replica)
        for pool in desk.fleet.pools(1, variant.nodes):
            nodes = ledger.place(pool, needs, prefer)
            if nodes is not None:
                ledger.put(spec.name, nodes, size_)
                groups.append(GroupPlan(ladder=(_custom_rung(variant, nodes, needs),), variant=number))
                break
    if groups:
        return groups, [], []
    words = f"{size_ / 2**30:.0f} GiB are declared, and no node that may be used has that much free"
    return [], [Rejection(what=f"custom · {variant.model}", reason=words, why="memory")], []


def _custom_rung(variant: Variant, nodes: tuple[str, ...], needs: Band) -> Rung:
    candidate = Candidate(
        model=variant.model,
        shape=Shape(nodes=nodes),
        engine="custom",
        engine_version="",
        runtime="container" if variant.image else "process",
        image=variant.image,
        context=variant.context or 0,
        concurrency=variant.concurrency or 1,
        env=tuple(sorted(variant.env.items())),
        command=variant.command,
        port=variant.port,
        health=variant.health,
    )
    return Rung(
        candidate=candidate,
        prediction=Prediction(memory_bytes_per_rank=needs),
        reason="as the deployment says",
    )


# --- constraints ------------------------------------------------------------------------------------------------------


def _unwanted(case: Case) -> Rejection | None:
    """Why no candidate of this checkpoint may be taken, whatever its shape; None where any may."""
    spec, variant, checkpoint = case.spec, case.variant, case.outlook.checkpoint
    name = variant.model.rpartition("/")[2]
    if spec.license == "open" and checkpoint.license.kind != "open-source":
        said = checkpoint.license.id or "not known"
        kind = "is no open-source license" if checkpoint.license.id else "so that it cannot be called open"
        return _wanted(
            name,
            f"license {said}: {kind}, and the deployment says `license: open`",
            _license_rule(checkpoint),
        )
    vision = checkpoint.declares_vision if checkpoint.vision is None else checkpoint.vision
    if "vision" in spec.needs and not vision:
        return _wanted(name, "has no vision tower among its weights, and the deployment needs vision")
    most = checkpoint.max_positions
    if variant.context is not None and most is not None and variant.context > most:
        return _wanted(
            name, f"is made for {most} tokens, and the deployment asks for a context of {variant.context}"
        )
    unreadable = misread(variant.engine_args, quant_of(case))
    if unreadable:
        return _wanted(name, unreadable)
    if variant.nodes and not set(variant.nodes) & {node.name for node in case.fleet.nodes}:
        return _wanted(name, f"none of the nodes {', '.join(variant.nodes)} has a GPU")
    return None


def _license_rule(checkpoint: Checkpoint) -> Rule | None:
    wanted = "license-nvidia-open-model" if "nvidia-open-model" in checkpoint.license.id else ""
    return next((rule for rule in planning_rules() if rule.id == wanted), None)


def _wanted(what: str, reason: str, rule: Rule | None = None) -> Rejection:
    cited = {} if rule is None else {"rule": rule.id, "source": rule.sources[0]}
    return Rejection.model_validate({"what": what, "reason": reason, "why": "wanted", **cited})
