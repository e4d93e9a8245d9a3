"""Invariants of a simulated fleet. A violation is a sentence with the moment and the values; none is the empty list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from sparkfleet.controlplane.policy.fallback import BREAKER_FAILURES, BREAKER_S
from sparkfleet.controlplane.policy.ladder import RETRIES
from sparkfleet.controlplane.policy.state import GONE_S
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.event import Event
from sparkfleet.gateway.routing_table import RoutingTable
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.group.report import GroupPhase
from sparkfleet.lab.simulation.fleet import SimulatedEngine, SimulatedFleet
from sparkfleet.lab.simulation.serve import SimulatedServe
from sparkfleet.lab.simulation.store_place import StorePlace
from sparkfleet.planner.types.plan import Rung

STALE_TABLE_S = 30.0
"""An engine that ended this long ago is in no table: a report counts for 15 s, and a controller may be away for some."""
BY_ACTION = ("deployed over", "retired", "swept", "left over")
"""Ends of engines that the controller or the next group brings about."""
NAMED_BY = ("fallback", "failed", "retire", "unwanted", "waits")
"""Kinds of events that name the reason for an engine's end."""
WEDGES = 3
LEAVES_S = 240.0
"""Seconds after `GONE_S` in which a group has left a node that is gone."""
DEATHS = BREAKER_FAILURES + 3
"""Deaths of a ready engine within `BREAKER_S`; a few reports may be lost."""
FAILED_STARTS, FAILED_STARTS_S = 14, 3600.0
"""Failed starts at one rung in so many seconds: three of Serve's, counted twice, and some whose reports were lost."""
RUNG_KEPT_S = 120.0
"""Seconds after which a group that reports runs at the rung that is stored."""
REPORT_GAP_S = 90.0
"""Longest time between two reports of a group that is started again and again: Serve pauses for a minute."""
STORM, STORM_S = 40, 600.0
"""More starts of one group than this in so many seconds are a loop."""

TOP = Standing()
"""Position of a group that never failed."""

BACK_S = 10.0
"""Time limit for a controller to work again once its store is back, simulated seconds."""


def forgotten(wanted: Mapping[str, Desired], confirmed: Mapping[str, Desired], now: float) -> Iterator[str]:
    """Deployments that the store has otherwise than the controller confirmed them. A command that failed changes nothing.

    Args:
        wanted: the store's.
        confirmed: what the controller confirmed to users, without what they deleted.
        now: simulated seconds.
    """
    for name in sorted(wanted.keys() | confirmed.keys()):
        stored, known = wanted.get(name), confirmed.get(name)
        if stored is not known and stored != known:
            yield f"{now:.1f} s: {name} was confirmed as {_generation(known)}, and the store has {_generation(stored)}"


def _generation(one: Desired | None) -> str:
    return f"generation {one.generation}" if one else "deleted"


def ended_without_reason(
    ended: list[tuple[float, SimulatedEngine, str]],
    wanted: Mapping[str, Desired],
    events: Callable[[], tuple[Event, ...]],
    ready_at: Mapping[GroupKey, float],
) -> Iterator[str]:
    """Engines that served, were wanted and well, and were ended without an event that names the reason.

    Args:
        ended: engines that have ended since the last check: when, which, what ended them.
        wanted: deployments that are to run.
        events: reads all that were written.
        ready_at: Unix seconds at which each engine became ready, less those by which the clock was set back since.
    """
    for at, engine, why in ended:
        name = engine.group[0]
        is_wanted = name in wanted and engine.group in wanted[name].groups
        if why not in BY_ACTION or not engine.ready or engine.hurt or not is_wanted:
            continue
        subject = name_of(engine.group)
        since = ready_at.get(engine.group, 0.0)
        named = [e for e in events() if e.kind in NAMED_BY and e.subject == subject and e.at >= since]
        if not named:
            yield f"{at:.1f} s: the engine of {subject} was ready, well and wanted, and was ended: {why}"


