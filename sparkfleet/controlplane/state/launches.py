"""Launch of a group of a deployment, from its plan."""

from __future__ import annotations

from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.engines.rendezvous import Management, rank_networks
from sparkfleet.errors import ControlError
from sparkfleet.fabric.node_addresses import node_addresses
from sparkfleet.group.group_launch import SILENCE_S, GroupLaunch, RankPlacement
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.token_patience import patience_s
from sparkfleet.planner.types.plan import Rung
from sparkfleet.specs.inventory import Inventory


def launch_for(inventory: Inventory, desired: Desired, group: GroupKey, at: int) -> GroupLaunch:
    """Launch of one group of a deployment at this rung. Reads nothing.

    Raises:
        ControlError: the rung has a node that is not in the inventory.
        EngineError: no link joins its nodes any more.
    """
    plan = desired.plan_of(group)
    at = plan.rung_index(at)
    rung = plan.ladder[at]
    _require_known(inventory, desired.name, rung.candidate.shape.nodes)
    name, generation, replica = group
    return GroupLaunch(
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


def _require_known(inventory: Inventory, name: str, nodes: tuple[str, ...]) -> None:
    if unknown := [node for node in nodes if node not in inventory.nodes]:
        raise ControlError(
            f"The plan of {name} needs {' and '.join(unknown)}, which the fleet does not have.",
            means="Its group is not started.",
            do=f"`sparkfleet apply` with the file of {name} plans it for the present nodes.",
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
