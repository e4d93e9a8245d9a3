"""Warning of a plan whose ranks meet at a port that other machines reach. Pure."""

from __future__ import annotations

from collections.abc import Collection

from sparkfleet.planner.types.plan import Plan

RENDEZVOUS_ENGINES = ("vllm", "sglang")
"""Engines whose ranks meet at PyTorch's store; TensorRT-LLM's meet by MPI."""


def open_rendezvous(plan: Plan, exposed: Collection[str]) -> tuple[str, ...]:
    """A line with the nodes on which ranks would meet at a port that no firewall closes; none without such nodes."""
    rungs = [rung for one in plan.deployments for group in one.groups for rung in group.ladder]
    shapes = [rung.candidate.shape for rung in rungs if rung.candidate.engine in RENDEZVOUS_ENGINES]
    nodes = sorted(
        {node for shape in shapes if len(shape.nodes) > 1 for node in shape.nodes if node in exposed}
    )
    if not nodes:
        return ()
    return (
        f"warning: {', '.join(nodes)}: the port where ranks meet (PyTorch's store) is open on every address, asks for no"
        " token and unpickles: any machine that reaches it runs code. `sparkfleet fabric firewall --apply` closes it"
        " to machines that are no nodes.",
    )
