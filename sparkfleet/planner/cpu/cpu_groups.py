"""Groups on nodes without a GPU: the built-in models, GGUF files, and checkpoints in a directory. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.perf.prediction import Band
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.cpu.cpu_gguf import for_llama_cpp, gguf_misfit
from sparkfleet.planner.cpu.cpu_rung import NO_WEIGHTS, CpuWeights, cpu_rung, rank_memory, shape_of
from sparkfleet.planner.cpu.cpu_stacks import ENGINES, missing_stack, stack_of, uses_gpu
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.search.constraints import open_ring, wanted
from sparkfleet.planner.types.plan import GroupPlan, Rejection, Rung, Why
from sparkfleet.specs.deployment import Variant
from sparkfleet.units import gib

GPU_DRAFTS = ("dflash2", "dspark")
"""Methods that vLLM 0.32 has in its model runner V2 only, which needs Triton (docs/builtin.md)."""

NEEDS_CPU_BUILD = (
    "fits on a node with vLLM's CPU build alone (`sparkfleet[local]`), such as this machine: `address: local`"
)
"""The next step if every node's engines run on its GPU."""


def runs_on_cpu(variant: Variant, fleet: Fleet) -> bool:
    """True if engines of a variant run on CPUs: a built-in model, or a fleet in which no node's GPU could be used."""
    return variant.model.startswith("builtin:") or not any(uses_gpu(node) for node in fleet.nodes)


def cpu_groups(
    name: str,
    number: int,
    variant: Variant,
    fleet: Fleet,
    ledger: MemoryLedger,
    *,
    runs_on: Sequence[tuple[str, ...]] = (),
    weights: CpuWeights = NO_WEIGHTS,
) -> tuple[list[GroupPlan], list[Rejection]]:
    """A group per replica, and why other nodes are not used. Places them on the ledger.

    Args:
        name: the deployment's.
        number: which of its variants this is.
        variant: the checkpoint, with its constraints.
        fleet: the nodes.
        ledger: what is left of their memory.
        runs_on: nodes of its groups that run now, which stay there if they can.
        weights: facts of a directory's weights, and of its draft's; a built-in model has none.
    """
    variant = for_llama_cpp(variant, weights.model)
    if reason := gguf_misfit(variant, weights.model):
        return [], [wanted(variant.model.rpartition("/")[2], reason)]
    able: list[NodeFacts] = []
    rejected: list[Rejection] = []
    for node in fleet.nodes:
        refusal = _refusal(variant, node, ledger, weights)
        if refusal is None:
            able.append(node)
        else:
            rejected.append(refusal)
    groups: list[GroupPlan] = []
    for replica in range(variant.replicas or 1):
        prefer = runs_on[replica] if replica < len(runs_on) else ()
        rungs = _rungs(
            variant, fleet.model_copy(update={"nodes": tuple(able)}), ledger, prefer, weights=weights
        )
        if not rungs:
            for group in groups:
                choice = group.choice
                ledger.take_back(
                    name, choice.candidate.shape.nodes, choice.prediction.memory_bytes_per_rank.mid
                )
            need = rank_memory(variant, None, weights)
            return [], [*rejected, *_no_site(variant, fleet, able, len(groups), need)]
        chosen = rungs[0]
        ledger.put(name, chosen.candidate.shape.nodes, chosen.prediction.memory_bytes_per_rank.mid)
        groups.append(GroupPlan(ladder=tuple(rungs), variant=number))
    return groups, rejected


def _refusal(
    variant: Variant, node: NodeFacts, ledger: MemoryLedger, weights: CpuWeights
) -> Rejection | None:
    """Reason why `variant` cannot run on `node`, or None. Checked in the order in which a person would look."""
    if variant.nodes and node.name not in variant.nodes:
        return _no(variant, node, "not among the nodes that the deployment names", "wanted")
    if uses_gpu(node):
        gpu = node.gpu.name if node.gpu else ""
        return _no(variant, node, f"{gpu}: built-in models run on CPUs only")
    if not variant.model.startswith(("builtin:", "/")):
        return _no(
            variant,
            node,
            f"{variant.model} is not on this node, and nodes without a GPU download no weights",
        )
    if variant.engine not in ("auto", *ENGINES, "llama.cpp"):
        return _no(variant, node, f"engine {variant.engine} has no CPU build that can be launched")
    return _stack_refusal(variant, node, ledger, weights)


