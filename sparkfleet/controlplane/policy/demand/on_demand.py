"""Deployments on demand: loaded when a request waits for one, unloaded when nobody uses it or another needs its memory.

Several of them may share nodes that hold only one at a time. Each that has to start, and each other deployment with missing
groups, is a claim to memory (`memory_claims`); if that is not free, loaded ones end for it (`claim_room`). Requests that are
in flight are finished first, as at every end of a group; new ones wait at the gateway until it is their deployment's turn,
in the order in which they began to wait. Nothing is ended for a deployment that would not fit without others either, or
whose nodes do not let it start, nor while memory that is about to be given back may be enough.

One that was refused its memory is unloaded, and waits for its turn again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkfleet.controlplane.policy.actions import (
    Action,
    GiveUp,
    KeepStanding,
    LoadDeployment,
    WaitForMemory,
)
from sparkfleet.controlplane.policy.demand.claim_room import OTHERS_START, ClaimRoom
from sparkfleet.controlplane.policy.demand.coming_starts import keep_for_starts
from sparkfleet.controlplane.policy.demand.loaded_memory import given_back, loaded, middle_needs
from sparkfleet.controlplane.policy.demand.memory_claims import (
    Claim,
    always_claims,
    claim_of,
    claims,
    lack,
    missing_always,
    missing_on_demand,
    needs_at_start,
    obstacle,
    waiting,
    waits_for_long,
)
from sparkfleet.controlplane.policy.demand.unloading import blocked, unload
from sparkfleet.controlplane.policy.memory_admission import FreeMemory, memory_waits, starting_again
from sparkfleet.controlplane.policy.start_choice import loadable, to_start
from sparkfleet.controlplane.policy.state import FleetState, Now
from sparkfleet.controlplane.policy.state_after import after
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.group_name import GroupKey, short_name
from sparkfleet.units import gib


def awaits_memory(state: FleetState) -> bool:
    """True if what is decided about deployments on demand depends on the free memory of the nodes.

    Also if a loaded one lacks a group: between the end of its last one and the start of the next, others may have had its
    memory, and nobody has given any to a group that an edit adds to those that run.
    """
    return bool(waiting(state) or (missing_always(state) and loaded(state)) or missing_on_demand(state))


def changes_by_time(state: FleetState) -> bool:
    """True if time alone may load or unload a deployment."""
    return awaits_memory(state) or any(
        one.spec.idle is not None
        and (demand := state.demand.get(one.name)) is not None
        and not demand.in_flight
        and demand.ready_since is not None
        for one in loaded(state)
    )


def load_requested(state: FleetState, now: Now) -> list[Action]:
    """Loads deployments for which requests wait, in the order of these, and unloads others to make room."""
    free, actions, is_kept = FreeMemory(state), list[Action](), False
    for first in claims(state, blocked(state, now)):
        claim = first
        if claim.since is not None and not is_kept:  # what is not on demand has the memory before them
            keep_for_starts(state, free)
            is_kept = True
        found, keeps = _actions(state, now, claim, free)
        if not keeps and (before := _served_before(state, now, claim)) is not None:
            found, keeps = _instead(state, now, claim, before, free) or (found, keeps)
            claim = before if keeps else claim
        state = after(state, found, now)
        if keeps:
            free.take(claim.needs)
        actions += found
    return [*actions, *_missing_groups_wait(state, now)]


def held_for_memory(state: FleetState, now: Now) -> frozenset[GroupKey]:
    """Groups that do not start now: of deployments that are not on demand, until what is being ended for them has ended; of
    those that are loaded and were edited, until their memory is known and free."""
    free = FreeMemory(state)
    held = {group for _, groups, _ in _without_memory(state, now, free) for group in groups}
    for claim in always_claims(state):
        if not free.holds(claim.needs, unknown=True) and given_back(state, claim.needs):
            held.update(claim.desired.groups)
    return frozenset(held)


def _without_memory(
    state: FleetState, now: Now, free: FreeMemory
) -> list[tuple[Desired, list[GroupKey], str]]:
    """Loaded deployments whose missing groups do not fit, or not as far as is known, with these groups and the reason.

    What those that fit may need is taken from `free`, and what failed starts need that are deployed again.
    """
    found = []
    free.keep(starting_again(state))
    for one, groups in missing_on_demand(state):
        needs, planned = needs_at_start(state, one, groups, blocked(state, now))
        if lack := _lack(state, free, planned):
            found.append((one, groups, f"{' and '.join(map(short_name, groups))}: {lack}"))
        else:
            free.take(needs)
    return found


def _lack(state: FleetState, free: FreeMemory, needs: Mapping[str, int]) -> str:
    """The memory that is missing or not known, in words; "" if there is enough.

    That of a node which is away does not count: a group there is placed, and takes a rung without that node.
    """
    if lacking := free.lacking(needs):
        node = max(lacking, key=lambda name: lacking[name])
        return f"{gib(needs[node])} on {node} are needed, which is more than is free"
    silent = sorted(needs.keys() - state.available.keys() - state.nodes.away_since.keys())
    return f"the free memory of {', '.join(silent)} is not known" if silent else ""


def _missing_groups_wait(state: FleetState, now: Now) -> Iterator[WaitForMemory]:
    """The wait of missing groups of loaded deployments, if it is not recorded yet and they wait for nothing else."""
    others = memory_waits(state, now)
    for one, _, reason in _without_memory(state, now, FreeMemory(state)):
        if one.name not in others and state.pending.recorded.get(f"{one.name}/g{one.generation}") != reason:
            yield WaitForMemory(deployment=one.name, generation=one.generation, reason=reason)


def _served_before(state: FleetState, now: Now, claim: Claim) -> Claim | None:
    """The claim of the generation that served before, if the desired one lacks memory or a node, and was given up or has let
    its requests wait for long. Not if it lacks a drained node, which is to be empty."""
    desired = state.applied.get(claim.desired.name)
    if claim.since is None or desired is not claim.desired or not state.drained.isdisjoint(claim.needs):
        return None
    is_given_up = all(state.standing(group).given_up for group in desired.groups)
    if not is_given_up and not waits_for_long(state, desired, now):
        return None
    others = [one for one in loadable(state, desired) if one.generation is not desired]
    return claim_of(state, others[0], claim.since, blocked(state, now)) if others else None


def _instead(
    state: FleetState, now: Now, claim: Claim, before: Claim, free: FreeMemory
) -> tuple[list[Action], bool] | None:
    """The load of the generation that served before, or the ends that it waits for; None if it cannot start either."""
    found, keeps = _actions(state, now, before, free)
    if not keeps:
        return None
    if not any(isinstance(one, LoadDeployment) for one in found):
        return found, True
    why = obstacle(state, claim) or lack(claim, free)
    reason = f"{why}; generation {before.desired.generation}, which served before, starts instead"
    given_up: list[Action] = [
        GiveUp(
            group=group,
            standing=standing.model_copy(update={"given_up": True, "refused": max(1, standing.refused)}),
            reason=reason,
        )
        for group in claim.groups
        if not (standing := state.standing(group)).given_up
    ]
    return [*given_up, *found], True


def _actions(state: FleetState, now: Now, claim: Claim, free: FreeMemory) -> tuple[list[Action], bool]:
    """The load of a claim, or the ends that it waits for; and True if the memory that it needs is kept for it."""
    one = claim.desired
    if claim.since is not None and (reason := obstacle(state, claim)):
        return [*_waits(state, claim, reason)], False
    if claim.since is not None and any(app.deployment == one.name for app in state.apps):
        # Also if memory holds both: the last report of a group that ends is that it is ready.
        return [*_waits(state, claim, "it starts once its last engines have ended")], True
    if free.holds(claim.needs, unknown=True):
        return _loads(state, claim), True
    return _for_room(state, now, claim, free)


def _for_room(state: FleetState, now: Now, claim: Claim, free: FreeMemory) -> tuple[list[Action], bool]:
    """The same for a claim whose memory is not free, at least not by the high end of the predicted band."""
    room = ClaimRoom(state, now, claim, free)
    if room.to_wait:
        for each in room.to_wait:
            free.release(each.name)
        return _loads(state, claim), True
    if room.is_under_way:
        ends = (unload(each, "other", f"it made room for {claim.desired.name}") for each in room.to_end)
        return [*ends, *_waits(state, claim, room.words())], True
    if claim.since is None:
        return [], True  # it starts all the same, and reports that it does not fit
    if not free.lacking(claim.planned):
        return _loads(state, claim), True
    # Those after it may have what is free: it is not enough for this one.
    return [
        *_waits(state, claim, OTHERS_START if _another_begins(state, claim) else lack(claim, free))
    ], False


def _another_begins(state: FleetState, claim: Claim) -> bool:
    """True if another one that shares a node with a claim was loaded, and has no group yet: nothing of it could end."""
    there = {app.deployment for app in state.apps}
    return any(
        one.name not in there
        and not claim.needs.keys().isdisjoint(middle_needs(state, *to_start(state, one)))
        for one in loaded(state)
        if one.name != claim.desired.name
    )


def _loads(state: FleetState, claim: Claim) -> list[Action]:
    """The load of a claim that is on demand. Its groups that were refused their memory are tried once more."""
    if claim.since is None:
        return []
    one, demand = claim.desired, state.demand.get(claim.desired.name)
    reason = f"loaded by {demand.loaded_by}" if demand and demand.loaded_by else "a request waits for it"
    again: list[Action] = [
        KeepStanding(
            group=group,
            standing=standing.model_copy(
                update={
                    "given_up": False,
                    "tries": 0,
                    "restarts": 0,
                    "passed": standing.passed[: standing.rung],
                }
            ),
            reason=reason,
        )
        for group in claim.groups
        if (standing := state.standing(group)).given_up or standing.restarts
    ]
    return [
        *again,
        LoadDeployment(deployment=one.name, generation=one.generation, reason=reason),
    ]


def _waits(state: FleetState, claim: Claim, reason: str) -> Iterator[WaitForMemory]:
    """The wait of a claim, if it is not recorded yet."""
    one = state.applied[claim.desired.name]
    if one is not claim.desired:
        before = f"generation {claim.desired.generation} served before"
        reason = f"generation {one.generation} does not start, and {before}: {reason}"
    if state.pending.recorded.get(f"{one.name}/g{one.generation}") != reason:
        yield WaitForMemory(deployment=one.name, generation=one.generation, reason=reason)
