"""The nodes of an inventory against those with which its fleet was started. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sparkfleet.errors import ControlError
from sparkfleet.specs.inventory import Inventory

if TYPE_CHECKING:  # slow imports, for a controller that answers
    from sparkfleet.controlplane.state.status import FleetStatus
    from sparkfleet.planner.types.plan import DeploymentPlan


def other_nodes(inventory: Inventory, status: FleetStatus | None) -> ControlError | None:
    """The error for an inventory that has other nodes than the running fleet; None if they are the same, or not known.

    A controller keeps the nodes of its start: one that is added joins Ray and is never reported, and one that is taken out
    is reported as gone.
    """
    running = [one.name for one in status.nodes] if status is not None else []
    added = [name for name in inventory.nodes if name not in running]
    removed = [name for name in running if name not in inventory.nodes]
    if not running or not (added or removed):
        return None
    means = [f"{', '.join(added)} cannot be used yet."] if added else []
    means += [f"{', '.join(removed)} counts as part of it."] if removed else []
    do = "`sparkfleet down`, then `sparkfleet up`: deployments and keys stay, engines load again."
    if removed:
        names = ", ".join(removed)
        do += (
            f" `down` stops the nodes of the inventory only: if {names} can be reached, put it back into the inventory,"
            " `sparkfleet down`, delete it and its links there, `sparkfleet up`."
        )
    return ControlError(
        f"Fleet {inventory.fleet} was started with {', '.join(running)}; the inventory has {', '.join(inventory.nodes)}.",
        means=f"It keeps the nodes of its start. {' '.join(means)}",
        do=do,
    )


def without_their_nodes(inventory: Inventory, status: FleetStatus) -> str:
    """Deployments that do not start for lack of nodes that the inventory does not have, in words; "" for none."""
    names: list[str] = []
    missing: set[str] = set()
    for one in status.deployments:
        planned = (
            {node for group in one.plan.groups for node in group.choice.candidate.shape.nodes}
            if one.plan
            else set()
        )
        if unknown := planned - inventory.nodes.keys():
            names.append(one.name)
            missing |= unknown
    if not names:
        return ""
    is_one = len(names) == 1
    return (
        f"{', '.join(names)} {'does' if is_one else 'do'} not start: {'its plan needs' if is_one else 'their plans need'}"
        f" {', '.join(sorted(missing))}, which the inventory does not have. `sparkfleet apply` with"
        f" {'its file plans it' if is_one else 'their files plans them'} for the present nodes."
    )


def require_known_nodes(
    inventory: Inventory, status: FleetStatus | None, plans: Iterable[DeploymentPlan]
) -> None:
    """Raises ControlError if a plan uses a node that the running fleet does not have: its groups would wait without end."""
    running = {one.name for one in status.nodes} if status is not None else set()
    for plan in plans:
        planned = {node for group in plan.groups for node in group.choice.candidate.shape.nodes}
        unknown = sorted(planned - running)
        if not running or not unknown:
            continue
        error = other_nodes(inventory, status) if set(unknown) & set(inventory.nodes) else None
        raise error or ControlError(
            f"The plan of {plan.name} needs {', '.join(unknown)}, which the fleet does not have.",
            do=f"`sparkfleet apply` with the file of {plan.name} plans it for the present nodes.",
        )
