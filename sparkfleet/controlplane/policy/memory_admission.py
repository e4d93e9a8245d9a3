"""Admission of groups to the memory that is free beside the running ones. Granted once, in order.

None is admitted, and no older one ends for it, on a node on which it could not start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkfleet.controlplane.policy.actions import Action, WaitForMemory
from sparkfleet.controlplane.policy.rolling_update import Grants, RollingUpdate, rolling_updates
from sparkfleet.controlplane.policy.state import FleetState, Now, has_begun
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.status import App
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import GroupPhase


def depends_on_memory(state: FleetState) -> bool:
    """True if what is decided depends on the free memory of the nodes."""
    found = rolling_updates(state)
    return any(one.blocked for one in found) or bool(found and unblocked(state))


def granted(state: FleetState, now: Now) -> Grants:
    """Admission of each missing group that older ones are in the way of.

    Memory is granted once: to the first that needs it, and not what a group that starts will still take. No older group ends
    for memory that is free until a failed start takes it again: whether it does is known soon.
    """
    free, again = FreeMemory(state), starting_again(state)
    found: dict[GroupKey, bool | None] = {}
    for roll in rolling_updates(state):
        blocked = roll.blocked
        for group in roll.missing:
            needs = needed(state, roll.desired, [group])
            if group in blocked and state.unusable.keys() & needs.keys():
                found[group] = None
                continue
            fits = free.holds(needs) if group in blocked else True
            if fits is None and _is_held_by_gone(roll, needs.keys(), now):
                # It is placed although a node is gone, and takes a rung without that node: no group that serves is lost.
                fits = False
            if fits and group in blocked and roll.port_of_both(group) is not None:
                fits = False
            if fits and group in blocked and not free.holds(_with(needs, again)):
                fits = None
            if fits:
                free.take(needs)
            if group in blocked:
                found[group] = fits
    return found


def unblocked(state: FleetState) -> list[tuple[Desired, GroupKey]]:
    """Groups that are to start and that have nothing to end first, each with its deployment."""
    found = (RollingUpdate(state, desired) for desired in state.to_run.values())
    return [(roll.desired, group) for roll in found for group in roll.missing if not roll.blockers(group)]


def crowded(state: FleetState, now: Now) -> dict[GroupKey, str]:
    """Groups that wait, each with the reason: another deployment is rolling, and they fit once its older groups have ended.

    A start in between would run out of memory, and each rung of its ladder after it. The wait ends with the roll. One that
    begins to roll in this round is rolling, too.
    """
    starting = unblocked(state)
    if not starting:
        return {}
    beside = [group for group, fits in granted(state, now).items() if fits]
    begins = {group[0] for group in beside}
    changing = {one.desired.name for one in rolling_updates(state) if has_begun(state, one.desired)} | begins
    free = FreeMemory(state)
    for group in beside:
        free.take(needed(state, state.to_run[group[0]], [group]))
    found: dict[GroupKey, str] = {}
    for one, group in starting:
        needs = needed(state, one, [group])
        others = sorted(changing - {one.name})
        if free.holds(needs, unknown=True) or not others:
            free.take(needs)
        else:
            found[group] = f"it fits once the older groups of {' and '.join(others)} have ended"
    return found


def wait_for_memory(state: FleetState, now: Now) -> list[Action]:
    """Records the wait of each generation, once."""
    recorded = state.pending.recorded
    found = [(state.to_run[name], reason) for name, reason in memory_waits(state, now).items()]
    return [
        WaitForMemory(deployment=one.name, generation=one.generation, reason=reason)
        for one, reason in found
        if recorded.get(f"{one.name}/g{one.generation}") != reason
    ]


def memory_waits(state: FleetState, now: Now) -> dict[str, str]:
    """Deployments that wait for nodes that do not report their memory, or on which nothing can start, or for another's end.

    Each with one reason in words: of two, each would be recorded again in every round.
    """
    grants, found = granted(state, now), dict[str, str]()
    for roll in rolling_updates(state):
        if unusable := _unusable(state, roll, grants):
            why = f"{unusable[0]}: {state.unusable[unusable[0]]} The old generation keeps running."
            found[roll.desired.name] = why
        elif silent := _silent(state, roll, grants):
            why = f"free memory of {', '.join(silent)} is not known; the old generation keeps running"
            found[roll.desired.name] = why
    return {group[0]: reason for group, reason in crowded(state, now).items()} | found


class FreeMemory:
    """Memory of the nodes that is left to grant, bytes: without what the groups that start will still take."""

    def __init__(self, state: FleetState) -> None:
        self._left = dict(state.available)
        self.starting: dict[str, int] = {}
        """Bytes that it keeps on each node for groups that start. Some of them they may have taken already."""
        self.reserved: dict[str, dict[str, int]] = {}
        """Free bytes that it keeps on each node for further groups of a deployment that serves, by its name."""
        for app in state.apps:
            if _will_take(state, app):
                self.keep(_needs_of(state, app.group))

    def holds(self, needs: Mapping[str, int], *, unknown: bool | None = None) -> bool | None:
        """True if each node has what is needed on it; `unknown` if the memory of one is not known."""
        if any(self._left.get(node, need) < need for node, need in needs.items()):
            return False
        return True if needs.keys() <= self._left.keys() else unknown

    def lacking(self, needs: Mapping[str, int]) -> dict[str, int]:
        """Bytes that are missing on each node that is known to have too little."""
        return {
            node: need - self._left[node]
            for node, need in needs.items()
            if node in self._left and self._left[node] < need
        }

    def take(self, needs: Mapping[str, int]) -> None:
        """Grants memory."""
        for node in needs.keys() & self._left.keys():
            self._left[node] -= needs[node]

    def keep(self, needs: Mapping[str, int]) -> None:
        """Keeps memory for groups that start."""
        self.take(needs)
        self.starting = added(self.starting, needs)

    def reserve(self, deployment: str, needs: Mapping[str, int]) -> None:
        """Keeps memory for further groups of a deployment that serves."""
        self.take(needs)
        self.reserved[deployment] = added(self.reserved.get(deployment, {}), needs)

    def release(self, deployment: str) -> None:
        """Takes that back: they wait."""
        self.take({node: -need for node, need in self.reserved.pop(deployment, {}).items()})


def needed(state: FleetState, desired: Desired, groups: Iterable[GroupKey]) -> dict[str, int]:
    """Bytes that groups of a deployment may take on each node at their rungs, by the high end of the predicted band."""
    needs: dict[str, int] = {}
    for group in groups:
        rung = desired.plan_of(group).rung_at(state.standing(group).rung)
        for node in rung.candidate.shape.nodes:
            needs[node] = needs.get(node, 0) + int(rung.prediction.memory_bytes_per_rank.high)
    return needs


def added(some: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """The sum of bytes by node."""
    found = dict(some)
    for node, need in more.items():
        found[node] = found.get(node, 0) + need
    return found


def starting_again(state: FleetState) -> dict[str, int]:
    """Bytes on each node that groups need which start again, and whose memory may be free until they take it.

    One whose start has failed and that is not given up, or that serves again: each is deployed again, at its rung or the
    next one. One that Serve starts while its last report still has it ready: its engine has ended, or it has just become
    ready and Serve does not show it yet.
    """
    found: dict[str, int] = {}
    for app in state.apps:
        group, generation = app.group, state.generation_of(app.group)
        waits = group in state.pending.waiting or state.is_barred(group)
        is_failed = app.status == "failed" and not state.standing(group).given_up
        is_restarted = app.status == "starting" and state.is_ready(group)
        if generation is not None and (is_failed or is_restarted) and not waits:
            found = added(found, needed(state, generation, [group]))
    return found


def _with(needs: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """The sum of what is needed and of what others need on the same nodes."""
    return {node: need + more.get(node, 0) for node, need in needs.items()}


def _needs_of(state: FleetState, group: GroupKey) -> dict[str, int]:
    """Bytes that a group may take on each node, also one that an edit replaces while it starts."""
    if (generation := state.generation_of(group)) is not None:
        return needed(state, generation, [group])
    older = state.older.get(group)
    return dict.fromkeys(older.shape.nodes, state.older_needs.get(group, 0)) if older is not None else {}


def _will_take(state: FleetState, app: App) -> bool:
    """True if a group starts, and may not have taken its memory yet: also before its first report.

    One that was ready and has been silent since starts again: its node was restarted. One that waits for a node starts as
    soon as that is back, or drained no longer: before this is noted.
    """
    if app.status != "starting" or state.is_ready(app.group):
        return False
    report, nodes = state.report(app.group), _needs_of(state, app.group).keys()
    if report is not None and report.phase is GroupPhase.BARRED:
        return state.drained.isdisjoint(nodes)
    return app.group not in state.pending.waiting or nodes <= state.available.keys()


def _is_held_by_gone(roll: RollingUpdate, nodes: Iterable[str], now: Now) -> bool:
    """True if a group waits only for nodes that do not come back, and no group that it replaces serves meanwhile.

    A group that it carries over goes on in any case.
    """
    silent = set(nodes) - roll.state.available.keys()
    return bool(roll.state.nodes.gone(now) & silent) and not any(
        roll.state.is_ready(app.group) for app in roll.replaced
    )


def _unusable(state: FleetState, roll: RollingUpdate, grants: Grants) -> list[str]:
    """Nodes of groups that could start, and on which nothing can start."""
    groups = [group for group in roll.missing if group in grants]
    return sorted(needed(state, roll.desired, groups).keys() & state.unusable.keys())


def _silent(state: FleetState, roll: RollingUpdate, grants: Grants) -> list[str]:
    """Nodes whose free memory a roll waits for."""
    groups = [group for group in roll.missing if group in grants and grants[group] is None]
    return sorted(needed(state, roll.desired, groups).keys() - state.available.keys())
