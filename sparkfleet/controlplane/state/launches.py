"""Launches of every group of a deployment, from its plan."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.controlplane.desired import Desired
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.engines.rendezvous import Management, rank_networks
from sparkfleet.fabric.node_addresses import node_addresses
from sparkfleet.group.launch_plan import SILENCE_S, GroupLaunch, RankPlacement
from sparkfleet.group.token_patience import patience_s
from sparkfleet.planner.types.plan import Rung
from sparkfleet.specs.inventory import Inventory


def launches_for(
    inventory: Inventory, desired: Desired, rungs: Mapping[int, int] | None = None
) -> tuple[GroupLaunch, ...]:
    """Launch of each group of a deployment, in the order of its plan. Reads nothing.

    Args:
        inventory: the fleet.
        desired: the deployment.
        rungs: index of the rung of each group, by its index in the plan; left out: 0.

    Raises:
        ControlError: the plan has a node that is no longer in the inventory.
    """
    return tuple(
        GroupLaunch(
            deployment=name,
            generation=generation,
            replica=replica,
            rung=at,
            candidate=rung.candidate,
            needs=int(rung.prediction.memory_bytes_per_rank.mid),
            placements=_placements(inventory, rung.candidate.shape.nodes),
            silence_s=desired.spec.silence or SILENCE_S,
            patience_s=_patience_s(rung, inventory.timeouts.proof_s),
            timeouts=inventory.timeouts,
            probed=rung.candidate.engine == "custom" and desired.spec.health is not None,
        )
        for (name, generation, replica), at, rung in desired.at_rungs(rungs or {})
    )


def _patience_s(rung: Rung, proof_s: float) -> float:
    what = rung.candidate
    steps = bool(engine_by_name(what.engine).step_metrics)
    return patience_s(what.context, what.concurrency, rung.prediction, steps=steps, proof_s=proof_s)


def _placements(inventory: Inventory, nodes: tuple[str, ...]) -> tuple[RankPlacement, ...]:
    if len(inventory.nodes) == 1:
        return tuple(RankPlacement(node=node) for node in nodes)
    addresses = {node: found.address for node, found in node_addresses(inventory).items()}
    # In a ring ranks meet on the management network; `rank_node` finds its netdev on the node, by the address.
    management = {node: Management(netdev="", address=address) for node, address in addresses.items()}
    networks = rank_networks(inventory.links, nodes, management) or (None,) * len(nodes)
    return tuple(
        RankPlacement(node=node, address=addresses[node], network=network)
        for node, network in zip(nodes, networks, strict=True)
    )
