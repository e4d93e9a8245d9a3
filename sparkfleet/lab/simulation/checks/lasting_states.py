"""Invariants of what may not last while the controller works: a group that is not wanted, a start that cannot go on or
that nobody could count, a wait without a reason, memory that runs out again and again.

Each is wrong only if it lasts, so that one step does not show it; and a later fault may end it, so that the end of the run
does not show it either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from sparkfleet.controlplane.policy.fallback import STARVED, STARVED_S
from sparkfleet.controlplane.policy.ladder import rung_with_less
from sparkfleet.controlplane.policy.state import Pending
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.group.report import GroupPhase
from sparkfleet.lab.simulation.application import SimulatedApp
from sparkfleet.lab.simulation.checks.invariants import TOP
from sparkfleet.lab.simulation.fleet import SimulatedNode
from sparkfleet.lab.simulation.world import World

ENDED_S = 120.0
"""Seconds after which a group of a deleted deployment, or one that is given up, is retired: until then the gateways may have
to get a table."""
BARRED_S = 60.0
"""Seconds after which the store knows no start of a group any more that waits for a drained node."""
BOOTS_S = 20.0
"""Seconds after which a start has the boot ids of nodes that report them."""
UNEXPLAINED_S = 180.0
"""Seconds after which a group starts, or the reason for its wait is known: its nodes may have to report first."""
STARVES_S = 10.0
"""Seconds after which a group whose memory ran out takes a rung that needs less: a report takes two at most."""

Starts = Mapping[GroupKey, Mapping[str, str]]
"""Unfinished starts of the store: for each group the boot id of each node, "" if it is not known."""
Apps = Mapping[GroupKey, SimulatedApp]


class LastingState(NamedTuple):
    """A state of a group that may not last."""

    group: GroupKey
    words: str
    limit_s: float


class LastingStates:
    """The time that each of them has lasted, over one run.

    Args:
        world: of the run.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._since: dict[LastingState, float] = {}
        self._wall_offset = 0.0
        self._changed_at = 0.0
        """Moment at which people changed something, or the clock jumped, simulated seconds."""

    def broken(self, wanted: Mapping[str, Desired], working_since: float) -> Iterator[str]:
        """Violations: states that have lasted too long.

        Args:
            wanted: deployments that are to run.
            working_since: since when the controller works without a break, simulated seconds.
        """
        world, now = self._world, self._world.time.seconds
        if world.has_acted or world.time.wall_offset != self._wall_offset:
            self._wall_offset, self._changed_at = world.time.wall_offset, now
        found = self._found(wanted, max(working_since, self._changed_at, now - STARVED_S))
        yield from self.too_long(found, now, working_since)

    def too_long(self, found: Iterable[LastingState], now: float, working_since: float) -> Iterator[str]:
        """States after a step that have lasted too long."""
        self._since = {one: self._since.get(one, now) for one in found}
        for one, since in self._since.items():
            lasted_s = now - max(since, working_since)
            if lasted_s > one.limit_s:
                yield f"{now:.1f} s: {name_of(one.group)} {one.words}, for {lasted_s:.0f} s"

    def _found(self, wanted: Mapping[str, Desired], starved_since: float) -> Iterator[LastingState]:
        world = self._world
        apps, nodes, store = world.serve.apps, world.fleet.nodes, world.store.groups
        starts, standings = store.starts(), store.standings()
        yield from unwanted(wanted, apps)
        yield from given_up_and_runs(wanted, standings, apps)
        yield from barred_starts(starts, apps, nodes)
        yield from unknown_boots(starts, nodes)
        absent = world.drained() | {one.name for one in nodes.values() if not one.joined}
        yield from starving(wanted, standings, apps, absent, starved_since)
        if world.controller is not None:
            pending = world.controller.fleet.pending
            yield from unexplained_waits(wanted, standings, apps, pending)


