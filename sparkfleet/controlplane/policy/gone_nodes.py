"""Groups that need a node which does not come back, or that wait for a drained one: they go on without it, or wait.

The plan has the rungs that do without (`planner/packing/standby.py`); here one is taken. A start that may have taken its
node down is not taken to other nodes, which it could take down, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sparkfleet.controlplane.policy.actions import Action, KeepStanding, MoveGroup, StopWaiting, WaitForNodes
from sparkfleet.controlplane.policy.fallback import FallbackCase, move
from sparkfleet.controlplane.policy.ladder import TOOK_DOWN, may_have_lost_its_node, rung_without
from sparkfleet.controlplane.policy.state import FleetState, Now, nodes_of
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.group_name import GroupKey


def leave_gone_nodes(state: FleetState, now: Now) -> list[Action]:
    """Moves groups off nodes that do not come back, and groups that may not start off drained ones.

    They take the first rung without such nodes; if there is none, they wait.
    """
    found = {
        app.group: _leave(FallbackCase(state, now, app, state.to_run[app.deployment]))
        for app in state.desired_apps
    }
    waits = {group for group, actions in found.items() if actions is not None}
    ended = [
        StopWaiting(group=group, reason="its nodes are back, or it moved to others")
        for group in state.pending.waiting
        if group not in waits or any(isinstance(one, MoveGroup) for one in found[group] or ())
    ]
    return [*ended, *(action for actions in found.values() for action in actions or ())]


def rung_without_lost(
    state: FleetState, desired: Desired, group: GroupKey, lost: Collection[str]
) -> int | None:
    """The rung on which a group goes on without nodes that it has lost, and without drained ones; None if it waits.

    It is the first below, or one above that the group has left for a node which is there again.
    """
    plan, standing, own = desired.plan_of(group), state.standing(group), bool(_bound_by(state, group))
    below = rung_without(plan, {*lost, *state.drained}, standing.rung, own=own)
    if below is not None:
        return below
    absent = {*lost, *state.nodes.away_since, *state.drained}
    return next(
        (
            at
            for at in standing.vacated
            if at < len(plan.ladder) and not (own and plan.is_elsewhere(plan.ladder[at]))
            if not absent.intersection(plan.ladder[at].candidate.shape.nodes)
        ),
        None,
    )


def _leave(one: FallbackCase) -> list[Action] | None:
    """Actions for a group that needs a node that is gone, or that waits for a drained one; None for others."""
    blocked = _blocked(one)
    if not blocked or one.app.status == "retiring" or one.standing.given_up:
        return None
    gone = one.state.nodes.gone(one.now)
    rung = rung_without_lost(one.state, one.desired, one.group, gone)
    if rung is not None:
        return move(one, rung, blocked.what, vacates=True)
    bound = _bound_by(one.state, one.group)
    why = f"{blocked.what}, and {_waits_words(one, blocked, gone, bound)}; it starts {blocked.until}"
    noted: list[Action] = []
    if bound != one.standing.bound:
        standing = one.standing.model_copy(update={"bound": bound})
        noted = [KeepStanding(group=one.group, standing=standing, reason=blocked.what)]
    if one.state.pending.waiting.get(one.group) == why:
        return noted
    return [*noted, WaitForNodes(group=one.group, reason=why)]


def _waits_words(one: FallbackCase, blocked: _Blocked, gone: Collection[str], bound: str) -> str:
    """The reason for which a group takes no other rung."""
    plan, drained = one.desired.plan_of(one.group), one.state.drained
    if bound and rung_without(plan, {*gone, *drained}, one.standing.rung) is not None:
        return f"it is not moved: {bound}"
    if not blocked.is_drained and rung_without(plan, gone, one.standing.rung) is not None:
        return f"each rung that does without needs a drained node ({', '.join(sorted(drained))})"
    return "no rung of its ladder does without"


def _bound_by(state: FleetState, group: GroupKey) -> str:
    """Reason for starting a group on no nodes but those of its first rung, in words; "" if it may leave them.

    Also if a node of it went away during its start, and has not come back.
    """
    standing, begun, boots = state.standing(group), state.starts.get(group, {}), state.nodes.boots
    is_lost = any(boot and not boots.get(node) for node, boot in begun.items())
    return standing.bound or (TOOK_DOWN if is_lost and not may_have_lost_its_node(standing) else "")


class _Blocked(NamedTuple):
    """The nodes for which a group cannot start at its rung, in words."""

    what: str
    until: str
    """The end of that."""
    is_drained: bool
    """True if they are drained, and not gone."""


def _blocked(one: FallbackCase) -> _Blocked | None:
    nodes = nodes_of(one.desired, one.group, one.standing)
    if gone := sorted(one.state.nodes.gone(one.now).intersection(nodes)):
        until = f"when that is back; `sparkfleet drain {gone[0]}` moves it if other nodes have room"
        return _Blocked(f"{', '.join(gone)} is gone", until, is_drained=False)
    drained = sorted(one.state.drained.intersection(nodes))
    if drained and one.state.is_barred(one.group):
        until = f"after `sparkfleet undrain {drained[0]}`"
        return _Blocked(f"{', '.join(drained)} is drained", until, is_drained=True)
    return None