def not_ready_in_table(
    table: RoutingTable, fleet: SimulatedFleet, ended_at: Mapping[GroupKey, float]
) -> Iterator[str]:
    """Groups that the gateways' table names as ready and whose engine has been gone for long."""
    now = fleet.time.seconds
    by_app = {f"{g[0]}--g{g[1]}-{g[2]}": g for g in (*fleet.engines, *ended_at)}
    for model in table.models.values():
        for entry in model.groups:
            group = by_app.get(entry.app)
            if not entry.ready or group is None:
                continue
            engine = fleet.engines.get(group)
            gone_for = now - ended_at.get(group, now)
            if (engine is None or not engine.ready) and gone_for > STALE_TABLE_S:
                yield f"{now:.1f} s: the table names {entry.app} as ready; its engine ended {gone_for:.0f} s ago"


def older_acts(rounds: Sequence[tuple[float, int]]) -> Iterator[str]:
    """Rounds of a controller's process after one of a process that started later: two controllers act.

    Args:
        rounds: when, and of which process, counted from the first one.
    """
    newest = 0
    for at, number in rounds:
        if number < newest:
            yield f"{at:.1f} s: process {number} of the controller acts beside process {newest}"
        newest = max(newest, number)


def waits_for_nothing(held: bool, place: StorePlace, now: float) -> Iterator[str]:
    """A controller that still waits for its store although that has been back for long."""
    if held and place.content == "right" and now - place.back_at > BACK_S:
        yield f"{now:.1f} s: the controller waits for its store, which came back {now - place.back_at:.0f} s ago"


def start_storms(serve: SimulatedServe, now: float) -> Iterator[str]:
    """Groups that are started again and again."""
    if len(serve.calls) <= STORM:
        return
    late = Counter(key for at, call, key in serve.calls if call == "deploy" and now - at < STORM_S)
    yield from (
        f"{now:.1f} s: {key} was deployed {count} times in {STORM_S:.0f} s"
        for key, count in late.items()
        if count > STORM
    )


def wedged_again(serve: SimulatedServe, now: float) -> Iterator[str]:
    """Starts that take their node down again and again: the same rung may be tried twice (`TRIES`)."""
    for (group, rung), times in serve.wedged.items():
        if times > WEDGES:
            yield f"{now:.1f} s: {group} took a node down {times} times at rung {rung + 1}"


def stays_on_gone_nodes(
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    fleet: SimulatedFleet,
    since: Mapping[GroupKey, float],
    working_since: float,
    *,
    drained: frozenset[str],
) -> Iterator[str]:
    """Groups that wait for a node that has been gone for long, although a rung below does without.

    Args:
        wanted: deployments that are to run.
        standings: place of each group on its ladder.
        fleet: the machines.
        since: when each group was applied, or an older one served last, simulated seconds.
        working_since: since when the controller works without a break, simulated seconds.
        drained: nodes on which nothing is to be started.
    """
    now, away = fleet.time.seconds, drained | _away(fleet)
    gone = {
        n.name
        for n in fleet.nodes.values()
        if n.away_since is not None and now - max(n.away_since, working_since) > GONE_S + LEAVES_S
    }
    if not gone:
        return
    for one in wanted.values():
        if older_serves(one, fleet):
            continue  # as long as an older group serves, a new one waits for the memory of its nodes
        for group, plan in one.planned():
            standing = standings.get(group, Standing())
            at = min(standing.rung, len(plan.ladder) - 1)  # it fell while the plan with fewer rungs was made
            nodes = [set(rung.candidate.shape.nodes) for rung in plan.ladder[at:]]
            stuck = nodes and nodes[0] & gone and not all(other & away for other in nodes)
            if stuck and not standing.given_up and now - max(since[group], working_since) > GONE_S + LEAVES_S:
                yield f"{now:.1f} s: {name_of(group)} waits for {sorted(nodes[0] & gone)}"


