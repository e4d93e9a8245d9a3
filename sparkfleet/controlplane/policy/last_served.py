"""The last generation that served, if the one that replaced it does not start: it serves again.

If memory did not hold both, it had to end first, so nothing serves once the newer one is given up. The newer one stays the
desired one, and is not started again before it is applied again.
"""

from __future__ import annotations

from sparkfleet.controlplane.policy.actions import Action, StartGroup
from sparkfleet.controlplane.policy.memory_admission import FreeMemory, about_to_start, needed
from sparkfleet.controlplane.policy.pending_starts import hold_back, is_uncertain
from sparkfleet.controlplane.policy.state import FleetState, Now, nodes_of
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.group_name import GroupKey


def is_down(state: FleetState, desired: Desired) -> bool:
    """True if every desired group is given up, and nothing of the deployment runs, starts or ends."""
    runs = any(app.deployment == desired.name and app.status != "failed" for app in state.apps)
    return not runs and all(state.standing(group).given_up for group in desired.groups)


def to_bring_back(state: FleetState) -> list[tuple[Desired, list[GroupKey]]]:
    """Generations that served, of deployments that are down, each with its groups that were not given up since.

    One of them that has failed without that starts again by itself (`older_groups`).
    """
    there = {app.group for app in state.apps}
    found = [
        (
            served,
            [group for group in served.groups if group not in there and not state.standing(group).given_up],
        )
        for name, served in state.last_served.items()
        if name in state.to_run and is_down(state, state.to_run[name])
    ]
    return [(served, groups) for served, groups in found if groups]


def bring_back(state: FleetState, now: Now) -> list[Action]:
    """Starts the last generation that served again, on nodes that are present and have its memory free, at its rungs."""
    free = FreeMemory(state)
    for needs in about_to_start(state):
        free.take(needs)
    found: list[Action] = []
    for served, groups in to_bring_back(state):
        newest = state.to_run[served.name].generation
        reason = f"generation {newest} did not start, and generation {served.generation} served before it"
        for group in groups:
            nodes = nodes_of(served, group, state.standing(group))
            needs = needed(state, served, [group])
            is_there = state.drained.isdisjoint(nodes) and state.nodes.boots.keys() >= set(nodes)
            is_there = is_there and state.unusable.keys().isdisjoint(nodes)
            if not is_there or not free.holds(needs):
                continue
            free.take(needs)
            if is_uncertain(state, group, now):
                found += hold_back(state, group)
            else:
                found.append(StartGroup(group=group, nodes=nodes, reason=reason))
    return found
