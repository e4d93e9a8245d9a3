"""Memory that deployments on demand hold, and give back when they end: by the middle of the predicted band."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkfleet.controlplane.policy.memory_admission import FreeMemory, added
from sparkfleet.controlplane.policy.rolling_update import RollingUpdate
from sparkfleet.controlplane.policy.state import FleetState
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import GroupPhase


def loaded(state: FleetState) -> list[Desired]:
    """Deployments on demand that are loaded."""
    return [one for one in state.to_run.values() if one.spec.on_demand]


def has_group(state: FleetState, desired: Desired) -> bool:
    """True if a group of a deployment runs or starts."""
    return any(app.deployment == desired.name and app.status in ("starting", "running") for app in state.apps)


def middle_needs(state: FleetState, desired: Desired, groups: Iterable[GroupKey]) -> dict[str, int]:
    """Bytes on each node that groups take at their rungs, by the middle of the predicted band."""
    found: dict[str, int] = {}
    for group in groups:
        rung = desired.plan_of(group).rung_at(state.standing(group).rung)
        nodes = rung.candidate.shape.nodes
        found = added(found, dict.fromkeys(nodes, int(rung.prediction.memory_bytes_per_rank.mid)))
    return found


def held_memory(state: FleetState, desired: Desired, *, ending: bool = False) -> dict[str, int]:
    """Bytes on each node that the groups of a deployment are predicted to hold, the middle of the band.

    Those that were given up or wait for nodes hold nothing.

    Args:
        ending: count those that are being retired instead of those that are not.
    """
    there = {app.group: app.status for app in state.apps if app.status != "failed"}
    served = state.last_served.get(desired.name)
    found: dict[str, int] = {}
    # The generation that served last serves on, or again, if the desired one was given up.
    for one in (desired,) if served is None else (desired, served):
        holding = [
            group
            for group in one.groups
            if group in there
            and (one is desired or group not in desired.groups)
            and (there[group] == "retiring" or desired.name not in state.to_run) is ending
            and not state.standing(group).given_up
            and group not in state.pending.waiting
            and not state.is_barred(group)
            and not _has_stopped(state, group)
        ]
        found = added(found, middle_needs(state, one, holding))
    return found


def given_back(state: FleetState, needs: Mapping[str, int]) -> dict[str, int]:
    """Bytes on nodes of a claim that groups give back which are no longer to run."""
    found: dict[str, int] = {}
    for name in {app.deployment for app in state.apps}:
        held = _replaced_memory(state, name)
        one = state.applied.get(name)
        if one is None:  # deleted: its plan is not known before it ends
            reports = (one for one in state.reports if one.deployment == name)
            held = held or {one.node: needs.get(one.node, 0) for one in reports}
        elif name not in state.to_run:
            held = added(held, held_memory(state, one, ending=True))
        found = added(found, {node: held[node] for node in held.keys() & needs.keys()})
    return found


def _has_stopped(state: FleetState, group: GroupKey) -> bool:
    """True if the engines of a group that ends have given their memory back: it is free, and counts once."""
    report = state.report(group)
    return report is not None and report.phase is GroupPhase.STOPPED


def _replaced_memory(state: FleetState, name: str) -> dict[str, int]:
    """Bytes on each node that groups of a deployment give back which end and are no longer desired.

    Empty if a group is to start in their place, with that memory. One on demand that does not fit even then waits, and keeps
    nothing.
    """
    desired, found = state.applied.get(name), dict[str, int]()
    served = state.last_served.get(name) if name not in state.to_run else None
    counted = {group for one in (desired, served) if one is not None for group in one.groups}
    for group, rung in state.ending.items():
        if group[0] == name and group not in counted and not _has_stopped(state, group):
            nodes = rung.candidate.shape.nodes
            found = added(found, dict.fromkeys(nodes, int(rung.prediction.memory_bytes_per_rank.mid)))
    return {} if name in state.to_run and _is_taken_again(state, state.to_run[name], found) else found


def _is_taken_again(state: FleetState, desired: Desired, back: Mapping[str, int]) -> bool:
    """True if a deployment has groups to start, and they will have the memory that its older ones give back."""
    missing = RollingUpdate(state, desired).missing
    if not missing or not desired.spec.on_demand:
        return bool(missing)
    lacking = FreeMemory(state).lacking(middle_needs(state, desired, missing))
    return all(need <= back.get(node, 0) for node, need in lacking.items())


def fewest(
    lacking: Mapping[str, int], holders: Iterable[tuple[Desired, Mapping[str, int]]]
) -> list[Desired] | None:
    """The first of the holders whose memory is enough, without those that are not needed beside the others; None if that of
    all is not enough. `holders`: each with the bytes on each node that it would give back."""
    chosen: list[tuple[Desired, Mapping[str, int]]] = []
    for one, held in holders:
        if not _still(lacking, chosen):
            break
        if not lacking.keys().isdisjoint(held):
            chosen.append((one, held))
    if _still(lacking, chosen):
        return None
    for last in tuple(reversed(chosen)):
        others = [each for each in chosen if each is not last]
        if not _still(lacking, others):
            chosen = others
    return [one for one, _ in chosen]


def _still(lacking: Mapping[str, int], ended: Iterable[tuple[Desired, Mapping[str, int]]]) -> bool:
    """True if memory is missing on a node although some deployments have ended. `ended`: each with what it held."""
    back: dict[str, int] = {}
    for _, held in ended:
        back = added(back, held)
    return any(need > back.get(node, 0) for node, need in lacking.items())