def begun_on_drained(
    began: Sequence[tuple[float, GroupKey, tuple[str, ...]]], drained: frozenset[str]
) -> Iterator[str]:
    """Engines that were started on a drained node, although the controller answered their group.

    Args:
        began: engines that were started: when, of which group, on which nodes.
        drained: nodes that were drained then.
    """
    for at, group, nodes in began:
        if on := sorted(drained.intersection(nodes)):
            yield f"{at:.1f} s: {name_of(group)} was started on {on}: drained"


def falls_on_drained(
    wanted: Mapping[str, Desired],
    before: Mapping[GroupKey, Standing],
    standings: Mapping[GroupKey, Standing],
    drained: frozenset[str],
    now: float,
) -> Iterator[str]:
    """Groups that took a lower rung on a drained node.

    Args:
        wanted: deployments that are to run.
        before: places on the ladders before a step.
        standings: those after it.
        drained: nodes that were drained before it.
        now: simulated seconds.
    """
    for one in wanted.values() if drained else ():
        for group, plan in one.planned():
            was, standing = before.get(group), standings.get(group, TOP)
            if was is None or standing.rung <= was.rung:
                continue
            if on := sorted(drained.intersection(plan.ladder[standing.rung].candidate.shape.nodes)):
                yield f"{now:.1f} s: {name_of(group)} took rung {standing.rung + 1} on {on}: drained"


def stays_on_drained_nodes(
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    fleet: SimulatedFleet,
    serve: SimulatedServe,
    *,
    drained: frozenset[str],
    working_since: float,
) -> Iterator[str]:
    """Groups that have waited for a drained node for long, although a rung below does without.

    Args:
        wanted: deployments that are to run.
        standings: place of each group on its ladder.
        fleet: the machines.
        serve: the applications.
        drained: nodes that are drained.
        working_since: since when the controller works without a break, simulated seconds.
    """
    if not drained:
        return
    now, away = fleet.time.seconds, _away(fleet)
    for one in wanted.values():
        for group, plan in one.planned():
            app, standing = serve.apps.get(group), standings.get(group, TOP)
            if app is None or app.phase is not GroupPhase.BARRED or app.status == "retiring":
                continue
            at = min(standing.rung, len(plan.ladder) - 1)  # it fell while the plan with fewer rungs was made
            nodes = [set(rung.candidate.shape.nodes) for rung in plan.ladder[at:]]
            is_possible = any(not other & (away | drained) for other in nodes)
            since = max(app.barred_since, working_since)
            if nodes[0] & drained and is_possible and not standing.given_up and now - since > LEAVES_S:
                yield f"{now:.1f} s: {name_of(group)} waits for {sorted(nodes[0] & drained)}: drained"


def _away(fleet: SimulatedFleet) -> frozenset[str]:
    """Nodes that are away, or have just come back."""
    now = fleet.time.seconds
    return frozenset(
        n.name for n in fleet.nodes.values() if n.away_since is not None or now - n.joined_since < LEAVES_S
    )


def older_serves(one: Desired, fleet: SimulatedFleet) -> bool:
    """True while a group of an earlier generation serves."""
    return any(
        e.ready and e.group[0] == one.name and e.group not in one.groups for e in fleet.engines.values()
    )


def nothing_unwanted(
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    serve: SimulatedServe,
    fleet: SimulatedFleet,
) -> Iterator[str]:
    """Applications and engines without a deployment. To be checked when nothing changes any more.

    Groups of an earlier generation go on if one that replaces them is given up, as `status` shows.
    """
    now = fleet.time.seconds
    groups = {group for one in wanted.values() for group in one.groups}
    failed = {one.name for one in wanted.values() if any(standings.get(g, TOP).given_up for g in one.groups)}
    for key in serve.apps:
        if key not in groups and key[0] not in failed:
            yield f"{now:.1f} s: {key} runs without a deployment"
    for key in fleet.engines:
        if key not in serve.apps:
            yield f"{now:.1f} s: an engine of {key} runs without an application"


