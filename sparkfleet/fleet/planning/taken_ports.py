"""Warnings of declared ports of custom workloads on which another program of a node listens, such as Ray or Grafana."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from sparkfleet.errors import FactError, NodeError
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket, ReadSockets
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.remote.channel import Channel

LISTED_S = 10.0
"""Time limit of a node's list; without it the start finds the port taken."""

Port = tuple[str, int]
"""A node and a port."""


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
        done = await channel.run(ReadSockets.argv, timeout_s=LISTED_S)
        return ReadSockets.answer(done.exit_code, done.stdout, done.stderr)
    except (NodeError, FactError):
        return ()


def _lines(wanted: Mapping[Port, str], listed: Mapping[str, tuple[ListeningSocket, ...]]) -> Iterator[str]:
    for (node, port), name in wanted.items():
        # A custom workload listens on the node's loopback; a socket of a rail's address alone is no obstacle.
        others = [one for one in listed[node] if one.port == port and (one.anywhere or one.local)]
        if others:
            who = next((one.process for one in others if one.process), "a program of another user")
            yield (
                f"warning: {name}: {who} listens on port {port} of {node}, so its start there fails."
                " Give it another `port` (also in its `command`)."
            )
