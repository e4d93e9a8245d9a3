"""Places for groups that lose a node: a rung for each node that may be lost, beside all that goes on without it. Pure.

A plan is made first. Then each of its nodes is taken away in turn: the groups on it end, the others go on, and each of those
is planned again on what is left. One loss at a time: groups of different nodes may count on the same memory.

After the loss of the head they go on once another node is the head (`sparkfleet move-head NODE --lost`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from sparkfleet.perf.memory.demand import fits
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.cpu.cpu_rung import shape_of
from sparkfleet.planner.packing.deployment_planner import serve_variant
from sparkfleet.planner.packing.planning_context import PlanningContext
from sparkfleet.planner.packing.served_variant import nodes_and_bytes_of
from sparkfleet.planner.types.node_load import StandbyOffer
from sparkfleet.planner.types.plan import Candidate, GroupPlan, Plan, Rung
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import MIB

HEAD_BYTES = 871 * MIB
"""Memory of Ray, controller and gateway on the head, of which another node has a part already (`benchmarks/start.py`, 2 x86
cores)."""


class _Place(NamedTuple):
    """A group in its plan."""

    deployment: str
    at: int


def with_standbys(plan: Plan, specs: Sequence[Deployment], planning: PlanningContext) -> Plan:
    """The plan with rungs for groups that lose a node, with the memory that is kept for them, and with what could be.

    Args:
        plan: of deployments that run at once, complete.
        specs: its deployments.
        planning: inputs of the planner.

    Those for the loss of the head are last: of rungs that are alike the one that needs no command is tried before.
    """
    asked = {spec.name: spec for spec in specs if spec.standby is not False}
    groups = {_Place(one.name, at): group for one in plan.deployments for at, group in enumerate(one.groups)}
    found: dict[_Place, dict[str, Rung | None]] = defaultdict(dict)
    kept, offers = planning.kept(), list[StandbyOffer]()
    for node in sorted(planning.fleet.by_name, key=lambda name: name == planning.fleet.head):
        lost = {at: group for at, group in groups.items() if node in group.choice.candidate.shape.nodes}
        moving = {at: group for at, group in lost.items() if at.deployment in asked}
        ledger = _without(node, plan, lost, planning, kept[node]) if moving else None
        for at, group in moving.items():
            spec = asked[at.deployment]
            allowed = _allowed(spec, group, node, planning)
            rung = group.without(node)
            if rung is None and allowed and ledger is not None:
                served = _served(spec, group, allowed, planning, ledger)
                rung = served.choice if served is not None else None
            elif rung is None and ledger is not None:
                offers += _offers(spec, at, plan, planning, ledger)
            found[at][node] = rung
            for other, size in group.further(rung).items() if rung is not None and spec.standby else ():
                by_name = kept[node].setdefault(other, {})
                by_name[at.deployment] = by_name.get(at.deployment, 0) + size
    return _finished(plan, asked, found, kept).model_copy(update={"offers": tuple(offers)})


def _offers(
    spec: Deployment, one: _Place, plan: Plan, planning: PlanningContext, ledger: MemoryLedger
) -> Iterator[StandbyOffer]:
    """Memory that `standby: true` would keep for the only group of a deployment, on one node, if another has room for it.

    Nothing stays on the ledger.
    """
    groups = [each for made in plan.deployments if made.name == one.deployment for each in made.groups]
    choice, (group, *others) = groups[0].choice.candidate, groups
    if spec.standby is not None or spec.on_demand or others or choice.shape.ranks > 1:
        return
    (lost,), needs = choice.shape.nodes, group.choice.prediction.memory_bytes_per_rank
    wished = spec.model_copy(update={"standby": True})
    allowed = _allowed(wished, group, lost, planning)
    if all(fits(needs, ledger.room(name)) != "fits" for name in allowed):
        return
    ports = dict(ledger.ports)
    served = _served(wished, group, allowed, planning, ledger)
    if served is not None:
        ledger.take_back(spec.name, *nodes_and_bytes_of(served))
        ledger.ports = ports
        found = served.choice.candidate
        if found.model_copy(update={"shape": choice.shape}) == choice:
            for node, size in group.further(served.choice).items():
                yield StandbyOffer(name=spec.name, lost=lost, node=node, bytes=size)


def _allowed(spec: Deployment, group: GroupPlan, node: str, planning: PlanningContext) -> tuple[str, ...]:
    """Nodes that a group may go on with: all others that its deployment may use if it has a standby, else those of its own.
    Empty if they are fewer than the ranks that the deployment sets."""
    variant = spec.resolved()[group.variant]
    names = planning.fleet.by_name if spec.standby else group.choice.candidate.shape.nodes
    found = tuple(name for name in names if name != node and (not variant.nodes or name in variant.nodes))
    return found if len(found) >= shape_of(variant).ranks else ()


def _without(
    node: str,
    plan: Plan,
    lost: Collection[_Place],
    planning: PlanningContext,
    kept: Mapping[str, Mapping[str, int]],
) -> MemoryLedger:
    """Memory of the nodes after the loss of one: without the groups that were on it.

    After that of the head any other one is to have room for its processes: its owner chooses which.
    """
    names = {one.name for one in plan.deployments}
    taken = {other: sum(by_name.values()) for other, by_name in kept.items()}
    spare = HEAD_BYTES if node == planning.fleet.head else 0
    ledger = MemoryLedger(planning.fleet, planning.given_back(), planning.ports_beside(names), taken, spare)
    for load in planning.beside:
        for name, held in load.placed:
            ledger.put(name, (load.node,), held)
    for one in plan.deployments:
        for at, group in enumerate(one.groups):
            if _Place(one.name, at) not in lost:
                ledger.put(one.name, *nodes_and_bytes_of(group))
                ledger.ports.update(dict.fromkeys(group.choice.candidate.declared_ports, one.name))
    return ledger


def _served(
    spec: Deployment,
    group: GroupPlan,
    allowed: tuple[str, ...],
    planning: PlanningContext,
    ledger: MemoryLedger,
) -> GroupPlan | None:
    """A group with the best candidate on the nodes that are left, put on the ledger; None if nothing can serve there.

    With the engine of its choice, whose image is there; with its sizes as far as the deployment sets them.
    """
    choice, variant = group.choice.candidate, spec.resolved()[group.variant]
    alone = variant.model_copy(
        update={
            "nodes": allowed,
            "replicas": 1,
            "engine": choice.engine,
            "concurrency": choice.concurrency if variant.concurrency is not None else None,
        }
    )
    apart = replace(planning, running={})
    share = choice.shape.ranks * len(spec.resolved())  # not wider: more nodes would need the weights
    served = serve_variant(spec, group.variant, alone, apart, ledger, share=share).groups
    return served[0] if served else None


def _finished(
    plan: Plan,
    asked: Mapping[str, Deployment],
    found: Mapping[_Place, Mapping[str, Rung | None]],
    kept: Mapping[str, Mapping[str, Mapping[str, int]]],
) -> Plan:
    deployments = [
        one.model_copy(
            update={
                "groups": tuple(
                    _with_rungs(group, found[_Place(one.name, at)], warns=bool(asked[one.name].standby))
                    for at, group in enumerate(one.groups)
                ),
                "keeps_standby": bool(asked[one.name].standby),
            }
        )
        if one.name in asked
        else one
        for one in plan.deployments
    ]
    nodes = [load.model_copy(update={"kept": _most(load.node, kept)}) for load in plan.nodes]
    return plan.model_copy(update={"deployments": tuple(deployments), "nodes": tuple(nodes)})


def _with_rungs(group: GroupPlan, found: Mapping[str, Rung | None], *, warns: bool) -> GroupPlan:
    """The group with a rung for each of its nodes; if `warns`, with a note on each that nothing replaces."""
    lost: dict[Candidate, list[str]] = defaultdict(list)
    rungs: dict[Candidate, Rung] = {}
    for node, rung in found.items():
        if rung is not None and rung not in group.ladder:
            lost[rung.candidate].append(node)
            rungs.setdefault(rung.candidate, rung)
    more = [
        rung.model_copy(update={"reason": f"if {' or '.join(lost[candidate])} is lost; {rung.reason}"})
        for candidate, rung in rungs.items()
    ]
    first = group.choice
    if warns and (alone := [node for node, rung in found.items() if rung is None]):
        note = f"no standby if {' or '.join(alone)} is lost: no other nodes can serve it beside the rest"
        first = first.model_copy(update={"notes": (*first.notes, note)})
    return group.model_copy(update={"ladder": (first, *group.ladder[1:], *more)})


def _most(node: str, kept: Mapping[str, Mapping[str, Mapping[str, int]]]) -> tuple[tuple[str, int], ...]:
    """Bytes that are kept on a node, by deployment, for the loss of whichever other node takes most."""
    found = (by_node.get(node, {}) for by_node in kept.values())
    return tuple(max(found, key=lambda by_name: sum(by_name.values()), default={}).items())
