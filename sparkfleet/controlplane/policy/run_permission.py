"""Answers to a group's actor: may its engine start, and is it to run on while the actor is being stopped? Pure."""

from __future__ import annotations

from collections.abc import Collection

from sparkfleet.controlplane.policy.state import FleetState
from sparkfleet.group.group_name import GroupKey


def is_wanted(state: FleetState, group: GroupKey, rung: int) -> bool:
    """True if the engine of a group at a rung is to run on under the next actor of the same group.

    A group of an older generation is kept as long as its application is not retired: it serves until the new one does.
    Without any application the controller has just started, and does not know the groups that it retired.
    """
    desired = state.to_run.get(group[0])
    app = next((one for one in state.apps if one.group == group), None)
    if desired is None or (app is not None and app.status == "retiring"):
        return False
    if group not in desired.groups:
        return group[1] < desired.generation and (app is not None or not state.apps)
    standing = state.standing(group)
    return standing.rung == rung and not standing.given_up


def barred_by(state: FleetState, nodes: Collection[str]) -> str:
    """The drained ones of the nodes on which an engine is to start, in words with the command; "" if it may start."""
    drained = sorted(state.drained.intersection(nodes))
    if not drained:
        return ""
    are = "is" if len(drained) == 1 else "are"
    return f"{' and '.join(drained)} {are} drained: it starts after `sparkfleet undrain {drained[0]}`"
