"""Deployments on demand: loaded when a request waits for one, unloaded when nobody uses it or another needs its memory.

Several of them may share nodes that hold only one at a time. A deployment that has to start and does not fit beside those
that are loaded has the ones that were used longest ago ended, as many as it needs, once all of them may end:

- those without a request for `UNUSED_S`;
- one that is used when it has served for as long as its own start took, and for `LEAST_SERVED_S` at least: two deployments
  with steady requests then take turns, and spend at most half of the time on starts (the rule of ski rental);
- any of them at once, if the one that starts is not on demand.

Requests that are in flight are finished first, as at every end of a group; new ones wait at the gateway until it is their
deployment's turn, in the order in which they began to wait. Nothing is ended for a deployment that would not fit without
them either, or whose nodes do not let it start, nor while memory that is about to be given back may be enough.

One that was refused its memory is unloaded, and waits for its turn again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sparkfleet.controlplane.policy.actions import (
    Action,
    EndAttempt,
    ForgetDemand,
    KeepStanding,
    LoadDeployment,
    UnloadDeployment,
    WaitForMemory,
)
from sparkfleet.controlplane.policy.ladder import RETRIES, rung_without
from sparkfleet.controlplane.policy.memory_admission import (
    FreeMemory,
    about_to_start,
    added,
    needed,
    unblocked,
)
from sparkfleet.controlplane.policy.memory_retry import refused
from sparkfleet.controlplane.policy.state import FleetState, Now
from sparkfleet.controlplane.policy.state_after import after
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.errors import Cause
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import GroupPhase
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
    """Bytes on each node, by the high end of the predicted band."""
    planned: dict[str, int]
    """The same by its middle, which the planner counts with."""
    since: float | None
    """Time since which requests wait for it (steady clock); None: it is not on demand."""


def awaits_memory(state: FleetState) -> bool:
    """True if what is decided about deployments on demand depends on the free memory of the nodes."""
    return any(one.since is not None or _loaded(state) for one in _claims(state, frozenset()))


def changes_by_time(state: FleetState) -> bool:
    """True if time alone may load or unload a deployment."""
    return awaits_memory(state) or any(
        one.spec.idle is not None
        and (demand := state.demand.get(one.name)) is not None
        and not demand.in_flight
        and demand.ready_since is not None
        for one in _loaded(state)
    )


def starts_again(state: FleetState, desired: Desired) -> bool:
    """True if a deployment on demand that was given up was only refused its memory: its next request starts it again."""
    given_up = [one for one in map(state.standing, desired.groups) if one.given_up]
    return (
        desired.spec.on_demand
        and not state.is_loaded(desired)
        and bool(given_up)
        and all(0 < one.refused <= RETRIES for one in given_up)
    )


def unload_unused(state: FleetState, now: Now) -> list[Action]:
    """Unloads deployments that have had no request for as long as their `idle`, and those that were refused their memory."""
    on_demand = {name for name, one in state.desired.items() if one.spec.on_demand}
    gone = [
        ForgetDemand(deployment=name, reason="it is no longer desired, or not on demand")
        for name in (state.pending.loaded | state.pending.unloaded.keys()) - on_demand
    ]
    without_memory = [
        _unload(one, "its memory was not free")
        for one in _loaded(state)
        if _is_refused(state, one) or _is_crowded_out(state, one)
    ]
    unused = [
        _unload(desired, f"no request for {duration(desired.spec.idle)}")
        for desired in _loaded(state)
        if desired.spec.idle is not None
        if _unused_s(state, desired, now) >= desired.spec.idle
    ]
    return [*gone, *without_memory, *unused]


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


def load_requested(state: FleetState, now: Now) -> list[Action]:
    """Loads deployments for which requests wait, in the order of these, and unloads others to make room."""
    free, actions = FreeMemory(state), list[Action]()
    about_to = about_to_start(state)
    for claim in _claims(state, state.nodes.gone(now) | state.drained):
        while claim.since is not None and about_to:  # what is not on demand has the memory before them
            free.take(about_to.pop())
        found, keeps = _actions(state, now, claim, free)
        state = after(state, found, now)
        if keeps:
            free.take(claim.needs)
        actions += found
    return actions


def held_for_memory(state: FleetState) -> frozenset[GroupKey]:
    """Groups that do not start now: of deployments that are not on demand, until what is being ended for them has ended; of
    those that are loaded and were edited, until their memory is free."""
    free, held = FreeMemory(state), set[GroupKey]()
    for one, groups in _missing(state):
        if free.lacking(_middle(state, one, groups)):
            held.update(groups)
        free.take(needed(state, one, groups))
    for claim in _claims(state, frozenset()):
        if claim.since is None and not free.holds(claim.needs, unknown=True) and _ending(state, claim.needs):
            held.update(claim.desired.groups)
    return frozenset(held)


def duration(seconds: float) -> str:
    """Seconds in words, in the largest unit that is exact: `30 min`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s"


