"""Invariants of deployments on demand: requests are served in time, and nothing starts or runs without a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sparkfleet.controlplane.policy.demand.claim_room import LEAST_SERVED_S
from sparkfleet.controlplane.policy.ladder import RETRIES
from sparkfleet.controlplane.policy.state import GONE_S
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.gateway.routing_table import RoutingTable
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.lab.simulation.checks.invariants import TOP
from sparkfleet.lab.simulation.clients import LONGEST_REQUEST_S, ModelUse
from sparkfleet.lab.simulation.gateway_exchange import REGISTER_S
from sparkfleet.lab.simulation.memory_look import held_by
from sparkfleet.lab.simulation.world import World
from sparkfleet.planner.types.plan import Rung

LONGEST_START_S = 240.0
"""Longest simulated start that does not hang."""
TURN_S = LONGEST_START_S + max(LEAST_SERVED_S, LONGEST_START_S) + LONGEST_REQUEST_S + 60.0
"""Seconds that another one takes at most: its start, what it may serve, its last requests, and its end."""
SLACK_S = 300.0
SEEN_S = REGISTER_S + 1.0
"""Seconds after which the controller knows what the gateways see."""
REFUSED_S = 120.0
"""Seconds for which requests may be refused while a generation may start: a controller that works decides in each round."""
IDLE_SLACK_S = 90.0
START_KEPT_S = 60.0
"""Seconds after which the store knows no start of a group any more that was unloaded before its end."""
PLACED_S = 10.0
"""Seconds after which a group that was deployed starts its engine."""


@dataclass
class DemandRecord:
    """Memory of the checks from step to step."""

    possible_since: dict[str, float] = field(default_factory=dict)
    """Since when each one for which a request waits could have been started."""
    unloaded: Mapping[str, str] = field(default_factory=dict)
    """Those that the controller had ended, with the reason."""
    loaded: frozenset[str] = frozenset()
    """Those that it had loaded."""
    ready_since: dict[str, float] = field(default_factory=dict)
    """Since when each one has had an engine that serves, without a break."""
    ready_before: dict[str, float] = field(default_factory=dict)
    """The same before the last step, in which it may have been ended: calls of Serve may take long."""
    longest_start_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the longest start of each one's groups since it became ready, as far as the controller has known them."""
    refused_since: dict[str, float] = field(default_factory=dict)
    """Since when the table has had each one as refusing requests although a generation of it may start."""
    outage: tuple[float, float] = (0.0, 0.0)
    """Begin and end of the last time without a controller that works, simulated seconds."""
    started_since: dict[GroupKey, float] = field(default_factory=dict)
    """Since when the store has had an unfinished start of each group that is unloaded."""
    answered_at: float = 0.0
    """Moment at which a retired group had its memory last for an answer longer than those of `SimulatedClients`."""
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
    limit_s = (len(demanded) - 1) * TURN_S + LONGEST_START_S + GONE_S + SLACK_S
    for name, one in demanded.items():
        since = use[name].waiting_since
        if since is None or not is_possible(one):
            record.possible_since.pop(name, None)
            continue
        possible = record.possible_since.setdefault(name, now)
        waited_s = now - max(since, possible, working_since, record.disturbed_at, record.answered_at)
        if waited_s > limit_s:
            yield f"{now:.1f} s: a request for {name}, which could be started, has waited for {waited_s:.0f} s"


def refuses_for_good(
    record: DemandRecord,
    demanded: Mapping[str, Desired],
    table: RoutingTable,
    able: Callable[[Desired], Sequence[Desired]],
    *,
    working_since: float,
    now: float,
) -> Iterator[str]:
    """Deployments whose requests have been refused for long, although a generation of them may start.

    Args:
        demanded: deployments on demand.
        table: the one that the controller published last.
        able: generations of a deployment that may start (`able_generations`).
        working_since: since when the controller works without a break.
        now: simulated seconds.
    """
    for name, one in demanded.items():
        model = table.models.get(name)
        refuses = model is not None and not model.awaits_start and not model.apps
        found = able(one) if refuses else ()
        if not found:
            record.refused_since.pop(name, None)
            continue
        refused_s = now - max(record.refused_since.setdefault(name, now), working_since)
        if refused_s > REFUSED_S:
            words = " and ".join(f"g{each.generation}" for each in found)
            yield f"{now:.1f} s: requests for {name} have been refused for {refused_s:.0f} s, and {words} may start"