def everything_wanted(
    wanted: Mapping[str, Desired], standings: Mapping[GroupKey, Standing], fleet: SimulatedFleet
) -> Iterator[str]:
    """Groups that are wanted, possible, and do not serve. To be checked when faults have ceased for long.

    A group that is given up, as `status` shows, is not possible if the others have the memory of all its rungs: a neighbour
    that fell to a rung on its node stays there, and people's edits of a plan may need more than its nodes have, of which the
    planner would make no plan.
    """
    rungs = _rungs(wanted, standings)
    for one in wanted.values():
        for group, plan in one.planned():
            engine = fleet.engines.get(group)
            if engine is not None and engine.ready:
                continue
            others = {key: rung for key, rung in rungs.items() if key != group}
            given_up = standings.get(group, Standing()).given_up
            if not given_up or any(_has_room(rung, group, others, fleet) for rung in plan.ladder):
                yield f"{fleet.time.seconds:.1f} s: {name_of(group)} is wanted and does not serve"


def crashes_on(serve: SimulatedServe, now: float, working_since: float) -> Iterator[str]:
    """Groups whose engine comes up and dies, or fails to start at one rung, more often than the policy lets it.

    Args:
        serve: the applications, with the failures of their engines.
        now: simulated seconds.
        working_since: since when the controller works without a break, simulated seconds.
    """
    for kind, most, within in (
        ("died", DEATHS, BREAKER_S),
        ("did not start", FAILED_STARTS, FAILED_STARTS_S),
    ):
        since = max(now - within, working_since)
        late = Counter(one[2:] for one in serve.failures if one[0] >= since and one[1] == kind)
        for (group, rung), count in late.items():
            if count > most:
                yield f"{now:.1f} s: {name_of(group)} {kind} {count} times at rung {rung + 1} in {now - since:.0f} s"


def at_another_rung(
    wanted: Mapping[str, Desired], standings: Mapping[GroupKey, Standing], serve: SimulatedServe
) -> Iterator[GroupKey]:
    """Groups whose application has another rung than the stored one: it was not deployed again, or is about to be."""
    for one in wanted.values():
        for group, plan in one.planned():
            app, standing = serve.apps.get(group), standings.get(group, TOP)
            if app is None or app.status not in ("starting", "running") or standing.given_up:
                continue
            if app.order.rung != plan.rung_index(standing.rung):
                yield group


def given_up_and_runs(
    wanted: Mapping[str, Desired], standings: Mapping[GroupKey, Standing], serve: SimulatedServe
) -> Iterator[str]:
    """Groups that are given up and whose application goes on. To be checked when faults have ceased for long."""
    for one in wanted.values():
        for group in one.groups:
            app = serve.apps.get(group)
            if (
                standings.get(group, TOP).given_up
                and app is not None
                and app.status in ("starting", "running")
            ):
                yield f"{name_of(group)} is given up and its application is {app.status}"


def remembers_ended(
    wanted: Mapping[str, Desired], remembered: Collection[GroupKey], serve: SimulatedServe
) -> Iterator[str]:
    """Groups that have ended and that the store still knows. To be checked when faults have ceased for long.

    Args:
        wanted: deployments that are to run.
        remembered: groups with a position on their ladder or an unfinished start in the store.
        serve: the applications.
    """
    there = {group for one in wanted.values() for group in one.groups} | serve.apps.keys()
    for group in sorted(set(remembered) - there):
        yield f"the store still knows {name_of(group)}, which has ended"


def refused_although_free(
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    serve: SimulatedServe,
    fleet: SimulatedFleet,
) -> Iterator[str]:
    """Groups that are given up for memory which has been free for long, and that may be started again.

    To be checked when faults have ceased for long, before anybody applies anything again.
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
