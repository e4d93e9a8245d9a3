"""The rules of the policy in their order.

Each rule sees the state after the actions of the rules before it (`after`), but the applications as they were observed: the
next snapshot shows the effect of actions on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sparkfleet.controlplane.policy.actions import Action, EndGroup, RestartGroup
from sparkfleet.controlplane.policy.after import after
from sparkfleet.controlplane.policy.fallback import count_lost_starts, keep_groups_up, leave_gone_nodes
from sparkfleet.controlplane.policy.memory_admission import wait_for_memory
from sparkfleet.controlplane.policy.memory_retry import retry_refused
from sparkfleet.controlplane.policy.pending_starts import end_barred, learn_boots
from sparkfleet.controlplane.policy.rollout import (
    forget_ended,
    make_room,
    retire_replaced,
    retire_unwanted,
    start_missing,
)
from sparkfleet.controlplane.policy.state import FleetState, Now

RULES: tuple[Callable[[FleetState, Now], Sequence[Action]], ...] = (
    forget_ended,
    learn_boots,
    count_lost_starts,
    end_barred,
    retire_unwanted,
    wait_for_memory,
    retire_replaced,
    make_room,
    start_missing,
    keep_groups_up,
    leave_gone_nodes,
    retry_refused,
)


def decide(state: FleetState, now: Now) -> list[Action]:
    """The actions that bring a fleet nearer to its desired state, in the order of execution."""
    actions: list[Action] = []
    for rule in RULES:
        found = rule(state, now)
        state = after(state, found, now)
        actions.extend(found)
    return _restarted_once(actions)


def _restarted_once(actions: list[Action]) -> list[Action]:
    """Without restarts that a later rule of this round replaces: its restart or end belongs to the stored rung."""
    last = {one.group: one for one in actions if isinstance(one, RestartGroup | EndGroup)}
    answered = {one.group for one in actions if isinstance(one, RestartGroup) and one.answers}
    return [
        replace(one, answers=one.group in answered) if isinstance(one, RestartGroup) else one
        for one in actions
        if not isinstance(one, RestartGroup) or last[one.group] is one
    ]
