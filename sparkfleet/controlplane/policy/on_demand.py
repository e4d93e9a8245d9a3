"""Deployments on demand: loaded when a request waits for one, unloaded when nobody uses it or another needs its memory.

Several of them may share nodes that hold only one at a time. A deployment that has to start and does not fit beside those
that are loaded has the ones that were used longest ago ended, as many as it needs:

- at once those without a request for `UNUSED_S`;
- one that is used when it has served for as long as its own start took, and for `LEAST_SERVED_S` at least: two deployments
  with steady requests then take turns, and spend at most half of the time on starts (the rule of ski rental);
- any of them at once, if the one that starts is not on demand.

Requests that are in flight are finished first, as at every end of a group; new ones wait at the gateway until it is their
deployment's turn, in the order in which they began to wait. Nothing is ended for a deployment that would not fit without
them either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sparkfleet.controlplane.policy.actions import (
    Action,
    ForgetDemand,
    LoadDeployment,
    UnloadDeployment,
    WaitForMemory,
)
from sparkfleet.controlplane.policy.memory_admission import FreeMemory, needed, unblocked
from sparkfleet.controlplane.policy.state import FleetState, Now
from sparkfleet.controlplane.policy.state_after import after
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.status import App
from sparkfleet.group.group_name import GroupKey
from sparkfleet.units import gib

UNUSED_S = 10.0
"""Seconds without a request after which a loaded deployment ends for another: an agent's calls of tools take seconds."""
LEAST_SERVED_S = 60.0
"""Seconds that a loaded deployment with requests serves, at least, before it ends for another."""


@dataclass(frozen=True)
class Claim:
    """A deployment that has to start, with the memory that it needs."""

    desired: Desired
    needs: dict[str, int]
    """Bytes on each node."""
    since: float | None
    """Time since which requests wait for it (steady clock); None: it is not on demand."""


def awaits_memory(state: FleetState) -> bool:
    """True if what is decided about deployments on demand depends on the free memory of the nodes."""
    return any(one.since is not None or _loaded(state) for one in _claims(state))


def changes_by_time(state: FleetState) -> bool:
    """True if time alone may load or unload a deployment."""
    return awaits_memory(state) or any(
        one.spec.idle is not None and (demand := state.demand.get(one.name)) and not demand.in_flight
        for one in _loaded(state)
    )


def unload_unused(state: FleetState, now: Now) -> list[Action]:
    """Unloads deployments that have had no request for as long as their `idle`."""
    gone = [
        ForgetDemand(deployment=name, reason="it is no longer desired")
        for name in (state.pending.loaded | state.pending.unloaded.keys()) - state.desired.keys()
    ]
    unused = [
        _unload(desired, f"no request for {duration(desired.spec.idle)}")
        for desired in _loaded(state)
        if desired.spec.idle is not None
        if _unused_s(state, desired, now) >= desired.spec.idle
    ]
    return [*gone, *unused]


def load_requested(state: FleetState, now: Now) -> list[Action]:
    """Loads deployments for which requests wait, in the order of these, and unloads others to make room."""
    free, actions = FreeMemory(state), list[Action]()
    for claim in _claims(state):
        found = _actions(state, now, claim, free)
        state = after(state, found, now)
        free.take(claim.needs)  # also if it waits: those after it do not take what it waits for
        actions += found
    return actions


def held_for_memory(state: FleetState) -> frozenset[GroupKey]:
    """Groups of deployments that are not on demand, and that start once what is being ended for them has ended."""
    free, held = FreeMemory(state), set[GroupKey]()
    for claim in _claims(state):
        if claim.since is None and not free.holds(claim.needs, unknown=True) and _ending(state, claim):
            held.update(claim.desired.groups)
    return frozenset(held)


