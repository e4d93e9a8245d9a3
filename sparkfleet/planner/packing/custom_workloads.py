"""A workload of its own (`engine: custom`): only its declared memory and port are known. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkfleet.perf.memory.demand import fits
from sparkfleet.perf.prediction import DECLARED, Band, Prediction, Provenance
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.packing.served_variant import ServedVariant
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.types.plan import Candidate, GroupPlan, GroupShape, Rejection, Rung, Why
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
    """The groups, as many as the deployment requires or none; `runs_on`: nodes of those that run now."""
    declared = float(variant.memory_bytes or 0)
    needs = Band(
        low=declared,
        mid=declared,
        high=declared,
        provenance=Provenance.MODELLED,
        basis=DECLARED,
    )
    groups: list[GroupPlan] = []
    wanted = variant.replicas or 1
    for replica in range(wanted):
        prefer = runs_on[replica] if replica < len(runs_on) else ()
        for pool in fleet.pools(1, variant.nodes):
            open_ = tuple(node for node in pool.nodes if (node, variant.port) not in ledger.ports)
            nodes = ledger.place(pool.model_copy(update={"nodes": open_}), needs, prefer)
            if nodes is not None:
                ledger.put(name, nodes, declared)
                ledger.ports.update(dict.fromkeys(((node, variant.port) for node in nodes), name))
                rung = _custom_rung(variant, nodes, needs, has_gpu=bool(pool.site.gpu))
                groups.append(GroupPlan(ladder=(rung,), variant=number))
                break
    if len(groups) == wanted:
        return ServedVariant(groups, [])
    for group in groups:
        nodes = group.choice.candidate.shape.nodes
        ledger.take_back(name, nodes, declared)
        for node in nodes:
            del ledger.ports[node, variant.port]
    return _refused(variant, fleet, ledger, needs, placed=len(groups))


def _refused(
    variant: Variant, fleet: Fleet, ledger: MemoryLedger, needs: Band, *, placed: int
) -> ServedVariant:
    """The rejection of a workload of which only `placed` replicas have a node with its port and memory free."""
    usable = [node for pool in fleet.pools(1, variant.nodes) for node in pool.nodes]
    others = {node: ledger.ports[at] for node in usable if (at := (node, variant.port)) in ledger.ports}
    reasons = [f"{other} has port {variant.port} of {node}" for node, other in others.items()]
    near = [f"fits with another `port` (also in its `command`) than {other}'s" for other in others.values()]
    lacks_memory = len(others) < len(usable) or not usable
    if lacks_memory:
        words = f"{gib(needs.mid)} declared, and no {'other' if others else 'usable'} node has that much free"
        if placed:
            words += f" for more than {placed} of {variant.replicas} replicas"
            words += f", one per node as all listen on port {variant.port}"
            near.append(f"fits with `replicas: {placed}`")
        reasons.append(words)
    empty = (ledger.emptiest(pool)[1] for pool in fleet.pools(1, variant.nodes))
    if not near and any(fits(needs, room) != "no" for room in empty):
        near = [f"fits with one more node{' per replica' if (variant.replicas or 1) > 1 else ''}"]
    why: Why = "memory" if lacks_memory else "wanted"
    rejection = Rejection(what=f"custom · {variant.model}", reason="; ".join(reasons), why=why)
    return ServedVariant([], [rejection], near)


def _custom_rung(variant: Variant, nodes: tuple[str, ...], needs: Band, *, has_gpu: bool) -> Rung:
    candidate = Candidate(
        model=variant.model,
        shape=GroupShape(nodes=nodes),
        engine="custom",
        engine_version="",
        runtime="container" if variant.image else "process",
        image=variant.image,
        # A container that asks for the GPU of a machine without one does not start. A process asks for nothing.
        device="cpu" if variant.image and not has_gpu else "cuda",
        context=variant.context or 0,
        concurrency=variant.concurrency or 1,
        env=tuple(sorted(variant.env.items())),
        command=variant.command,
        port=variant.port,
        health=variant.health or "/health",
        stage_model=variant.stage_model,
    )
    return Rung(
        candidate=candidate,
        prediction=Prediction(memory_bytes_per_rank=needs),
        reason="set in the deployment" + ("" if variant.health else f"; {UNASKED}"),
    )
