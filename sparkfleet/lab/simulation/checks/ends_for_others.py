"""Invariants of the ends of deployments on demand for others that need their memory: none for nothing, none out of turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparkfleet.controlplane.policy.demand.claim_room import LEAST_SERVED_S, UNUSED_S
from sparkfleet.controlplane.policy.ladder import rung_without
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.group.group_name import GroupKey
from sparkfleet.lab.simulation.checks.demand_invariants import (
    SEEN_S,
    DemandRecord,
    able_generations,
    startable_groups,
)
from sparkfleet.lab.simulation.checks.invariants import TOP
from sparkfleet.lab.simulation.clients import ModelUse
from sparkfleet.lab.simulation.controller_processes import MADE_ROOM
from sparkfleet.lab.simulation.memory_look import MemoryLook, held_by
from sparkfleet.lab.simulation.world import World
from sparkfleet.planner.types.plan import GroupPlan, Rung


@dataclass(frozen=True)
class EndForAnother:
    """The end of a deployment on demand, and the deployment that needs its memory."""

    name: str
    claimant: Desired

    def __str__(self) -> str:
        return f"{self.name} was ended for {self.claimant.name}"


def ended_for_others(ends: Mapping[str, str], wanted: Mapping[str, Desired]) -> list[EndForAnother]:
    """Selects the ends that have such a reason.

    Args:
        ends: deployments that were ended, with the reason.
        wanted: deployments that are to run.
    """
    return [
        EndForAnother(name, claimant)
        for name, why in ends.items()
        if why.startswith(MADE_ROOM) and (claimant := wanted.get(why.removeprefix(MADE_ROOM))) is not None
    ]


def ended_for_nothing(
    ends: Sequence[EndForAnother],
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    look: MemoryLook,
    world: World,
    *,
    loads: Collection[str],
    waits: Mapping[str, float],
) -> Iterator[str]:
    """Deployments that were ended for one that cannot start, or that fits without it.

    Args:
        ends: those of one step.
        wanted: deployments that are to run.
        standings: place of each group on its ladder.
        look: the memory by which that was decided.
        loads: deployments that were loaded in the same step: they have their memory before one that waits.
        waits: deployments on demand that requests wait for, and since when: memory is kept for those before the claimant.
    """
    blocked = world.drained() | {one.name for one in world.fleet.nodes.values() if not one.joined}
    for end in ends:
        if not look.engines_of(end.name):
            continue  # its engine has failed, and nobody knows it yet
        choices = _choices(end.claimant, standings, blocked, world)
        there = [one for one in choices if blocked.isdisjoint(_nodes(one))]
        if not there:
            away = sorted(blocked & {node for one in choices for node in _nodes(one)})
            away_since = max((world.fleet.nodes[node].away_since or 0.0 for node in away), default=0.0)
            if end.claimant.spec.on_demand and world.time.seconds - away_since > SEEN_S:
                yield f"{look.at:.1f} s: {end}, which needs {away}: away or drained"
            continue
        if any(group not in look.engines for group in look.ending):
            continue  # it gave its memory back in this moment, and its actor reports nothing of that here
        gone = frozenset(
            key for key in look.engines if _may_go(key, wanted, look) or key[0] == end.claimant.name
        )  # its own engines have the memory of their rungs
        fitting = [one for one in there if _fits(one, look, gone.__contains__, "mid")]
        if not fitting:
            yield f"{look.at:.1f} s: {end}, which does not fit without all others either"
        rungs = (fitting or there)[0]
        with_it = {one.name for one in ends if one.claimant is end.claimant and one is not end}
        ending = look.ending | {key for key in look.engines if key[0] in with_it}
        is_settled = not look.unplaced and not loads and _all_others_run(end.claimant, wanted, look)
        before = [wanted[name] for name in _before(end.claimant, waits) if name in wanted]
        earlier = [
            rung for one in before for each in _choices(one, standings, blocked, world) for rung in each
        ]
        if is_settled and _fits([*rungs, *earlier], look, ending.__contains__, "high"):
            yield f"{look.at:.1f} s: {end}, which fits beside it"


def ended_in_use(
    ends: Sequence[EndForAnother], use: Mapping[str, ModelUse], look: MemoryLook, record: DemandRecord
) -> Iterator[str]:
    """Deployments that were ended for another one on demand while they were used, before they had served for their time.

    Each start since they became ready counts, also that of a group that an edit has replaced.
    """
    now = look.at
    for end in ends:
        engines = [one for one in look.engines_of(end.name) if one.ready]
        if not end.claimant.spec.on_demand or not engines:
            continue
        used = use[end.name]
        if now - used.used_at > UNUSED_S - SEEN_S or now - used.gap_ended_at < SEEN_S:
            continue
        begin, over = record.outage
        if any(begin <= one.ready_at <= over for one in engines):
            continue  # no gateway got a table then, and that start is not known to any
        adopted = any(one.group in look.adopted for one in engines)  # nobody knows the seconds of its start
        starts_s = [
            record.longest_start_s.get(end.name, 0.0),
            *(one.ready_at - one.began_at for one in engines),
        ]
        started_s = 0.0 if adopted else max(starts_s)
        ready_since = record.ready_since.get(end.name, record.ready_before.get(end.name, now))
        served_s, least_s = now - ready_since, max(LEAST_SERVED_S, started_s)
        if served_s < least_s - 1.0:
            words = f"was ended for {end.claimant.name} after {served_s:.0f} s, not {least_s:.0f} s"
            yield f"{now:.1f} s: {end.name} is used and {words}"


def _choices(
    claimant: Desired, standings: Mapping[GroupKey, Standing], blocked: Collection[str], world: World
) -> list[list[Rung]]:
    """The rungs at which a deployment starts: of each generation that may, if it is on demand, of the groups that may."""
    if not claimant.spec.on_demand:
        return [
            [_first_rung(plan, standings.get(group, TOP).rung, blocked) for group, plan in claimant.planned()]
        ]
    return [
        [
            _first_rung(one.plan_of(group), standings.get(group, TOP).rung, blocked)
            for group in startable_groups(standings, one.groups)
        ]
        for one in able_generations(world, claimant)
    ]


def _before(claimant: Desired, waits: Mapping[str, float]) -> list[str]:
    """Deployments that requests have waited for at least as long, as far as the controller can know."""
    own = waits.get(claimant.name, float("-inf"))
    return [name for name, since in waits.items() if name != claimant.name and since <= own + SEEN_S]


def _nodes(rungs: Sequence[Rung]) -> set[str]:
    return {node for rung in rungs for node in rung.candidate.shape.nodes}


def _first_rung(plan: GroupPlan, at: int, blocked: Collection[str]) -> Rung:
    """The rung at which a group starts: without nodes that let nothing start, if it has one."""
    without = rung_without(plan, blocked, at)
    return plan.rung_at(at if without is None else without)


def _may_go(group: GroupKey, wanted: Mapping[str, Desired], look: MemoryLook) -> bool:
    """True if a group gives its memory back, or does so if another one needs it."""
    return group in look.ending or group[0] not in wanted or wanted[group[0]].spec.on_demand


def _all_others_run(claimant: Desired, wanted: Mapping[str, Desired], look: MemoryLook) -> bool:
    """True if each group of the other deployments that are not on demand has an engine."""
    return all(
        group in look.engines
        for other in wanted.values()
        if not other.spec.on_demand and other is not claimant
        for group in other.groups
    )


def _fits(rungs: Sequence[Rung], look: MemoryLook, ends: Callable[[GroupKey], bool], bound: str) -> bool:
    """True if these rungs fit at once, after some groups have ended."""
    needs: dict[str, float] = {}
    for rung in rungs:
        for node in rung.candidate.shape.nodes:
            needs[node] = needs.get(node, 0.0) + getattr(rung.prediction.memory_bytes_per_rank, bound)
    return all(look.free[node] + held_by(look.engines, node, ends) >= need for node, need in needs.items())
