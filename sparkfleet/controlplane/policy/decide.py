"""The rules of the policy in their order.

Each rule sees the state after the actions of the rules before it (`after`), but the applications as they were observed: the
next snapshot shows the effect of actions on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sparkfleet.controlplane.policy.actions import Action, EndGroup, RestartGroup
from sparkfleet.controlplane.policy.actual_rung import follow_rungs
from sparkfleet.controlplane.policy.demand.on_demand import changes_by_time, load_requested
from sparkfleet.controlplane.policy.demand.unloading import end_unloaded_starts, unload_unused
from sparkfleet.controlplane.policy.fallback import keep_groups_up
from sparkfleet.controlplane.policy.gone_nodes import leave_gone_nodes
from sparkfleet.controlplane.policy.last_served import bring_back
from sparkfleet.controlplane.policy.lost_starts import count_lost_starts
from sparkfleet.controlplane.policy.memory_admission import depends_on_memory, wait_for_memory
from sparkfleet.controlplane.policy.memory_retry import refused, retry_refused
from sparkfleet.controlplane.policy.older_groups import end_older
from sparkfleet.controlplane.policy.pending_starts import end_barred
from sparkfleet.controlplane.policy.rollout import (
    forget_ended,
    forgets_later,
    make_room,
    retire_replaced,
    retire_unwanted,
    start_missing,
)
from sparkfleet.controlplane.policy.start_choice import to_bring_back
from sparkfleet.controlplane.policy.state import FleetState, Now
from sparkfleet.controlplane.policy.state_after import after

RULES: tuple[Callable[[FleetState, Now], Sequence[Action]], ...] = (
    forget_ended,
    count_lost_starts,
    end_unloaded_starts,
    end_barred,
    unload_unused,
    load_requested,
    retire_unwanted,
    wait_for_memory,
    retire_replaced,
    make_room,
    keep_groups_up,
    end_older,
    follow_rungs,
    leave_gone_nodes,
    start_missing,  # beside what takes another rung in this round
    retry_refused,
    bring_back,
)


def decide(state: FleetState, now: Now) -> list[Action]:
    """The actions that bring a fleet nearer to its desired state, in the order of execution."""
    actions: list[Action] = []
    for rule in RULES:
        found = rule(state, now)
        state = after(state, found, now)
        actions.extend(found)
    return _restarted_once(actions)


def is_at_rest(state: FleetState) -> bool:
    """True if no rule of the policy that has no action now gets one by the passing of time alone.

    Time counts for nodes that are away, for failures that wait for an answer or were answered, for starts that have not
    ended, for positions of older groups until the desired ones have served for long, and for generations that wait for
    memory, groups that were refused it, and generations that are to serve again: memory is not part of what a round
    compares.
    """
    pending = state.pending
    return not (
        state.nodes.looked_at is None
        or state.nodes.away_since
        or state.starts
        or pending.answered
        or pending.failed_at
        or depends_on_memory(state)
        or refused(state)
        or to_bring_back(state)
        or forgets_later(state)
        or changes_by_time(state)
    )


def _restarted_once(actions: list[Action]) -> list[Action]:
    """Without restarts that a later rule of this round replaces: its restart or end belongs to the stored rung."""
    last = {one.group: one for one in actions if isinstance(one, RestartGroup | EndGroup)}
    answered = {one.group for one in actions if isinstance(one, RestartGroup) and one.answers}
    return [
        replace(one, answers=one.group in answered) if isinstance(one, RestartGroup) else one
        for one in actions
        if not isinstance(one, RestartGroup) or last[one.group] is one
    ]