def duration(seconds: float) -> str:
    """Seconds in words, in the largest unit that is exact: `30 min`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s"


def _actions(state: FleetState, now: Now, claim: Claim, free: FreeMemory) -> list[Action]:
    """The load of a claim, or the ends that it waits for."""
    one = claim.desired
    load = LoadDeployment(deployment=one.name, generation=one.generation, reason="a request waits for it")
    if free.holds(claim.needs, unknown=True):
        return [] if claim.since is None else [load]
    room = _MakeRoom(state, now, claim, free)
    if room.is_under_way:
        return [*(_unload(each, f"{one.name} needs its memory") for each in room.to_end), *room.waits()]
    if claim.since is None:
        return []  # it starts all the same, and reports that it does not fit
    return [*room.waits()] if free.lacking(_held(state, one)) else [load]


class _MakeRoom:
    """The loaded deployments that may end for a claim."""

    def __init__(self, state: FleetState, now: Now, claim: Claim, free: FreeMemory) -> None:
        self._state = state
        self._now = now
        self._claim = claim
        self._free = free
        self._ending = bool(_ending(state, claim))
        there = {app.deployment for app in state.apps}
        holders = [
            one
            for one in _loaded(state)
            if one.name in there - {claim.desired.name}
            and not claim.needs.keys().isdisjoint(_held(state, one))
        ]
        self._chosen = _enough(state, claim, free, sorted(holders, key=self._used_at))
        self.to_end = [one for one in self._chosen if self._may_end(one)]

    @property
    def is_under_way(self) -> bool:
        """True if memory is about to be given back, or will be once what is used has had its time."""
        return self._ending or bool(self._chosen)

    def waits(self) -> Iterator[WaitForMemory]:
        """The wait of the claim, if it is not recorded yet."""
        one = self._claim.desired
        if self._chosen:
            names = " and ".join(each.name for each in self._chosen)
            ends = "ends" if len(self._chosen) == 1 else "end"
            reason = f"it starts once {names} {ends}, which {'has' if ends == 'ends' else 'have'} its memory"
        elif self._ending:
            reason = "it starts once the memory of what has just ended is free"
        else:
            reason = self._lack()
        if self._state.pending.recorded.get(f"{one.name}/g{one.generation}") != reason:
            yield WaitForMemory(deployment=one.name, generation=one.generation, reason=reason)

    def _lack(self) -> str:
        """The memory that is missing, of which nothing on demand has enough."""
        lacking = self._free.lacking(self._claim.needs)
        node = max(lacking, key=lambda name: lacking[name])
        # Without the free memory, which is another one in each round: this is recorded once.
        return (
            f"it may need {gib(self._claim.needs[node])} on {node}, which is more than is free, and nothing that could end"
            " for it holds as much"
        )

    def _used_at(self, one: Desired) -> float:
        demand = self._state.demand.get(one.name)
        return demand.used_at if demand is not None else self._now.steady

    def _may_end(self, one: Desired) -> bool:
        if self._claim.since is None:
            return True
        if (demand := self._state.demand.get(one.name)) is None:
            return False
        if self._now.steady - demand.used_at >= UNUSED_S:
            return True
        if demand.ready_since is None:
            return False
        return self._now.steady - demand.ready_since >= max(LEAST_SERVED_S, _start_s(self._state, one))


def _claims(state: FleetState) -> list[Claim]:
    """Deployments that have to start: first those that are not on demand, then the others in the order of their requests."""
    always: dict[str, list[GroupKey]] = {}
    for desired, group in unblocked(state):
        if not desired.spec.on_demand:
            always.setdefault(desired.name, []).append(group)
    first = [
        Claim(state.to_run[name], needed(state, state.to_run[name], groups), None)
        for name, groups in always.items()
    ]
    waiting = sorted(
        (demand.waiting_since, name)
        for name, demand in state.demand.items()
        if demand.waiting_since is not None and name in state.applied and name not in state.to_run
    )
    return first + [
        Claim(state.applied[name], needed(state, state.applied[name], state.applied[name].groups), since)
        for since, name in waiting
        if state.applied[name].spec.on_demand
    ]


def _loaded(state: FleetState) -> list[Desired]:
    """Deployments on demand that are loaded."""
    return [one for one in state.to_run.values() if one.spec.on_demand]


def _unload(desired: Desired, reason: str) -> UnloadDeployment:
    """The end of a deployment. Its groups are retired as all that are not to run (`rollout.retire_unwanted`)."""
    return UnloadDeployment(deployment=desired.name, generation=desired.generation, reason=reason)


def _held(state: FleetState, desired: Desired) -> dict[str, int]:
    """Bytes on each node that the groups of a loaded deployment are predicted to hold, the middle of the band."""
    held: dict[str, int] = {}
    for group in desired.groups:
        rung = desired.plan_of(group).rung_at(state.standing(group).rung)
        for node in rung.candidate.shape.nodes:
            held[node] = held.get(node, 0) + int(rung.prediction.memory_bytes_per_rank.mid)
    return held


def _enough(state: FleetState, claim: Claim, free: FreeMemory, holders: Iterable[Desired]) -> list[Desired]:
    """The first of the holders whose memory is enough for a claim beside what is free; none if that of all is not.

    The high end of the claim's band has to fit, or, if all of them hold too little for that, its middle, which the planner
    counts with.
    """
    return _first(state, free.lacking(claim.needs), holders) or _first(
        state, free.lacking(_held(state, claim.desired)), holders
    )


def _first(state: FleetState, lacking: Mapping[str, int], holders: Iterable[Desired]) -> list[Desired]:
    chosen: list[Desired] = []
    for one in holders:
        if not lacking:
            break
        held = _held(state, one)
        if lacking.keys().isdisjoint(held):
            continue
        chosen.append(one)
        lacking = {
            node: need - held.get(node, 0) for node, need in lacking.items() if need > held.get(node, 0)
        }
    return [] if lacking else chosen


def _ending(state: FleetState, claim: Claim) -> list[App]:
    """Groups of unloaded deployments on the nodes of a claim that have not ended yet."""
    return [
        app
        for app in state.apps
        if (one := state.applied.get(app.deployment)) is not None
        and app.deployment not in state.to_run
        and not claim.needs.keys().isdisjoint(_held(state, one))
    ]


def _unused_s(state: FleetState, desired: Desired, now: Now) -> float:
    """Seconds without a request, counted from the end of its start; 0 while it starts or if nothing is known."""
    demand = state.demand.get(desired.name)
    if demand is None or demand.in_flight or demand.ready_since is None:
        return 0.0
    return now.steady - max(demand.used_at, demand.ready_since)


def _start_s(state: FleetState, desired: Desired) -> float:
    """Seconds that the longest of the last starts of its groups took; 0 if that is not known."""
    reports = map(state.report, desired.groups)
    return max((one.started_s or 0.0 for one in reports if one is not None), default=0.0)
