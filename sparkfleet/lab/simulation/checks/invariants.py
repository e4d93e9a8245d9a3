"""Invariants of a simulated fleet. A violation is a sentence with the moment and the values; none is the empty list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from sparkfleet.controlplane.policy.fallback import BREAKER_FAILURES, BREAKER_S
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.event import Event
from sparkfleet.gateway.routing_table import RoutingTable
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.lab.simulation.fleet import SimulatedEngine, SimulatedFleet
from sparkfleet.lab.simulation.serve import SimulatedServe
from sparkfleet.lab.simulation.store_place import StorePlace

STALE_TABLE_S = 30.0
"""An engine that ended this long ago is in no table: a report counts for 15 s, and a controller may be away for some."""
BY_ACTION = ("deployed over", "retired", "swept", "left over")
"""Ends of engines that the controller or the next group brings about."""
NAMED_BY = ("fallback", "failed", "retire", "unwanted", "waits")
"""Kinds of events that name the reason for an engine's end."""
WEDGES = 3
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


def ended_out_of_turn(
    retired: list[tuple[float, SimulatedEngine]],
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    serve: SimulatedServe,
) -> Iterator[str]:
    """Older groups that served and were retired for a desired one that does not need their nodes, or while one was starting.

    Args:
        retired: engines of groups that were retired in one round, and when. They end when their requests have ended.
        wanted: deployments that are to run.
        standings: place of each group on its ladder.
        serve: the applications after the round.
    """
    rolled: dict[str, list[SimulatedEngine]] = {}
    for _, engine in retired:
        one = wanted.get(engine.group[0])
        is_older = one is not None and engine.group not in one.groups
        is_well = engine.ready and not engine.hurt and not standings.get(engine.group, TOP).given_up
        if one is not None and is_older and is_well:
            rolled.setdefault(one.name, []).append(engine)
    for name, engines in rolled.items():
        apps = {group: serve.apps.get(group) for group in wanted[name].groups}
        if all(app is not None and app.has_served for app in apps.values()):
            continue  # they are replaced; one of the desired ones may have died in the same round
        needs = [
            set(wanted[name].plan_of(group).rung_at(standings.get(group, TOP).rung).candidate.shape.nodes)
            for group, app in apps.items()
            if app is None
        ]
        names = " and ".join(name_of(engine.group) for engine in engines)
        if not any(all(nodes & set(engine.nodes) for engine in engines) for nodes in needs):
            yield f"{retired[0][0]:.1f} s: {names} served and ended, and no desired group that is missing needs their nodes"


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
            if app.launch.rung != plan.rung_index(standing.rung):
                yield group