def able_generations(world: World, one: Desired) -> list[Desired]:
    """Generations of a deployment of which a group may start: the desired one, and the last that served before it.

    A group that was given up starts again if it was only refused its memory, a few times.
    """
    standings = world.store.groups.standings()
    served = world.store.deployments.last_served(one)
    return [
        each for each in (one, served) if each is not None and any(startable_groups(standings, each.groups))
    ]


def startable_groups(standings: Mapping[GroupKey, Standing], groups: Sequence[GroupKey]) -> list[GroupKey]:
    """Groups that are not given up, or were only refused their memory."""
    found = ((group, standings.get(group, TOP)) for group in groups)
    return [group for group, at in found if not at.given_up or 0 < at.refused <= RETRIES]


def is_possible(world: World, demanded: Mapping[str, Desired], one: Desired) -> bool:
    """True if a deployment on demand could start once others on demand have ended, and all that are not on demand have what
    they may take: the first of its generations that may start, or one that served before it. Not while it needs a drained
    node, or some do not start for a while."""
    if any(name in demanded for name, _ in world.bad):
        return False
    able, standings = able_generations(world, one), world.store.groups.standings()
    if not able or (able[0] is one and (one.name, one.generation) in world.broken):
        return False
    first = {node for rung in _rungs_of(able[0], standings) for node in rung.candidate.shape.nodes}
    return first.isdisjoint(world.drained()) and any(
        _has_room(world, demanded, each, standings) for each in able
    )


def _rungs_of(one: Desired, standings: Mapping[GroupKey, Standing]) -> list[Rung]:
    """The rungs at which the groups of a generation start that may."""
    return [
        one.plan_of(group).rung_at(standings.get(group, TOP).rung)
        for group in startable_groups(standings, one.groups)
    ]


def _has_room(
    world: World,
    demanded: Mapping[str, Desired],
    one: Desired,
    standings: Mapping[GroupKey, Standing],
) -> bool:
    """True if a generation of a deployment on demand fits once others on demand have ended."""
    always, needs = _reserved(world, standings), dict[str, float]()
    for rung in _rungs_of(one, standings):
        for node in rung.candidate.shape.nodes:
            needs[node] = needs.get(node, 0.0) + rung.prediction.memory_bytes_per_rank.high
    for node, need in needs.items():
        there = world.fleet.nodes[node]
        if not there.joined or there.slow_report or there.without_tool or node in world.drained():
            return False
        held = held_by(world.fleet.engines, node, lambda key: key[0] in demanded)
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


def keeps_starts(
    record: DemandRecord,
    demanded: Mapping[str, Desired],
    starts: Mapping[GroupKey, Mapping[str, str]],
    loaded: Callable[[str], bool],
    *,
    working_since: float,
    now: float,
) -> Iterator[str]:
    """Unfinished starts of groups that have been unloaded for long: each round reads the memory of the nodes for them.

    Args:
        demanded: deployments on demand.
        starts: unfinished ones of the store whose nodes report.
        loaded: true if a deployment is to run, or has an application.
        working_since: since when the controller works without a break.
        now: simulated seconds.
    """
    before = record.started_since
    record.started_since = {
        group: before.get(group, now) for group in starts if group[0] in demanded and not loaded(group[0])
    }
    for group, since in record.started_since.items():
        kept_s = now - max(since, working_since, record.disturbed_at)
        if kept_s > START_KEPT_S:
            yield f"{now:.1f} s: the store has a start of {name_of(group)}, which was unloaded {kept_s:.0f} s ago"


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
