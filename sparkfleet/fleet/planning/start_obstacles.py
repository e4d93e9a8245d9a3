"""Warnings of what makes a planned start fail, or lack room: another program on a declared port, a disk that is too full."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.errors import FactError, NodeError
from sparkfleet.hostfacts.disk import ReadContainerSpace, ReadHomeSpace
from sparkfleet.hostfacts.fact import Fact
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket, ReadSockets
from sparkfleet.knowledge.engines.images import images_of
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.remote.channel import Channel
from sparkfleet.units import gb

ANSWER_S = 10.0
"""Time limit of a node's answer; without it the start finds out."""


async def start_obstacles(
    channels: Mapping[str, Channel],
    plans: Collection[DeploymentPlan],
    running: Collection[DeploymentPlan],
    checkpoints: Mapping[str, Checkpoint],
) -> tuple[str, ...]:
    """A line for each obstacle to a start of these plans.

    Args:
        running: plans of the fleet's deployments.
        checkpoints: facts, by model.
    """
    ports, tables, kv = await asyncio.gather(
        taken_ports(channels, plans, running),
        too_large_tables(channels, plans, running, checkpoints),
        too_large_kv(channels, plans, running),
    )
    return (*ports, *tables, *kv)


async def too_large_kv(
    channels: Mapping[str, Channel], plans: Iterable[DeploymentPlan], running: Iterable[DeploymentPlan]
) -> tuple[str, ...]:
    """A line for each node whose disk has less room than `kv_disk` allows to be used.

    A node on which the deployment runs with it already is left out: its files are part of what is used.
    """
    there = {(plan.name, node) for plan in running for node, _ in _kept_kv(plan)}
    wanted = [
        (plan.name, node, size)
        for plan in plans
        for node, size in _kept_kv(plan)
        if (plan.name, node) not in there
    ]
    return tuple(
        f"warning: {name}: `kv_disk` allows {gb(size)}, and the disk of {node}'s home has {gb(free)} free: less is kept,"
        f" as a part of the disk stays free. `sparkfleet models` shows what else is there."
        for name, node, size, free in await _too_large(channels, wanted, ReadHomeSpace)
    )


def _kept_kv(plan: DeploymentPlan) -> Iterator[tuple[str, int]]:
    """Nodes on which the plan keeps KV on the disk, with the most bytes of it."""
    for candidate in (group.choice.candidate for group in plan.groups):
        if candidate.kv_disk_bytes is not None:
            yield from ((node, candidate.kv_disk_bytes) for node in candidate.shape.nodes)


async def too_large_tables(
    channels: Mapping[str, Channel],
    plans: Iterable[DeploymentPlan],
    running: Iterable[DeploymentPlan],
    checkpoints: Mapping[str, Checkpoint],
) -> tuple[str, ...]:
    """A line for each node without room for the n-gram tables that a start of these plans writes into its container.

    A node that runs an engine with the same tables is left out: its file goes with its container.
    """
    there = {node for plan in running for node, _ in _written(plan, checkpoints)}
    wanted = [
        (plan.name, node, size)
        for plan in plans
        for node, size in _written(plan, checkpoints)
        if node not in there
    ]
    return tuple(
        f"warning: {name}: each start writes {gb(size)} of n-gram tables into its container, and the disk of {node}'s"
        f" containers has {gb(free)} free: the engine ends while it loads. `docker system df` shows what takes the space."
        for name, node, size, free in await _too_large(channels, wanted, ReadContainerSpace)
    )


def _written(plan: DeploymentPlan, checkpoints: Mapping[str, Checkpoint]) -> Iterator[tuple[str, float]]:
    """Nodes on which a start of the plan writes tables, with their bytes."""
    for candidate in (group.choice.candidate for group in plan.groups):
        checkpoint, known = checkpoints.get(candidate.model), images_of(candidate.image or "")
        if checkpoint is None or not checkpoint.table_bytes or len(known) != 1:
            continue
        tables = known[0].disk_tables(checkpoint.model_type)
        if tables is not None and tables.written:
            nodes = candidate.shape.nodes
            yield from ((node, checkpoint.table_bytes / len(nodes)) for node in nodes)


async def _too_large(
    channels: Mapping[str, Channel], wanted: Sequence[tuple[str, str, float]], fact: type[Fact[int]]
) -> list[tuple[str, str, float, int]]:
    """Deployments, nodes and bytes for which a disk of the node has too little space, each with that."""
    nodes = sorted({node for _, node, _ in wanted})
    spaces = await asyncio.gather(*(_space(channels[node], fact) for node in nodes))
    found = dict(zip(nodes, spaces, strict=True))
    return [(*one, free) for one in wanted if (free := found[one[1]]) is not None and free < one[2]]


async def _space(channel: Channel, fact: type[Fact[int]]) -> int | None:
    try:
        done = await channel.run(fact.argv, timeout_s=ANSWER_S)
        return fact.answer(done.exit_code, done.stdout, done.stderr)
    except (NodeError, FactError):
        return None


async def taken_ports(
    channels: Mapping[str, Channel], plans: Iterable[DeploymentPlan], running: Iterable[DeploymentPlan]
) -> tuple[str, ...]:
    """A line for each declared port of these plans that another program has.

    Args:
        running: plans of the fleet's deployments: what listens on their ports are they themselves, and the planner keeps
            the ports of others free.
    """
    known = {at for plan in running for at in plan.declared_ports}
    wanted = {at: plan.name for plan in plans for at in sorted(plan.declared_ports - known)}
    nodes = sorted({node for node, _ in wanted})
    listed = await asyncio.gather(*(_listed(channels[node]) for node in nodes))
    return tuple(_lines(wanted, dict(zip(nodes, listed, strict=True))))


async def _listed(channel: Channel) -> tuple[ListeningSocket, ...]:
    try:
        done = await channel.run(ReadSockets.argv, timeout_s=ANSWER_S)
        return ReadSockets.answer(done.exit_code, done.stdout, done.stderr)
    except (NodeError, FactError):
        return ()


def _lines(
    wanted: Mapping[tuple[str, int], str], listed: Mapping[str, tuple[ListeningSocket, ...]]
) -> Iterator[str]:
    for (node, port), name in wanted.items():
        # A custom workload listens on the node's loopback; a socket of a rail's address alone is no obstacle.
        others = [one for one in listed[node] if one.port == port and (one.anywhere or one.local)]
        if others:
            who = next((one.process for one in others if one.process), "a program of another user")
            yield (
                f"warning: {name}: {who} listens on port {port} of {node}, so its start there fails."
                " Give it another `port` (also in its `command`)."
            )
