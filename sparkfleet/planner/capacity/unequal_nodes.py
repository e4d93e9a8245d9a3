"""Nodes of unequal memory under one deployment: the share of each rank, and the notes of plans on them. Pure.

A group is sized for its smallest node, and all replicas of a deployment for the smallest node of any of them: ranks hold
equal parts of a model, and one public name has one context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sparkfleet.knowledge.hardware import memory_alike, memory_size
from sparkfleet.perf.memory.demand import FLOOR
from sparkfleet.planner.types.plan import Candidate, GroupPlan
from sparkfleet.units import gib

PAIRS = "https://build.nvidia.com/spark/vllm-cluster/advanced"
"""NVIDIA's advice, 2026-10: two Sparks of one memory size."""


def rank_fractions(candidate: Candidate, totals: Sequence[int], planned: int) -> tuple[float, ...]:
    """The share of memory of every rank; () if one share does for all.

    vLLM takes a share of its own node's memory, on every node by that node's argument (vllm/v1/worker/utils.py,
    `request_memory`), and refuses to start if less is free; its KV cache has the blocks of the rank with the fewest. Ranks
    of SGLang take a share of the least free memory among them, so theirs stays one.

    Args:
        candidate: with the share of the smallest node.
        totals: memory of its nodes, bytes, by rank.
        planned: memory that its share is of, bytes.
    """
    share = candidate.memory_fraction
    of_its_own = candidate.engine == "vllm" or (candidate.engine == "sglang" and candidate.shape.ranks == 1)
    if share is None or not of_its_own or memory_alike((*totals, planned)):
        return ()
    return tuple(min(share, math.ceil(100 * share * planned / total) / 100) for total in totals)


def group_note(nodes: Sequence[str], totals: Mapping[str, int]) -> str:
    """The note on a group over nodes of unequal memory; "" if they are of one size."""
    sizes = [totals[node] for node in nodes]
    if memory_alike(sizes):
        return ""
    least, most = min(nodes, key=lambda node: totals[node]), max(nodes, key=lambda node: totals[node])
    return (
        f"unequal memory: {sizes_of(nodes, totals)}; every rank has the room of {least}, so this group cannot use"
        f" {gib(totals[most] - totals[least])} of {most}; NVIDIA pairs Sparks of one size ({PAIRS})"
    )


def share_note(candidate: Candidate, totals: Mapping[str, int], free: Mapping[str, float]) -> str:
    """The note on a share in the deployment's arguments that is more than a larger node has free; "" if each has it.

    Args:
        candidate: with the share that the deployment sets.
        totals: memory of all nodes, bytes.
        free: bytes that its nodes have for it.
    """
    share = candidate.memory_fraction
    if candidate.engine != "vllm" or share is None:
        return ""
    short = [node for node in candidate.shape.nodes if share * totals[node] > free[node] + FLOOR]
    return "".join(
        f"vLLM requires {share:g} of each node's own memory at its start: {gib(share * totals[node])} of {node}, which has"
        f" {gib(max(0.0, free[node]))} left"
        for node in short[:1]
    )


def replicas_note(groups: Sequence[GroupPlan], totals: Mapping[str, int]) -> str:
    """The note on replicas that are sized for smaller nodes than some of them have; "" if all have the same."""
    places = [group.choice.candidate.shape.nodes for group in groups]
    least = {nodes: min(totals[node] for node in nodes) for nodes in places}
    if len(groups) < 2 or memory_alike(list(least.values())):
        return ""
    return (
        "replicas on nodes of unequal memory: all have the context and the requests that fit the smallest"
        f" ({memory_size(min(least.values()))}); two `variants` of this model, each with its `nodes`, are sized apart"
    )


def equal_reason(nodes: Sequence[str], totals: Mapping[str, int], others: Sequence[str]) -> str:
    """The reason of a group on nodes of one size, if nodes of another one could have taken their place; "" if none could.

    Args:
        nodes: of the group.
        totals: memory of all nodes, bytes.
        others: nodes that could be in a group with them.
    """
    sizes = [totals[node] for node in nodes]
    unlike = [node for node in others if not memory_alike((totals[node], max(sizes)))]
    if not unlike or not memory_alike(sizes):
        return ""
    return (
        f"nodes of equal memory, {memory_size(min(sizes))} each, rather than with {sizes_of(unlike, totals)}"
    )


def sizes_of(nodes: Sequence[str], totals: Mapping[str, int]) -> str:
    """The nominal memory of each node: "spark1 128 GB, spark2 64 GB"."""
    return ", ".join(f"{node} {memory_size(totals[node])}" for node in nodes)
