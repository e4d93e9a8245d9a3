"""Ends of deployments on demand: without requests for long, without the memory or the nodes that they need.

Their groups are retired as all that are not to run. One that lacked its memory or a node waits for its turn again.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.controlplane.policy.actions import (
    Action,
    EndAttempt,
    ForgetLoad,
    UnloadDeployment,
    UnloadKind,
)
from sparkfleet.controlplane.policy.demand.loaded_memory import held_memory, loaded, middle_needs
from sparkfleet.controlplane.policy.demand.memory_claims import needs_at_start
from sparkfleet.controlplane.policy.memory_admission import FreeMemory
from sparkfleet.controlplane.policy.start_choice import loadable, to_start
from sparkfleet.controlplane.policy.state import FleetState, Now, nodes_of
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.errors import Cause
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import GroupPhase
from sparkfleet.units import duration_words


def unload_unused(state: FleetState, now: Now) -> list[Action]:
    """Unloads deployments that had no request for as long as their `idle`, and those that lack their memory or nodes."""
    on_demand = {name for name, one in state.desired.items() if one.spec.on_demand}
    gone = [
        ForgetLoad(deployment=name, reason="it is no longer desired, or not on demand")
        for name in (state.pending.loaded | state.pending.unloaded.keys()) - on_demand
    ]
    without_memory = [
        unload(one, "no_memory", "its memory was not free")
        for one in loaded(state)
        if _is_refused(state, one) or _is_crowded_out(state, now, one)
    ]
    without_node = [
        unload(one, "no_node", why) for one in loaded(state) if (why := _lost_nodes(state, now, one))
    ]
    unused = [
        unload(desired, "unused", f"no request for {duration_words(desired.spec.idle)}")
        for desired in loaded(state)
        if desired.spec.idle is not None
        if unused_s(state, desired, now) >= desired.spec.idle
    ]
    return [*gone, *without_memory, *without_node, *unused]


def end_unloaded_starts(state: FleetState, now: Now) -> list[Action]:
    """Ends start attempts of deployments that were unloaded meanwhile, once their nodes have answered in the same boot.

    One that took a node down is counted before (`lost_starts`).
    """
    there, boots = {app.group for app in state.apps}, state.nodes.boots
    nothing: Mapping[str, str] = {}
    return [
        EndAttempt(group=group, reason="it was unloaded before it was ready")
        for group, begun in {**dict.fromkeys(state.pending.failed_at, nothing), **state.starts}.items()
        if group[0] in state.applied and group[0] not in state.to_run and group not in there
        if all(boots.get(node) and boot in ("", boots[node]) for node, boot in begun.items())
    ]


def unload(desired: Desired, kind: UnloadKind, reason: str) -> UnloadDeployment:
    """The end of a deployment. Its groups are retired as all that are not to run (`rollout.retire_unwanted`)."""
    return UnloadDeployment(deployment=desired.name, generation=desired.generation, kind=kind, reason=reason)


def unused_s(state: FleetState, desired: Desired, now: Now) -> float:
    """Seconds without a request, counted from the end of its start; 0 while it starts or if nothing is known."""
    demand = state.demand.get(desired.name)
    if demand is None or demand.ready_since is None:
        return 0.0
    return min(demand.unused_s, now.steady - demand.ready_since)


def blocked(state: FleetState, now: Now) -> frozenset[str]:
    """Nodes without which a group starts at a lower rung, if it has one."""
    return state.nodes.gone(now) | state.drained


def _lost_nodes(state: FleetState, now: Now, desired: Desired) -> str:
    """The nodes, in words, for which no group of a loaded deployment serves, and for which each waits; "" for none.

    It is not to start without a request when they are back.
    """
    choice, there = to_start(state, desired), {app.group for app in state.apps}
    if not choice.groups or not there.issuperset(choice.groups) or any(map(state.is_ready, choice.groups)):
        return ""
    lost = [_lost(state, now, choice.generation, group) for group in choice.groups]
    if not all(lost):
        return ""
    if choice.generation is desired and not all(group in state.pending.waiting for group in choice.groups):
        return ""  # it takes a lower rung, if one does without them
    is_gone = not state.nodes.gone(now).isdisjoint(lost[0])
    return f"{', '.join(lost[0])} is {'gone' if is_gone else 'drained'}"


def _lost(state: FleetState, now: Now, generation: Desired, group: GroupKey) -> list[str]:
    """Nodes of a group that do not come back, or that are drained and for which it waits."""
    away = state.nodes.gone(now) | (state.drained if state.is_barred(group) else frozenset())
    return sorted(away.intersection(nodes_of(generation, group, state.standing(group))))


def _is_crowded_out(state: FleetState, now: Now, desired: Desired) -> bool:
    """True if nothing of a loaded deployment serves, and another one on demand has the memory that it was refused, or it has
    no group, and the memory of its groups is not free.

    Others were loaded or started while an engine of this one had just failed, or before an edit moved it; or a node has come
    back that its groups need at their rung. It waits for its turn, and keeps its rung.
    """
    apps = [app for app in state.apps if app.deployment == desired.name]
    if any(app.status in ("running", "retiring") for app in apps):
        return False
    choice = to_start(state, desired)
    own = [app for app in apps if app.group in choice.groups]
    reports = [one for app in own if (one := state.report(app.group)) is not None]
    is_refused = any(
        one.phase is GroupPhase.FAILED
        and one.diagnosis is not None
        and one.diagnosis.cause is Cause.MEMORY
        and not one.diagnosis.began
        for one in reports
    )
    if is_refused:
        nodes = middle_needs(state, *choice).keys()
        others = [one for one in loaded(state) if one.name != desired.name]
        return any(not nodes.isdisjoint(held_memory(state, one)) for one in others)
    if own or not choice.groups or desired.name not in state.pending.loaded:
        return False
    planned = middle_needs(state, *choice)
    if choice.generation is desired:
        _, planned = needs_at_start(state, *choice, blocked(state, now))
    return bool(FreeMemory(state).lacking(planned))


def _is_refused(state: FleetState, desired: Desired) -> bool:
    """True if nothing of a loaded deployment runs or is to start, and some of what was given up was refused its memory."""
    runs = any(app.deployment == desired.name and app.status != "failed" for app in state.apps)
    return not runs and not to_start(state, desired).groups and bool(loadable(state, desired))
