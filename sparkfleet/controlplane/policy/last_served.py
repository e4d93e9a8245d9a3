"""The last generation that served, if the one that replaced it does not start: it serves again.

If memory did not hold both, it had to end first, so nothing serves once the newer one is given up. The newer one stays the
desired one, and is not started again before it is applied again. One on demand starts with a request, as any.
"""

from __future__ import annotations

from sparkfleet.controlplane.policy.actions import Action, StartGroup
from sparkfleet.controlplane.policy.demand.coming_starts import keep_for_starts
from sparkfleet.controlplane.policy.demand.loaded_memory import middle_needs
from sparkfleet.controlplane.policy.memory_admission import FreeMemory, granted, needed
from sparkfleet.controlplane.policy.pending_starts import hold_back, is_uncertain
from sparkfleet.controlplane.policy.start_choice import to_bring_back
from sparkfleet.controlplane.policy.state import FleetState, Now, nodes_of
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.group_name import GroupKey


def bring_back(state: FleetState, now: Now) -> list[Action]:
    """Starts the last generation that served again, on nodes that are present and have its memory free, at its rungs."""
    found: list[Action] = []
    # What starts beside groups that it replaces begins in this round, too.
    taken = [
        needed(state, state.to_run[group[0]], [group]) for group, fits in granted(state, now).items() if fits
    ]
    for served, groups in to_bring_back(state):
        free = FreeMemory(state)
        for needs in taken:
            free.take(needs)
        keep_for_starts(state, free, without=served.name)
        newest = state.to_run[served.name].generation
        reason = f"generation {newest} did not start, and generation {served.generation} served before it"
        for group in groups:
            nodes = nodes_of(served, group, state.standing(group))
            is_there = state.drained.isdisjoint(nodes) and state.nodes.boots.keys() >= set(nodes)
            is_there = is_there and state.unusable.keys().isdisjoint(nodes)
            if not is_there or not _fits(state, served, group, free):
                continue
            needs = needed(state, served, [group])
            taken.append(needs)
            free.take(needs)
            if is_uncertain(state, group, now):
                found += hold_back(state, group)
            else:
                found.append(StartGroup(group=group, nodes=nodes, reason=reason))
    return found


def _fits(state: FleetState, served: Desired, group: GroupKey, free: FreeMemory) -> bool:
    """True if a group's nodes are known to have its memory free: the high end of the predicted band, or its middle if it is
    on demand, because others have ended for that already."""
    if not state.to_run[served.name].spec.on_demand:
        return bool(free.holds(needed(state, served, [group])))
    needs = middle_needs(state, served, [group])
    return not free.lacking(needs) and needs.keys() <= state.available.keys()