def _actions(state: FleetState, now: Now, claim: Claim, free: FreeMemory) -> tuple[list[Action], bool]:
    """The load of a claim, or the ends that it waits for; and True if the memory that it needs is kept for it."""
    one = claim.desired
    if claim.since is not None and (obstacle := _obstacle(state, claim)):
        return [*_waits(state, claim, obstacle)], False
    if claim.since is not None and any(app.deployment == one.name for app in state.apps):
        # Also if memory holds both: the last report of a group that ends is that it is ready.
        return [*_waits(state, claim, "it starts once its last engines have ended")], True
    if free.holds(claim.needs, unknown=True):
        return _loads(state, claim), True
    return _for_room(state, now, claim, free)


def _for_room(state: FleetState, now: Now, claim: Claim, free: FreeMemory) -> tuple[list[Action], bool]:
    """The same for a claim whose memory is not free, at least not by the high end of the predicted band."""
    room = _MakeRoom(state, now, claim, free)
    if room.is_under_way:
        ends = (_unload(each, f"{claim.desired.name} needs its memory") for each in room.to_end)
        return [*ends, *_waits(state, claim, room.words())], True
    if claim.since is None:
        return [], True  # it starts all the same, and reports that it does not fit
    if not free.lacking(claim.planned):
        return _loads(state, claim), True
    # Those after it may have what is free: it is not enough for this one.
    return [*_waits(state, claim, _lack(claim, free))], False


def _loads(state: FleetState, claim: Claim) -> list[Action]:
    """The load of a claim that is on demand. Its groups that were refused their memory are tried once more."""
    if claim.since is None:
        return []
    one = claim.desired
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
            reason="a request waits for it",
        )
        for group in one.groups
        if (standing := state.standing(group)).given_up or standing.restarts
    ]
    return [
        *again,
        LoadDeployment(deployment=one.name, generation=one.generation, reason="a request waits for it"),
    ]


def _obstacle(state: FleetState, claim: Claim) -> str:
    """The reason in words for which a deployment cannot start on its nodes, whatever memory they have; "" for none."""
    for node in sorted(claim.needs):
        if node in state.drained:
            return f"{node} is drained; it starts after `sparkfleet undrain {node}`"
        if node in state.nodes.away_since:
            return f"{node} does not answer; it starts when that is back"
        if node in state.unusable:
            return f"{node}: {state.unusable[node]}"
        if node not in state.available:
            return f"the free memory of {node} is not known; it starts once that is reported"
    return ""


def _waits(state: FleetState, claim: Claim, reason: str) -> Iterator[WaitForMemory]:
    """The wait of a claim, if it is not recorded yet."""
    one = claim.desired
    if state.pending.recorded.get(f"{one.name}/g{one.generation}") != reason:
        yield WaitForMemory(deployment=one.name, generation=one.generation, reason=reason)


def _lack(claim: Claim, free: FreeMemory) -> str:
    """The memory that is missing, of which nothing on demand has enough."""
    lacking = free.lacking(claim.needs)
    node = max(lacking, key=lambda name: lacking[name])
    # Without the free memory, which is another one in each round: this is recorded once.
    return (
        f"it may need {gib(claim.needs[node])} on {node}, which is more than is free, and nothing that could end"
        " for it holds as much"
    )


