"""Memory of groups that start in this round or soon, kept for them before anything else is started on demand."""

from __future__ import annotations

from functools import partial

from sparkfleet.controlplane.policy.demand.loaded_memory import has_group, middle_needs
from sparkfleet.controlplane.policy.memory_admission import FreeMemory, needed, starting_again
from sparkfleet.controlplane.policy.rolling_update import RollingUpdate
from sparkfleet.controlplane.policy.start_choice import StartChoice, to_bring_back
from sparkfleet.controlplane.policy.state import FleetState


def keep_for_starts(state: FleetState, free: FreeMemory, without: str = "") -> None:
    """Keeps memory for failed starts that are deployed again, and for groups of loaded deployments on demand that start.

    Groups of a deployment that do not fit wait (`held_for_memory`), and keep nothing: another deployment may have what is
    free, or theirs may have to end for that one. A group that still ends has its memory until then. What is kept for further
    groups of a deployment that serves is reserved: such a group may wait for another one's load (`ClaimRoom.to_wait`).

    Args:
        without: a deployment on demand to leave out.
    """
    ending = {app.group for app in state.apps if app.status == "retiring"}
    free.keep(starting_again(state))
    for one, groups in _about_to_start(state, without):
        is_ending = not ending.isdisjoint(groups)
        if not is_ending and free.lacking(middle_needs(state, one, groups)):
            continue
        if not is_ending and has_group(state, one):
            free.reserve(one.name, needed(state, one, groups))
        else:
            free.take(needed(state, one, groups))


def _about_to_start(state: FleetState, without: str) -> list[StartChoice]:
    """Groups of loaded deployments on demand that have no application yet, or are deployed again once it has ended."""
    there = {app.group: app.status for app in state.apps}
    # What serves nobody yet comes first, as where they are started (`missing_on_demand`).
    missing = [
        StartChoice(
            one,
            tuple(
                group
                for group in one.groups
                if there.get(group, "retiring") == "retiring" and not state.standing(group).given_up
                if not RollingUpdate(state, one).blockers(group)
            ),
        )
        for one in sorted(state.to_run.values(), key=partial(has_group, state))
    ]
    again = [StartChoice(served, (group,)) for served, groups in to_bring_back(state) for group in groups]
    return [
        one
        for one in (*missing, *again)
        if state.to_run[one.generation.name].spec.on_demand and one.generation.name != without
    ]
