"""Invariants of deployments on demand: requests are served in time, and nothing starts, runs or ends without a reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from sparkfleet.controlplane.policy.claim_room import LEAST_SERVED_S, UNUSED_S
from sparkfleet.controlplane.policy.ladder import rung_without
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.lab.simulation.clients import LONGEST_REQUEST_S, ModelUse
from sparkfleet.lab.simulation.fleet import SimulatedEngine
from sparkfleet.lab.simulation.invariants import TOP
from sparkfleet.lab.simulation.world import REGISTER_S, MemoryLook, World
from sparkfleet.planner.types.plan import GroupPlan, Rung

LONGEST_START_S = 240.0
"""Longest simulated start that does not hang."""
TURN_S = LONGEST_START_S + max(LEAST_SERVED_S, LONGEST_START_S) + LONGEST_REQUEST_S + 60.0
"""Seconds that another one takes at most: its start, what it may serve, its last requests, and its end."""
SLACK_S = 300.0
SEEN_S = REGISTER_S + 1.0
"""Seconds after which the controller knows what the gateways see."""
IDLE_SLACK_S = 90.0
PLACED_S = 10.0
"""Seconds after which a group that was deployed starts its engine."""
NEEDED = " needs its memory"


@dataclass
class DemandRecord:
    """Memory of the checks from step to step."""

    possible_since: dict[str, float] = field(default_factory=dict)
    """Since when each one for which a request waits could have been started."""
    unloaded: Mapping[str, str] = field(default_factory=dict)
    """Those that the controller had ended, with the reason."""
    ready_since: dict[str, float] = field(default_factory=dict)
    """Since when each one has had an engine that serves, without a break."""
    outage: tuple[float, float] = (0.0, 0.0)
    """Begin and end of the last time without a controller that works, simulated seconds."""
    disturbed_at: float = 0.0
    """Moment of the last event that takes time of its own: a failed engine, a change by a user, a node that goes away."""


def waits_too_long(
    record: DemandRecord,
    demanded: Mapping[str, Desired],
    use: Mapping[str, ModelUse],
    is_possible: Callable[[Desired], bool],
    *,
    working_since: float,
    now: float,
) -> Iterator[str]:
    """Deployments for which a request has waited longer than the turns of all others and their own start take.

    Args:
        demanded: deployments on demand.
        use: requests of all clients.
        is_possible: true if one could start, once other deployments on demand have ended.
        working_since: since when the controller works without a break.
        now: simulated seconds.
    """
    limit_s = (len(demanded) - 1) * TURN_S + LONGEST_START_S + SLACK_S
    for name, one in demanded.items():
        since = use[name].waiting_since
        if since is None or not is_possible(one):
            record.possible_since.pop(name, None)
            continue
        possible = record.possible_since.setdefault(name, now)
        waited_s = now - max(since, possible, working_since, record.disturbed_at)
        if waited_s > limit_s:
            yield f"{now:.1f} s: a request for {name}, which could be started, has waited for {waited_s:.0f} s"


def is_possible(world: World, demanded: Mapping[str, Desired], one: Desired) -> bool:
    """True if a deployment on demand could start at its rung once others on demand have ended, and all that are not on
    demand have what they may take."""
    standings = world.store.groups.standings()
    always, needs = _reserved(world, standings), dict[str, float]()
    for group, plan in one.planned():
        standing = standings.get(group, TOP)
        if standing.given_up or any(name in demanded for name, _ in world.bad):
            return False
        rung = plan.rung_at(standing.rung)
        for node in rung.candidate.shape.nodes:
            needs[node] = needs.get(node, 0.0) + rung.prediction.memory_bytes_per_rank.high
    for node, need in needs.items():
        there = world.fleet.nodes[node]
        if not there.joined or there.slow_report or there.without_tool or node in world.drained():
            return False
        held = _held(world.fleet.engines, node, lambda key: key[0] in demanded)
        if world.fleet.free(node) + held - always.get(node, 0) < need:
            return False
    return True


def runs_unused(
    demanded: Mapping[str, Desired],
    use: Mapping[str, ModelUse],
    world: World,
    known_since: float,
) -> Iterator[str]:
    """Engines that run longer without a request than their `idle`.

    Args:
        known_since: since when the controller and all gateways have worked without a break, simulated seconds.
    """
    now = world.time.seconds
    for key, engine in world.fleet.engines.items():
        one, app = demanded.get(key[0]), world.serve.apps.get(key)
        if one is None or one.spec.idle is None or not engine.ready or app is None or app.status != "running":
            continue
        # A gateway counts from the last time that its table named it as ready: the group may have been silent meanwhile.
        seen = world.controller.fleet.demand.present().get(one.name) if world.controller is not None else None
        if seen is None or seen.ready_since is None:
            continue
        unused_s = now - max(engine.ready_at, seen.ready_since, use[one.name].used_at, known_since)
        if unused_s > one.spec.idle + IDLE_SLACK_S:
            yield f"{now:.1f} s: {name_of(key)} has run without a request for {unused_s:.0f} s, its idle is {one.spec.idle}"


def ended_for_nothing(
    ends: Mapping[str, str],
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    look: MemoryLook,
    world: World,
) -> Iterator[str]:
    """Deployments that were ended for one that cannot start, or that fits without it.

    Args:
        ends: those that were ended in this step, with the reason.
        look: the memory by which that was decided.
    """
    for name, why in ends.items():
        claimant = wanted.get(why.removesuffix(NEEDED)) if why.endswith(NEEDED) else None
        if claimant is None or not any(key[0] == name for key in look.engines):
            continue  # its engine has failed, and nobody knows it yet
        blocked = world.drained() | {one.name for one in world.fleet.nodes.values() if not one.joined}
        rungs = [
            _first_rung(plan, standings.get(group, TOP).rung, blocked) for group, plan in claimant.planned()
        ]
        ending = look.ending | {key for key in look.engines if key[0] != name and ends.get(key[0]) == why}
        nodes = {node for rung in rungs for node in rung.candidate.shape.nodes}
        if away := sorted(
            node for node in nodes if not world.fleet.nodes[node].joined or node in world.drained()
        ):
            if (
                claimant.spec.on_demand
                and world.time.seconds - max(world.fleet.nodes[node].away_since or 0.0 for node in away)
                > SEEN_S
            ):
                yield f"{look.at:.1f} s: {name} was ended for {claimant.name}, which needs {away}: away or drained"
            continue
        if not _fits(rungs, look, lambda key: key[0] not in wanted or wanted[key[0]].spec.on_demand, "mid"):
            yield f"{look.at:.1f} s: {name} was ended for {claimant.name}, which does not fit without all others either"
        others_run = all(
            group in look.engines
            for other in wanted.values()
            if not other.spec.on_demand and other is not claimant
            for group in other.groups
        )
        if others_run and not look.unplaced and _fits(rungs, look, ending.__contains__, "high"):
            yield f"{look.at:.1f} s: {name} was ended for {claimant.name}, which fits beside it"


def ended_in_use(
    ends: Mapping[str, str],
    wanted: Mapping[str, Desired],
    use: Mapping[str, ModelUse],
    look: MemoryLook,
    record: DemandRecord,
) -> Iterator[str]:
    """Deployments that were ended for another one on demand while they were used, before they had served for their time."""
    for name, why in ends.items():
        claimant = wanted.get(why.removesuffix(NEEDED)) if why.endswith(NEEDED) else None
        engines = [one for key, one in look.engines.items() if key[0] == name and one.ready]
        adopted = any(
            one.group in look.adopted for one in engines
        )  # the seconds of its start are not known any more
        if claimant is None or not claimant.spec.on_demand or not engines:
            continue
        seen, now = use[name], look.at
        if now - seen.used_at > UNUSED_S - SEEN_S or now - seen.gap_ended_at < SEEN_S:
            continue
        begin, end = record.outage
        if any(begin <= one.ready_at <= end for one in engines):
            continue  # no gateway got a table then, and that start is not known to any
        served_s = now - record.ready_since.get(name, now)
        started_s = 0.0 if adopted else max(one.ready_at - one.began_at for one in engines)
        least_s = max(LEAST_SERVED_S, started_s)
        if served_s < least_s - 1.0:
            words = f"was ended for {claimant.name} after {served_s:.0f} s, not {least_s:.0f} s"
            yield f"{now:.1f} s: {name} is used and {words}"


def started_without_room(
    refused: list[tuple[float, GroupLaunch]],
    demanded: Mapping[str, Desired],
    world: World,
    hogged_at: float,
) -> Iterator[str]:
    """Starts of deployments on demand, at the rung for which memory was free, that found too little of it.

    Args:
        refused: starts since the last check that did.
        hogged_at: moment at which something else took or gave back memory last.
    """
    for at, launch in refused:
        key = (launch.deployment, launch.generation, launch.replica)
        app = world.serve.apps.get(key)
        if launch.deployment not in demanded or launch.rung or app is None or app.has_served:
            continue
        deployed_at = max(
            (when for when, call, of in world.serve.calls if (call, of) == ("deploy", key)), default=0.0
        )
        if at - deployed_at > PLACED_S:
            continue  # it waited for a node, or starts again
        nodes = set(launch.candidate.shape.nodes)
        beside = [
            (other, engine)
            for other, engine in world.fleet.engines.items()
            if other != key and nodes & set(engine.nodes)
        ]
        late = [
            other
            for other, engine in beside
            if at - engine.began_at < LONGEST_START_S and other[0] not in demanded
        ]
        if not late and at - hogged_at > LONGEST_START_S:
            names = ", ".join(name_of(other) for other, _ in beside)
            yield f"{at:.1f} s: {name_of(key)} was started without room beside {names}"


def _first_rung(plan: GroupPlan, at: int, blocked: Collection[str]) -> Rung:
    """The rung at which a group starts: without nodes that let nothing start, if it has one."""
    without = rung_without(plan, blocked, at)
    return plan.rung_at(at if without is None else without)


def _reserved(world: World, standings: Mapping[GroupKey, Standing]) -> dict[str, int]:
    """Bytes on each node that groups take which are not on demand and have no engine now."""
    found: dict[str, int] = {}
    for one in world.store.deployments.desired().values():
        for group, plan in () if one.spec.on_demand else one.planned():
            if group not in world.fleet.engines:
                rung = plan.rung_at(standings.get(group, TOP).rung)
                for node in rung.candidate.shape.nodes:
                    found[node] = found.get(node, 0) + int(rung.prediction.memory_bytes_per_rank.high)
    return found


def _held(engines: Mapping[GroupKey, SimulatedEngine], node: str, counts: Callable[[GroupKey], bool]) -> int:
    return sum(one.needs for key, one in engines.items() if node in one.nodes and counts(key))


def _fits(rungs: list[Rung], look: MemoryLook, ends: Callable[[GroupKey], bool], bound: str) -> bool:
    """True if these rungs fit at once, after some groups have ended."""
    needs: dict[str, float] = {}
    for rung in rungs:
        for node in rung.candidate.shape.nodes:
            needs[node] = needs.get(node, 0.0) + getattr(rung.prediction.memory_bytes_per_rank, bound)
    return all(look.free[node] + _held(look.engines, node, ends) >= need for node, need in needs.items())