class _MakeRoom:
    """The loaded deployments that may end for a claim."""

    def __init__(self, state: FleetState, now: Now, claim: Claim, free: FreeMemory) -> None:
        self._state = state
        self._now = now
        self._claim = claim
        self._ending = _ending(state, claim.needs)
        # Some of the memory that is kept for groups that start is taken already, and counted twice.
        self._starting = free.starting if claim.since is not None else {}
        holders = sorted((one for one in _loaded(state) if one.name != claim.desired.name), key=self._used_at)
        chosen: list[Desired] | None = None
        for needs in (claim.needs, claim.planned):
            if not (lacking := free.lacking(needs)):
                break  # the middle of its band fits as it is
            chosen = _fewest(state, self._later(lacking), holders)
            if chosen is not None:
                break
        self.is_under_way = chosen is not None
        """True if memory is about to be given back, or will be once what is used has had its time."""
        self._chosen = chosen or []
        self.to_end = self._chosen if all(map(self._may_end, self._chosen)) else []

    def words(self) -> str:
        """The event that the claim waits for, in words."""
        if self._chosen:
            names = " and ".join(each.name for each in self._chosen)
            ends = "ends" if len(self._chosen) == 1 else "end"
            return f"it starts once {names} {ends}, which {'has' if ends == 'ends' else 'have'} its memory"
        if self._ending:
            return "it starts once the memory of what has just ended is free"
        return "it starts once the memory is known that others take which start now"

    def _later(self, lacking: Mapping[str, int]) -> dict[str, int]:
        """Bytes that will still be missing when what ends has ended, and what starts has started."""
        back = added(self._ending, self._starting)
        return {node: need - back.get(node, 0) for node, need in lacking.items() if need > back.get(node, 0)}

    def _used_at(self, one: Desired) -> float:
        demand = self._state.demand.get(one.name)
        return demand.used_at if demand is not None else self._now.steady

    def _may_end(self, one: Desired) -> bool:
        if self._claim.since is None:
            return True
        if (demand := self._state.demand.get(one.name)) is None:
            return False
        if demand.unused_s >= UNUSED_S:
            return True
        if demand.ready_since is None:
            return False
        start_s = 0.0
        for app in self._state.apps:
            if app.deployment == one.name and app.status in ("starting", "running"):
                report = self._state.report(app.group)
                if report is None or report.phase is not GroupPhase.READY:
                    return False  # it starts, or its seconds are not known: the controller or its actor has just started
                start_s = max(start_s, report.started_s or 0.0)
        # Also between two requests: those of an agent may be so short that no report finds one in flight.
        return self._now.steady - demand.ready_since >= max(LEAST_SERVED_S, start_s)


def _claims(state: FleetState, blocked: frozenset[str]) -> list[Claim]:
    """Deployments that have to start: first those that are not on demand, then the others in the order of their requests.

    Args:
        blocked: nodes without which one on demand starts at a lower rung, if it has one.
    """
    always: dict[str, list[GroupKey]] = {}
    for desired, group in (*unblocked(state), *refused(state)):
        if not desired.spec.on_demand:
            always.setdefault(desired.name, []).append(group)
    first = [_always(state, state.to_run[name], groups) for name, groups in always.items()]
    waiting = sorted(
        (demand.waiting_since, name)
        for name, demand in state.demand.items()
        if demand.waiting_since is not None and name in state.applied and name not in state.to_run
    )
    return first + [
        Claim(one, *_at_start(state, one, blocked), since)
        for since, name in waiting
        if (one := state.applied[name]).spec.on_demand
        if not state.has_given_up(one) or starts_again(state, one)
    ]


def _always(state: FleetState, desired: Desired, groups: Iterable[GroupKey]) -> Claim:
    needs = needed(state, desired, groups)
    return Claim(desired, needs, needs, None)