def _stack_refusal(
    variant: Variant, node: NodeFacts, ledger: MemoryLedger, weights: CpuWeights
) -> Rejection | None:
    stack = stack_of(variant, (node,), node)
    if stack is None:
        return _no(variant, node, missing_stack(variant, node))
    if stack.engine == "sglang" and variant.speculation.method not in ("auto", "none"):
        return _no(
            variant, node, "SGLang's speculative kernels are built for CUDA only; vLLM's CPU build has them"
        )
    if variant.speculation.method in GPU_DRAFTS and stack.engine == "vllm":
        method = variant.speculation.method.upper()
        return _no(variant, node, f"vLLM's CPU build refuses {method}: only its model runner for GPUs has it")
    free, needed = ledger.room(node.name).at_most, rank_memory(variant, stack, weights).high
    if needed > free:
        words = f"needs {gib(needed, exact=True)}; {gib(free, exact=True)} are available"
        return _no(variant, node, words, "memory")
    return None


def _rungs(
    variant: Variant,
    fleet: Fleet,
    ledger: MemoryLedger,
    prefer: Sequence[str] = (),
    *,
    weights: CpuWeights = NO_WEIGHTS,
) -> list[Rung]:
    """Places for one more group, `prefer` first. Of single nodes any will do, in the order of the inventory."""
    ranks = shape_of(variant).ranks
    stacks = {node.name: found for node in fleet.nodes if (found := stack_of(variant, fleet.nodes, node))}
    if ranks == 1:
        free = [
            name
            for name, stack in stacks.items()
            if ledger.room(name).at_most >= rank_memory(variant, stack, weights).high
        ]
        free.sort(
            key=lambda name: (name not in prefer, len(ledger.beside((name,))))
        )  # replicas on different nodes
        return [cpu_rung(variant, (name,), stacks[name], weights) for name in free]
    rungs = [
        cpu_rung(variant, nodes, stack, weights)
        for stack in dict.fromkeys(stacks.values())  # all ranks get the same command: one engine, at one path
        for pool in fleet.pools(ranks, [name for name, its in stacks.items() if its == stack])
        if (nodes := ledger.place(pool, rank_memory(variant, stack, weights), prefer)) is not None
    ]

    def order(rung: Rung) -> tuple[bool, int]:
        nodes = rung.candidate.shape.nodes
        return nodes != tuple(prefer), sum(bool(ledger.beside((node,))) for node in nodes)

    return sorted(rungs, key=order)


def _no_site(
    variant: Variant, fleet: Fleet, able: Sequence[NodeFacts], placed: int, need: Band
) -> list[Rejection]:
    """Reason for having no place for one more group."""
    shape = shape_of(variant)
    if not able:
        return []
    if shape.ranks == 1:
        count = variant.replicas or 1
        reason = f"memory has room for {placed} of {count} replicas; {gib(need.high, exact=True)} are reserved for each"
        return [Rejection(what=f"replicas: {count}", reason=reason, why="memory")]
    if fleet.open_rings(shape.ranks, [node.name for node in able]):
        return [open_ring(shape.ranks)]
    names = ", ".join(node.name for node in able)
    reason = f"{shape.ranks} linked nodes with room on each are needed; usable here: {names}"
    return [Rejection(what=f"TP={shape.tp}", reason=reason, why="node")]


def _no(variant: Variant, node: NodeFacts, reason: str, why: Why = "engine") -> Rejection:
    return Rejection(what=f"{node.name} · TP={shape_of(variant).tp}", reason=reason, why=why)
