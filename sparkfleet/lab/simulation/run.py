"""Runs of the simulation: hours of random faults from a seed, then quiet, with the invariants checked after every step."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from sparkfleet.controlplane.policy.decide import is_at_rest
from sparkfleet.controlplane.policy.demand.memory_claims import missing_on_demand
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.lab.simulation.checks import invariants, node_invariants, settled_invariants
from sparkfleet.lab.simulation.checks.demand_checks import DemandChecks
from sparkfleet.lab.simulation.checks.lasting_states import LastingStates
from sparkfleet.lab.simulation.clients import DEMANDED
from sparkfleet.lab.simulation.controller_processes import ControllerKilledError
from sparkfleet.lab.simulation.demand_events import DemandEvents
from sparkfleet.lab.simulation.faults import EventIntervals, Faults
from sparkfleet.lab.simulation.published_tables import table_of
from sparkfleet.lab.simulation.run_report import RunReport
from sparkfleet.lab.simulation.users import Users
from sparkfleet.lab.simulation.world import World

HEARTBEAT_S = 5.0
LOOK_S = 2.0
STATUS_EVERY_S = 10.0
"""Seconds between two users who ask for the status."""
QUIET_S = 5400.0
"""Simulated seconds in which a fleet without faults has to come to what is wanted."""
FAULT_EVERY_S = 60.0
"""Mean time between two faults."""
DRAIN_EVERY_S = 3600.0
"""Mean time between two drained nodes."""
RACE_EVERY_S = 900.0
"""Mean time between two races: things that happen at once, and calls that take long or fail."""
DEMAND_EVERY_S = 300.0
"""Mean time between two events of deployments on demand."""


class Simulation:
    """One fleet, its controller, its users and its faults.

    Args:
        seed: of all chance.
        nodes: how many.
        every: mean times between two of each.
        root: an empty directory.
        demand_every_s: mean time between two events of deployments on demand; inf: there are none.
        small: how many of the nodes have 64 GB.
    """

    def __init__(
        self,
        seed: int,
        nodes: int,
        every: EventIntervals,
        root: Path,
        demand_every_s: float,
        *,
        small: int = 0,
    ) -> None:
        self._every = every
        self._world = World(seed, nodes, root, small)
        self._demand_every_s = demand_every_s
        self._demand: DemandEvents | None = None
        self._demand_checks = DemandChecks(self._world)
        if demand_every_s != float("inf"):
            self._world.open_to_clients()
            assert self._world.clients is not None
            self._demand = DemandEvents(self._world, self._world.clients)
        self._users = Users(self._world)
        self._world.act = self._users.act_in_a_call
        self._faults = Faults(self._world)
        self._asked_at = float("-inf")
        self._ended_at: dict[GroupKey, float] = {}
        self._since: dict[GroupKey, float] = {}
        self._at_another_rung: dict[GroupKey, tuple[float, float]] = {}
        """Groups that report and run at another rung than the stored one: since when, and when they reported last."""
        self._working_since = 0.0
        self._lasting = LastingStates(self._world)

    async def run(self, hours: float) -> RunReport:
        """Faults for so many simulated hours, then quiet."""
        world = self._world
        world.processes.start()
        self._faults.begin(self._every)
        if self._demand is not None:
            self._demand.begin(self._demand_every_s)
        await self._until(hours * 3600.0)
        self._faults.end()
        if self._demand is not None:
            self._demand.calm()
            await self._until(world.time.seconds + QUIET_S)
            self._demand.end()
        await self._settle()
        world.report.hours = world.time.seconds / 3600.0
        return world.report

    async def _until(self, seconds: float) -> None:
        while self._world.time.seconds < seconds and not self._world.report.violations:
            await self._step(seconds)

    async def _step(self, limit: float) -> None:
        world = self._world
        drained, standings = world.drained(), world.store.groups.standings()
        world.has_acted = False
        quiet_for = world.time.seconds - world.changed_at
        tick = world.time.seconds + min(30.0, max(0.5, quiet_for / 2))
        if world.time.move_to(min(limit, tick, max(world.time.seconds, world.time.next_at()))):
            world.changed_at = world.time.seconds
        world.fleet.end_unfollowed()
        world.fleet.note_away()
        world.serve.heartbeats(HEARTBEAT_S)
        try:
            await world.deliver()
            await world.exchange()
            await self._users.act()
            await self._round()
        except ControllerKilledError:
            if world.processes.dying:
                world.processes.end(world.chance.uniform(1, 20))
        await self._check()
        self._check_drained(drained, {} if world.has_acted else standings)

    async def _round(self) -> None:
        world = self._world
        if world.processes.lingering is not None:
            try:
                await world.processes.round(world.processes.lingering)
            except (ControllerKilledError, StoreError):
                world.processes.end_lingering()
        if world.controller is None:
            return
        if world.processes.dying:
            raise ControllerKilledError
        if world.time.seconds - world.processes.looked_at >= LOOK_S:
            world.processes.looked_at, world.processes.caller = world.time.seconds, world.controller
            with contextlib.suppress(sqlite3.Error):
                await world.controller.watch.look()
        try:
            await world.processes.round(world.controller)
        except StoreError as error:
            world.processes.hold(error)
        world.report.rounds += 1

    # checks

    def _check_drained(self, drained: frozenset[str], before: Mapping[GroupKey, Standing]) -> None:
        """Checks a step's starts and rungs against the nodes that were drained before it.

        Args:
            drained: those nodes.
            before: ladder positions before the step; {} if people changed what is wanted in it.
        """
        world = self._world
        wanted, standings = world.store.deployments.desired(), world.store.groups.standings()
        world.report.violations += [
            *node_invariants.begun_on_drained(world.serve.began, drained),
            *node_invariants.falls_on_drained(wanted, before, standings, drained, world.time.seconds),
        ]
        world.serve.began.clear()
        if world.controller is not None and not world.store.is_full:
            world.report.violations += node_invariants.stays_on_drained_nodes(
                wanted,
                standings,
                world.fleet,
                world.serve,
                drained=drained & world.drained(),
                working_since=self._working_since,
            )

    async def _check(self) -> None:
        """Checks everything that one step did, and forgets it."""
        world = self._world
        self._note_times()
        wanted = world.store.deployments.desired()
        found = [*invariants.forgotten(wanted, self._users.confirmed, world.time.seconds)]
        if not found:
            self._users.confirmed.update(wanted)  # equal ones: the next step compares them at once
        found += [
            *self._ended_without_reason(wanted),
            *self._ended_out_of_turn(wanted),
            *invariants.start_storms(world.serve, world.time.seconds),
            *invariants.wedged_again(world.serve, world.time.seconds),
            *invariants.crashes_on(world.serve, world.time.seconds, self._working_since),
            *(f"{at:.1f} s: {key} was retired while it was in the table" for at, key in world.serve.cut),
            *invariants.waits_for_nothing(
                world.processes.is_held and world.processes.lingering is None, world.place, world.time.seconds
            ),
            *invariants.older_acts(world.processes.rounds),
        ]
        table = await table_of(world.controller) if world.controller is not None else None
        found += self._demand_checks.broken(wanted, self._working_since, table)
        self._forget_step()
        found += self._stays_on_gone_nodes(wanted)
        found += self._stays_at_another_rung(wanted)
        found += self._lasting.broken(wanted, self._working_since)
        if world.controller is not None and world.time.seconds - self._asked_at >= STATUS_EVERY_S:
            self._asked_at = world.time.seconds
            world.controller.queries.status()
        if table is not None:
            found += invariants.not_ready_in_table(table, world.fleet, self._ended_at)
        world.report.violations += found

    def _note_times(self) -> None:
        """Notes when engines ended, and since when each group could have run."""
        world = self._world
        for at, engine, why in world.fleet.ended:
            self._ended_at[engine.group] = at
            world.report.ends[why] += 1
        for group in world.fleet.engines:
            if world.fleet.engines[group].ready:
                self._ended_at.pop(group, None)
        for one in world.store.deployments.desired().values():
            waits = node_invariants.older_serves(one, world.fleet) or not world.is_loaded(one)
            for group in one.groups:
                if waits or group not in self._since:
                    self._since[group] = world.time.seconds

    def _forget_step(self) -> None:
        """Forgets what has been checked, and what is too old to count."""
        world = self._world
        world.processes.rounds = (
            [max(world.processes.rounds, key=lambda one: one[1])] if world.processes.rounds else []
        )
        for _, engine, _ in world.fleet.ended:
            world.channel.ready_at.pop(engine.group, None)
        world.fleet.ended.clear()
        world.serve.cut.clear()
        world.serve.retired.clear()
        world.refused.clear()
        world.serve.calls = [
            one for one in world.serve.calls if world.time.seconds - one[0] < invariants.STORM_S
        ]
        late = world.time.seconds - invariants.FAILED_STARTS_S
        world.serve.failures = [one for one in world.serve.failures if one[0] >= late]

    def _stays_on_gone_nodes(self, wanted: dict[str, Desired]) -> Iterator[str]:
        """Groups that stay on gone nodes, as long as the controller works and gets every report."""
        world = self._world
        is_informed = not (world.channel.loses or world.calls.slow_s or world.calls.fails)
        if world.controller is None or world.store.is_full or not is_informed:
            self._working_since = world.time.seconds
            return
        yield from node_invariants.stays_on_gone_nodes(
            world.loaded(wanted),
            world.store.groups.standings(),
            world.fleet,
            self._since,
            self._working_since,
            drained=world.drained(),
        )

    def _stays_at_another_rung(self, wanted: dict[str, Desired]) -> Iterator[str]:
        """Groups that have run for long at another rung than the stored one, while the controller works. To be called after
        `_stays_on_gone_nodes`, which notes since when."""
        world, now = self._world, self._world.time.seconds
        before, self._at_another_rung = self._at_another_rung, {}
        for group in invariants.at_another_rung(wanted, world.store.groups.standings(), world.serve):
            since, seen = before.get(group, (now, float("-inf")))
            reports = world.serve.apps[group].report is not None
            if not reports and now - seen > invariants.REPORT_GAP_S:
                continue
            if now - seen > invariants.REPORT_GAP_S:
                since = now
            self._at_another_rung[group] = since, now if reports else seen
            if reports and now - max(since, self._working_since) > invariants.RUNG_KEPT_S:
                yield f"{now:.1f} s: {name_of(group)} has run at another rung than the stored one for {now - since:.0f} s"

    def _ended_out_of_turn(self, wanted: dict[str, Desired]) -> Iterator[str]:
        """Older groups that were retired too early; not while calls are slow, in which people change what is wanted."""
        world = self._world
        retired = world.serve.retired
        if not retired or world.calls.slow_s:
            return
        controller = world.controller
        unloaded = DEMANDED if controller is None else controller.fleet.pending.unloaded
        rolled = {name: one for name, one in world.loaded(wanted).items() if name not in unloaded}
        standings = world.store.groups.standings()
        yield from invariants.ended_out_of_turn(retired, rolled, standings, world.serve)

    def _ended_without_reason(self, wanted: dict[str, Desired]) -> Iterator[str]:
        world = self._world
        if world.fleet.ended:
            ready_at = {group: at - world.time.set_back_s for group, at in world.channel.ready_at.items()}
            yield from invariants.ended_without_reason(
                world.fleet.ended, world.loaded(wanted), lambda: world.store.events.read(limit=400), ready_at
            )

    async def _settle(self) -> None:
        """Without faults and drained nodes everything wanted runs, at the latest once it is applied again; nothing else."""
        world = self._world
        for node in world.drained():
            world.store.drains.undrain(node)
        await self._until(world.time.seconds + QUIET_S)
        wanted, standings = world.store.deployments.desired(), world.store.groups.standings()
        loaded = world.loaded(wanted)
        world.report.violations += [
            *settled_invariants.refused_although_free(loaded, standings, world.serve, world.fleet),
            *settled_invariants.served_and_stays_away(
                loaded, standings, world.serve, world.fleet, world.store.deployments.last_served
            ),
            *settled_invariants.remembers_ended(
                wanted, [*standings, *world.store.groups.starts()], world.serve, world.time.unix()
            ),
        ]
        for name in self._failed():
            await self._users.apply(name, "again")
        await self._until(world.time.seconds + QUIET_S)
        if world.report.violations:
            return
        wanted = world.store.deployments.desired()
        world.report.violations += [
            *settled_invariants.everything_wanted(
                world.loaded(wanted), world.store.groups.standings(), world.fleet
            ),
            *settled_invariants.nothing_unwanted(
                wanted, world.store.groups.standings(), world.serve, world.fleet
            ),
            *self._never_rests(),
        ]

    def _never_rests(self) -> Iterator[str]:
        """A fleet with deployments on demand that does a whole round at each tick although nothing happens."""
        world = self._world
        if world.clients is None or world.controller is None or self._failed():
            return
        state = world.controller.fleet.state()
        if not is_at_rest(state) and not missing_on_demand(state):
            yield (
                f"{world.time.seconds:.1f} s: the fleet does not rest: starts {sorted(state.starts)},"
                f" demand {sorted(state.demand.items())}"
            )

    def _failed(self) -> list[str]:
        """Deployments with a group that is given up, of which `status` names the reason."""
        if self._world.controller is None:
            return []
        return [
            one.name
            for one in self._world.controller.queries.status().deployments
            if one.state == "failed" and one.detail
        ]


def simulate(
    seed: int,
    hours: float,
    nodes: int = 3,
    fault_every_s: float = FAULT_EVERY_S,
    *,
    drain_every_s: float = DRAIN_EVERY_S,
    race_every_s: float = RACE_EVERY_S,
    demand_every_s: float = float("inf"),
    head_every_s: float = float("inf"),
    small: int = 0,
) -> RunReport:
    """One run from a seed.

    Args:
        seed: of all chance: the same seed gives the same run.
        hours: simulated hours with faults; up to three more without.
        nodes: how many Sparks.
        fault_every_s: mean time between two faults, simulated seconds.
        drain_every_s: mean time between two drained nodes; inf for none. They have a chance of their own, so that a seed
            without them gives the run that it gave before there were any.
        race_every_s: mean time between two races, which have a chance of their own, too; inf for none.
        demand_every_s: mean time between two events of deployments on demand, such as requests; inf: there are none, so that
            a seed gives the run that it gave before there were any.
        head_every_s: mean time between two losses of the head, which have a chance of their own; inf for none.
        small: how many of the nodes, the last ones, have 64 GB.
    """
    logging.disable(logging.CRITICAL)  # injected failures are logged with tracebacks
    try:
        every = EventIntervals(fault_every_s, drain_every_s, race_every_s, head_every_s)
        with TemporaryDirectory() as root:
            return asyncio.run(
                Simulation(seed, nodes, every, Path(root), demand_every_s, small=small).run(hours)
            )
    finally:
        logging.disable(logging.NOTSET)