def unwanted(wanted: Mapping[str, Desired], apps: Apps) -> Iterator[LastingState]:
    """Groups that run although their deployment was deleted."""
    for group, app in apps.items():
        if group[0] not in wanted and app.status != "retiring":
            yield LastingState(group, "runs without a deployment", ENDED_S)


def given_up_and_runs(
    wanted: Mapping[str, Desired], standings: Mapping[GroupKey, Standing], apps: Apps
) -> Iterator[LastingState]:
    """Groups that are given up and whose application goes on.

    Args:
        wanted: deployments that are to run.
        standings: place of each group on its ladder.
        apps: the applications.
    """
    for one in wanted.values():
        for group in one.groups:
            app = apps.get(group)
            is_up = app is not None and app.status in ("starting", "running")
            if is_up and standings.get(group, TOP).given_up:
                yield LastingState(group, "is given up and its application goes on", ENDED_S)


def barred_starts(starts: Starts, apps: Apps, nodes: Mapping[str, SimulatedNode]) -> Iterator[LastingState]:
    """Unfinished starts of groups that wait for a drained node: it is switched off in this time, by no fault of the start.

    Args:
        starts: those of the store.
        apps: the applications.
        nodes: one that does not answer may have gone down with the start.
    """
    for group, begun in starts.items():
        app = apps.get(group)
        if app is None or app.phase is not GroupPhase.BARRED or app.status == "retiring":
            continue
        if all(_reports(nodes[name]) for name in begun):
            yield LastingState(group, "waits for a drained node, and the store has its start", BARRED_S)


def unknown_boots(starts: Starts, nodes: Mapping[str, SimulatedNode]) -> Iterator[LastingState]:
    """Unfinished starts without the boot id of a node that reports it: nobody would know if they took it down."""
    for group, begun in starts.items():
        if unknown := sorted(name for name, boot in begun.items() if not boot and _reports(nodes[name])):
            yield LastingState(group, f"starts without the boot of {' and '.join(unknown)}", BOOTS_S)


def _reports(node: SimulatedNode) -> bool:
    return node.joined and not node.slow_report


def starving(
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    apps: Apps,
    absent: Collection[str],
    since: float,
) -> Iterator[LastingState]:
    """Groups that start again at a rung at which their memory ran out too often, although one below needs less.

    Args:
        wanted: deployments that are to run.
        standings: place of each group on its ladder.
        apps: the applications.
        absent: nodes that are away or drained.
        since: moment from which on each such end has counted, simulated seconds.
    """
    for one in wanted.values():
        for group, plan in one.planned():
            app, standing = apps.get(group), standings.get(group, TOP)
            if app is None or app.status != "starting" or standing.given_up:
                continue
            times = sum(at >= since for at in app.starved)
            if times > STARVED and rung_with_less(plan, standing.rung, absent) is not None:
                words = f"starts again at rung {standing.rung + 1}, at which its memory ran out {times} times"
                yield LastingState(group, words, STARVES_S)


def unexplained_waits(
    wanted: Mapping[str, Desired],
    standings: Mapping[GroupKey, Standing],
    apps: Apps,
    pending: Pending,
) -> Iterator[LastingState]:
    """Groups that have not begun to start although nothing else of their deployment starts or ends, without a reason for
    people.

    Args:
        wanted: deployments that are to run. Those on demand wait for requests.
        standings: place of each group on its ladder.
        apps: the applications.
        pending: the controller's memory, with the reasons.
    """
    for one in wanted.values():
        is_explained = (
            one.spec.on_demand
            or f"{one.name}/g{one.generation}" in pending.recorded
            or any(group in pending.waiting for group in one.groups)
            or any(standings.get(group, TOP).given_up for group in one.groups)
        )
        # Also the end of an older group: with requests in flight it takes minutes, and the next one waits for its memory.
        is_under_way = any(key[0] == one.name and app.status != "running" for key, app in apps.items())
        if is_explained or is_under_way:
            continue
        for group in one.groups:
            if group not in apps:
                yield LastingState(group, "does not start, and no reason is recorded", UNEXPLAINED_S)
