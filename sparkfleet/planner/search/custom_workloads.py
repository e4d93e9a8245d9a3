"""A workload of its own (`engine: custom`): only its declared memory is known. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkfleet.perf.memory.demand import fits
from sparkfleet.perf.prediction import Band, Prediction, Provenance
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.search.rung_builder import ServedVariant
from sparkfleet.planner.types.plan import Candidate, GroupPlan, GroupShape, Rejection, Rung
from sparkfleet.specs.deployment import Variant
from sparkfleet.units import gib

UNASKED = "no `health` path is given: hangs after the start are not detected"


def custom_groups(
    name: str,
    number: int,
    variant: Variant,
    fleet: Fleet,
    ledger: MemoryLedger,
    *,
    runs_on: Sequence[tuple[str, ...]],
) -> ServedVariant:
    """Its groups, as many as the deployment requires or none; `runs_on`: nodes of those that run now."""
    declared = float(variant.memory_bytes or 0)
    needs = Band(
        low=declared,
        mid=declared,
        high=declared,
        provenance=Provenance.MODELLED,
        basis="declared in the deployment",
    )
    groups: list[GroupPlan] = []
    wanted = variant.replicas or 1
    for replica in range(wanted):
        prefer = runs_on[replica] if replica < len(runs_on) else ()
        for pool in fleet.pools(1, variant.nodes):
            nodes = ledger.place(pool, needs, prefer)
            if nodes is not None:
                ledger.put(name, nodes, declared)
                groups.append(GroupPlan(ladder=(_custom_rung(variant, nodes, needs),), variant=number))
                break
    if len(groups) == wanted:
        return ServedVariant(groups, [])
    for group in groups:
        ledger.take_back(name, group.choice.candidate.shape.nodes, declared)
    words = f"{gib(declared)} declared, and no usable node has that much free"
    if groups:
        words += f" for more than {len(groups)} of {wanted} replicas"
    near = [f"fits with `replicas: {len(groups)}`"] if groups else []
    empty = (ledger.emptiest(pool)[1] for pool in fleet.pools(1, variant.nodes))
    if not groups and any(fits(needs, room) != "no" for room in empty):
        near = [f"fits with one more node{' per replica' if wanted > 1 else ''}"]
    rejection = Rejection(what=f"custom · {variant.model}", reason=words, why="memory")
    return ServedVariant([], [rejection], near)


def _custom_rung(variant: Variant, nodes: tuple[str, ...], needs: Band) -> Rung:
    candidate = Candidate(
        model=variant.model,
        shape=GroupShape(nodes=nodes),
        engine="custom",
        engine_version="",
        runtime="container" if variant.image else "process",
        image=variant.image,
        context=variant.context or 0,
        concurrency=variant.concurrency or 1,
        env=tuple(sorted(variant.env.items())),
        command=variant.command,
        port=variant.port,
        health=variant.health or "/health",
    )
    return Rung(
        candidate=candidate,
        prediction=Prediction(memory_bytes_per_rank=needs),
        reason="set in the deployment" + ("" if variant.health else f"; {UNASKED}"),
    )
