"""Invariants of a simulated fleet in which faults have ceased for long, and nothing changes any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from sparkfleet.controlplane.policy.fallback import BREAKER_S
from sparkfleet.controlplane.policy.ladder import RETRIES
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.lab.simulation.application import SimulatedApp
from sparkfleet.lab.simulation.checks.invariants import TOP
from sparkfleet.lab.simulation.fleet import SYSTEM, SimulatedFleet
from sparkfleet.lab.simulation.memory_look import held_by
from sparkfleet.lab.simulation.serve import SimulatedServe
from sparkfleet.planner.types.plan import Rung

SERVED_LONG_S = BREAKER_S + 60.0
"""Seconds of service of the desired groups after which the policy has forgotten the older ones: its wait, and a round."""


def nothing_unwanted(
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    serve: SimulatedServe,
    fleet: SimulatedFleet,
) -> Iterator[str]:
    """Applications and engines without a deployment.

    Groups of an earlier generation go on if one that replaces them is given up, as `status` shows, or waits for its memory.
    """
    now = fleet.time.seconds
    groups = {group for one in wanted.values() for group in one.groups}
    failed = {one.name for one in wanted.values() if any(standings.get(g, TOP).given_up for g in one.groups)}
    failed |= {
        one.name
        for one in wanted.values()
        if _older_serves(one, fleet) and not fleet.engines.keys() >= {*one.groups}
    }
    for key in serve.apps:
        if key not in groups and key[0] not in failed:
            yield f"{now:.1f} s: {key} runs without a deployment"
    for key in fleet.engines:
        if key not in serve.apps:
            yield f"{now:.1f} s: an engine of {key} runs without an application"


def everything_wanted(
    wanted: Mapping[str, Desired], standings: Mapping[GroupKey, Standing], fleet: SimulatedFleet
) -> Iterator[str]:
    """Groups that are wanted, possible, and do not serve.

    A group that is given up, as `status` shows, is not possible if the others have the memory of all its rungs: a neighbour
    that fell to a rung on its node stays there, and people's edits of a plan may need more than its nodes have, of which the
    planner would make no plan. The same holds for one that an edit adds to what is loaded: nothing ends for it.

    Of one on demand its nodes have what is left beside deployments that are not: the memory of the whole node was compared,
    which was wrong, because those never end for it (seed 480102: 46 and 57 GiB beside another's 25 on a node of 111).
    """
    rungs = _rungs(wanted, standings)
    for one in wanted.values():
        for group, plan in one.planned():
            engine = fleet.engines.get(group)
            if engine is not None and engine.ready:
                continue
            others = {key: rung for key, rung in rungs.items() if key != group}
            given_up = standings.get(group, TOP).given_up
            may_wait = given_up or _older_serves(one, fleet) or _exceeds(one, wanted, rungs, fleet)
            if not may_wait or any(_has_room(rung, group, others, fleet) for rung in plan.ladder):
                yield f"{fleet.time.seconds:.1f} s: {name_of(group)} is wanted and does not serve"


def _older_serves(one: Desired, fleet: SimulatedFleet) -> bool:
    """True if a deployment on demand is served by a group of an earlier generation."""
    older = (key for key in fleet.engines if key[0] == one.name and key not in one.groups)
    return one.spec.on_demand and any(fleet.engines[key].ready for key in older)


def _exceeds(
    one: Desired, wanted: Mapping[str, Desired], rungs: Mapping[GroupKey, Rung], fleet: SimulatedFleet
) -> bool:
    """True if the groups of a deployment on demand need more of a node than is left beside those that are not on demand: an
    edit has added one."""
    needs: Counter[str] = Counter()
    for group in one.groups:
        for node in rungs[group].candidate.shape.nodes:
            needs[node] += int(rungs[group].prediction.memory_bytes_per_rank.mid)

    def left(node: str) -> int:
        others = held_by(
            fleet.engines, node, lambda key: key[0] in wanted and not wanted[key[0]].spec.on_demand
        )
        return fleet.nodes[node].memory - SYSTEM - others

    return one.spec.on_demand and any(
        need > left(node) for node, need in needs.items() if node in fleet.nodes
    )


def remembers_ended(
    wanted: Mapping[str, Desired], remembered: Collection[GroupKey], serve: SimulatedServe, unix: float
) -> Iterator[str]:
    """Groups that have ended and that the store still knows.

    It keeps the positions of older ones until all desired ones have served for long, which they have not yet in a run that
    ended at a violation.

    Args:
        wanted: deployments that are to run.
        remembered: groups with a position on their ladder or an unfinished start in the store.
        serve: the applications.
        unix: the wall clock.
    """
    there = {group for one in wanted.values() for group in one.groups} | serve.apps.keys()
    for group in sorted(set(remembered) - there):
        one = wanted.get(group[0])
        if one and not all(_has_served_for_long(serve.apps.get(key), unix) for key in one.groups):
            continue
        yield f"the store still knows {name_of(group)}, which has ended"


def _has_served_for_long(app: SimulatedApp | None, unix: float) -> bool:
    """True if an application runs and has reported so for longer than the policy waits."""
    if app is None or app.status != "running" or app.report is None:
        return False
    return abs(unix - app.report.since) > SERVED_LONG_S


def refused_although_free(
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    serve: SimulatedServe,
    fleet: SimulatedFleet,
) -> Iterator[str]:
    """Groups that are given up for memory which has been free for long, and that may be started again.

    To be checked before anybody applies anything again.
    """
    replaced = {key[0] for key in serve.apps if key[0] in wanted and key not in wanted[key[0]].groups}
    for one in wanted.values():
        for group, plan in one.planned():
            standing = standings.get(group, TOP)
            if not standing.given_up or not 0 < standing.refused <= RETRIES or one.name in replaced:
                continue
            rung = plan.rung_at(standing.rung)
            need = rung.prediction.memory_bytes_per_rank.high
            if all(fleet.free(node) >= need for node in rung.candidate.shape.nodes):
                yield f"{fleet.time.seconds:.1f} s: {name_of(group)} is given up, and the memory it needs is free"


def served_and_stays_away(
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    serve: SimulatedServe,
    fleet: SimulatedFleet,
    last_served: Callable[[Desired], Desired | None],
) -> Iterator[str]:
    """Groups of the last generation that served and could serve again, of deployments of which everything newer is given up.

    To be checked before anybody applies anything again.
    """
    there = {key[0] for key, app in serve.apps.items() if app.status != "failed"}
    for one in wanted.values():
        is_down = one.name not in there and all(standings.get(group, TOP).given_up for group in one.groups)
        served = last_served(one) if is_down else None
        for group, plan in served.planned() if served else ():
            standing = standings.get(group, TOP)
            rung = plan.rung_at(standing.rung)
            need = rung.prediction.memory_bytes_per_rank.high
            has_room = all(fleet.free(node) >= need for node in rung.candidate.shape.nodes)
            if not standing.given_up and has_room:
                yield f"{fleet.time.seconds:.1f} s: {name_of(group)} served last, has its memory free, and does not start"


def _rungs(wanted: Mapping[str, Desired], standings: Mapping[GroupKey, Standing]) -> dict[GroupKey, Rung]:
    """The rung of each wanted group, if it serves or not."""
    return {
        group: plan.rung_at(standings.get(group, TOP).rung)
        for one in wanted.values()
        for group, plan in one.planned()
    }


def _has_room(rung: Rung, group: GroupKey, others: Mapping[GroupKey, Rung], fleet: SimulatedFleet) -> bool:
    """True if every node of a rung has the memory that it needs, beside all engines, and others that are wanted."""
    own, needs = fleet.engines.get(group), rung.prediction.memory_bytes_per_rank.mid

    def left(node: str) -> float:
        free = fleet.free(node) + (own.needs if own is not None and node in own.nodes else 0)
        return free - sum(
            other.prediction.memory_bytes_per_rank.mid
            for key, other in others.items()
            if key not in fleet.engines and node in other.candidate.shape.nodes
        )

    return all(left(node) >= needs for node in rung.candidate.shape.nodes)