def _at_start(
    state: FleetState, desired: Desired, blocked: frozenset[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes on each node at the rungs at which a deployment starts: the high end of the band, and its middle."""
    needs, planned = dict[str, int](), dict[str, int]()
    for group in desired.groups:
        plan, at = desired.plan_of(group), state.standing(group).rung
        without = rung_without(plan, blocked, at)
        rung = plan.rung_at(at if without is None else without)
        memory, nodes = rung.prediction.memory_bytes_per_rank, rung.candidate.shape.nodes
        needs = added(needs, dict.fromkeys(nodes, int(memory.high)))
        planned = added(planned, dict.fromkeys(nodes, int(memory.mid)))
    return needs, planned


def _loaded(state: FleetState) -> list[Desired]:
    """Deployments on demand that are loaded."""
    return [one for one in state.to_run.values() if one.spec.on_demand]


def _missing(state: FleetState) -> list[tuple[Desired, list[GroupKey]]]:
    """Groups of loaded deployments that are to start and have nothing to end first."""
    found: dict[str, list[GroupKey]] = {}
    for one, group in unblocked(state):
        if one.spec.on_demand:
            found.setdefault(one.name, []).append(group)
    return [(state.to_run[name], groups) for name, groups in found.items()]


def _middle(state: FleetState, desired: Desired, groups: Iterable[GroupKey]) -> dict[str, int]:
    """Bytes on each node that groups take at their rungs, by the middle of the predicted band."""
    found: dict[str, int] = {}
    for group in groups:
        rung = desired.plan_of(group).rung_at(state.standing(group).rung)
        nodes = rung.candidate.shape.nodes
        found = added(found, dict.fromkeys(nodes, int(rung.prediction.memory_bytes_per_rank.mid)))
    return found


def _is_crowded_out(state: FleetState, desired: Desired) -> bool:
    """True if nothing of a loaded deployment serves, and another one on demand has the memory that it was refused.

    That one was loaded while an engine of this one had just failed, or before an edit moved it. It waits for its turn, and
    keeps its rung.
    """
    apps = [app for app in state.apps if app.deployment == desired.name]
    if any(app.status in ("running", "retiring") for app in apps):
        return False
    reports = [one for app in apps if (one := state.report(app.group)) is not None]
    is_refused = any(
        one.phase is GroupPhase.FAILED
        and one.diagnosis is not None
        and one.diagnosis.cause is Cause.MEMORY
        and not one.diagnosis.began
        for one in reports
    )
    if not is_refused and (apps or desired.name not in state.pending.loaded):
        return False
    needs = _middle(state, desired, desired.groups)
    others = [one for one in _loaded(state) if one.name != desired.name]
    if not any(not needs.keys().isdisjoint(_held(state, one)) for one in others):
        return False
    return is_refused or bool(FreeMemory(state).lacking(needs))


def _is_refused(state: FleetState, desired: Desired) -> bool:
    """True if nothing of a loaded deployment runs, and all that was given up of it was refused its memory."""
    given_up = [one for one in map(state.standing, desired.groups) if one.given_up]
    runs = any(app.deployment == desired.name and app.status != "failed" for app in state.apps)
    return bool(given_up) and not runs and all(0 < one.refused <= RETRIES for one in given_up)


def _unload(desired: Desired, reason: str) -> UnloadDeployment:
    """The end of a deployment. Its groups are retired as all that are not to run (`rollout.retire_unwanted`)."""
    return UnloadDeployment(deployment=desired.name, generation=desired.generation, reason=reason)


def _held(state: FleetState, desired: Desired, *, ending: bool = False) -> dict[str, int]:
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
        ]
        found = added(found, _middle(state, one, holding))
    return found


def _fewest(
    state: FleetState, lacking: Mapping[str, int], holders: Iterable[Desired]
) -> list[Desired] | None:
    """The first of the holders whose memory is enough, without those that are not needed beside the others; None if that of
    all is not enough."""
    chosen: list[Desired] = []
    for one in holders:
        if not _still(state, lacking, chosen):
            break
        if not lacking.keys().isdisjoint(_held(state, one)):
            chosen.append(one)
    if _still(state, lacking, chosen):
        return None
    for one in tuple(reversed(chosen)):
        others = [each for each in chosen if each is not one]
        if not _still(state, lacking, others):
            chosen = others
    return chosen


def _still(state: FleetState, lacking: Mapping[str, int], ended: Iterable[Desired]) -> bool:
    """True if memory is missing on a node although some deployments have ended."""
    back: dict[str, int] = {}
    for one in ended:
        back = added(back, _held(state, one))
    return any(need > back.get(node, 0) for node, need in lacking.items())


def _ending(state: FleetState, needs: Mapping[str, int]) -> dict[str, int]:
    """Bytes on nodes of a claim that groups of deployments give back which are no longer to run."""
    found: dict[str, int] = {}
    for name in {app.deployment for app in state.apps} - state.to_run.keys():
        if (one := state.applied.get(name)) is not None:
            held = _held(state, one, ending=True)
        else:  # deleted: its plan is not known any more
            reports = (one for one in state.reports if one.deployment == name)
            held = {one.node: needs.get(one.node, 0) for one in reports}
        found = added(found, {node: held[node] for node in held.keys() & needs.keys()})
    return found


def _unused_s(state: FleetState, desired: Desired, now: Now) -> float:
    """Seconds without a request, counted from the end of its start; 0 while it starts or if nothing is known."""
    demand = state.demand.get(desired.name)
    if demand is None or demand.ready_since is None:
        return 0.0
    return min(demand.unused_s, now.steady - demand.ready_since)
