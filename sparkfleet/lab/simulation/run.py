"""Runs of the simulation: hours of random faults from a seed, then quiet, with the invariants checked after every step."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.desired import Desired, GroupKey, Standing
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.controlplane.wall_clock import WallClock
from sparkfleet.errors import ControlError
from sparkfleet.group.launch_plan import GroupLaunch
from sparkfleet.group.report import GroupReport
from sparkfleet.lab.simulation import invariants
from sparkfleet.lab.simulation.faults import Faults
from sparkfleet.lab.simulation.fleet import SimulatedFleet
from sparkfleet.lab.simulation.plans import edited, launches, random_plan
from sparkfleet.lab.simulation.serve import Outcome, SimulatedServe
from sparkfleet.lab.simulation.store_place import FLEET, StorePlace
from sparkfleet.lab.simulation.timeline import Timeline
from sparkfleet.telemetry.metrics import ControlMetrics

HEARTBEAT_S = 5.0
LOOK_S = 2.0
STATUS_EVERY_S = 10.0
"""Seconds between two users who ask for the status."""
LOOKS_AGAIN_S = 5.0
"""Seconds after which a controller looks for its store again; the real one does after one."""
MOVES = 0.7
"""Share of the deployments of a drained node that the command moves before something ends it."""
QUIET_S = 5400.0
"""Simulated seconds in which a fleet without faults has to come to what is wanted."""
FAULT_EVERY_S = 60.0
"""Mean time between two faults."""
DRAIN_EVERY_S = 3600.0
"""Mean time between two drained nodes."""


class ControllerKilledError(BaseException):
    """The controller's process ends here; nothing of it may catch this."""


@dataclass
class Report:
    """Result of one run."""

    seed: int
    hours: float
    rounds: int
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


class SimulatedNodes:
    """The nodes as the controller asks for them."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    async def look(self) -> tuple[NodeReport, ...]:
        """See `Nodes`."""
        fleet = self._simulation.fleet
        reports = tuple(map(fleet.report, fleet.nodes.values()))
        await self._simulation.pause()
        return reports

    async def sweep(self, keep: frozenset[GroupKey]) -> tuple[str, ...]:
        """See `Nodes`."""
        await self._simulation.pause()
        return self._simulation.fleet.sweep(keep)


class Simulation:
    """One fleet, its controller, its users and its faults.

    Args:
        seed: of all chance.
        nodes: how many.
        fault_every_s: mean time between two faults.
        drain_every_s: mean time between two drained nodes; inf for none.
    """

    def __init__(
        self,
        seed: int,
        nodes: int = 3,
        fault_every_s: float = FAULT_EVERY_S,
        drain_every_s: float = DRAIN_EVERY_S,
    ) -> None:
        self._drain_every_s = drain_every_s
        self._fault_every_s = fault_every_s
        self.chance = random.Random(seed)  # noqa: S311  # it is to be repeatable
        self.drain_chance = random.Random(f"drains {seed}")  # noqa: S311
        self.time = Timeline()
        self.names = tuple(f"spark{n}" for n in range(1, nodes + 1))
        self.fleet = SimulatedFleet(self.names, self.time)
        self.place = StorePlace(self.time, self.names, self.chance)
        self.store = self.place.right
        """Everything that was applied, whatever is in its place."""
        self.serve = SimulatedServe(
            self.fleet,
            self.time,
            self.chance,
            outcome_of=self._outcome,
            send=self._send,
            repeat=self._repeat,
            barred=self._barred_by,
            pause=self.pause,
            power_off=self._off,
        )
        self.controller: Controller | None = None
        self.dying = False
        """The controller's process ends at its next call."""
        self.loses = 0.0
        """Share of reports that are lost on their way."""
        self.people: list[tuple[str, str]] = []
        """Next actions of users: ("apply" | "again" | "edit" | "remove", deployment)."""
        self.faults = Faults(self)
        self.report = Report(seed=seed, hours=0.0, rounds=0)
        self._inbox: list[GroupReport] = []
        self._delivering = False
        self._wall = WallClock(self.time.now)
        self._held = False
        """True while the controller's process lives and waits for its store."""
        self._ready_at: dict[GroupKey, float] = {}
        """Unix seconds of each engine's readiness by a wall clock that was never set back."""
        self._ended_at: dict[GroupKey, float] = {}
        self._looked_at = self._asked_at = float("-inf")
        self._changed_at = 0.0
        self._since: dict[GroupKey, float] = {}
        self._working_since = 0.0

    # life of the controller

    def start_controller(self) -> None:
        """A new process on the head, if it is up and there is none. It waits if its store cannot be used."""
        if self.controller is not None or not self.fleet.head.up:
            return
        try:
            store = self.place.open()
        except StoreError as error:
            self._hold(error)
            return
        self._held = False
        self.dying = False
        self._looked_at = float("-inf")
        head = self.fleet.head
        self.controller = Controller(
            fleet=FLEET,
            store=store,
            apps=self.serve,
            metrics=ControlMetrics(),
            address=HeadAddress(ray="", api="", gateway_host="127.0.0.1", gateway_port=8000),
            launches_of=launches,
            nodes=SimulatedNodes(self),
            here=NodeReport(name=head.name, joined=True, boot=f"{head.name}-{head.boots}"),
            clocks=self.time.now,
            wall=self._wall,
            check=partial(self.place.check, store),
        )
        self.note("the controller starts")

    def _hold(self, error: StoreError) -> None:
        """The controller waits for its store, and looks for it again."""
        if not self._held:
            self.note(f"the controller waits: {error.what}")
        self._held, self.controller = True, None
        self._inbox.clear()
        self.time.after(LOOKS_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        if self._held:
            self.start_controller()

    def end_controller(self, back_after_s: float | None) -> None:
        """The controller's process ends; Ray starts another one, unless it has lost its head (None)."""
        if self.controller is None and not self._held:
            return
        self.controller, self._held = None, False
        self._inbox.clear()
        self.note("the controller ends")
        if back_after_s is not None:
            self.time.after(back_after_s, self.start_controller)

    def end_controller_in_round(self) -> None:
        """The controller's process ends at its next call."""
        self.dying = self.controller is not None

    def set_disk_full(self, full: bool) -> None:
        """Let the head's disk be full, or not."""
        self.store.set_full(full)

    def record(self, fault: str) -> None:
        """Counts a fault and logs it for a replay of the seed."""
        self.report.faults[fault] += 1
        self.note(f"fault: {fault}")

    def _barred_by(self, nodes: Sequence[str]) -> str | None:
        return None if self.controller is None else self.controller.queries.bars(nodes)

    async def pause(self) -> None:
        """Let what runs beside the caller happen: reports arrive, or the controller's process ends."""
        if self.dying:
            raise ControllerKilledError
        if self._inbox and self.chance.random() < 0.5:
            await self._deliver()

    # a step

    async def run(self, hours: float) -> Report:
        """Faults for so many simulated hours, then quiet."""
        self.start_controller()
        self.faults.begin(self._fault_every_s, self._drain_every_s)
        await self._until(hours * 3600.0)
        self.faults.end()
        await self._settle()
        self.report.hours = self.time.seconds / 3600.0
        return self.report

    async def _until(self, seconds: float) -> None:
        while self.time.seconds < seconds and not self.report.violations:
            await self._step(seconds)

    async def _step(self, limit: float) -> None:
        drained, standings = self._drained(), self.store.groups.standings()
        people = False
        quiet_for = self.time.seconds - self._changed_at
        tick = self.time.seconds + min(30.0, max(0.5, quiet_for / 2))
        if self.time.move_to(min(limit, tick, max(self.time.seconds, self.time.next_at()))):
            self._changed_at = self.time.seconds
        self.fleet.end_unfollowed()
        self.fleet.note_away()
        self.serve.heartbeats(HEARTBEAT_S)
        try:
            await self._deliver()
            people = bool(self.people)
            await self._act()
            await self._round()
        except ControllerKilledError:
            self.end_controller(self.chance.uniform(1, 20))
        await self._check()
        self._check_drained(drained, {} if people else standings)

    async def _act(self) -> None:
        while self.people:
            what, name = self.people.pop(0)
            if what == "remove":
                await self.remove(name)
            elif what == "drain":
                await self.drain(name)
            elif what == "undrain":
                await self.undrain(name)
            else:
                await self.apply(name, what)

    async def _round(self) -> None:
        if self.controller is None:
            return
        if self.dying:
            raise ControllerKilledError
        if self.time.seconds - self._looked_at >= LOOK_S:
            self._looked_at = self.time.seconds
            with contextlib.suppress(sqlite3.Error):
                await self.controller.watch.look()
        try:
            await self.controller.round()
        except StoreError as error:
            self._hold(error)
        self.report.rounds += 1

    async def _deliver(self) -> None:
        if self.controller is None:
            self._inbox.clear()  # what is sent to an actor that is not there is lost
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._inbox and self.controller is not None:
                report = self._inbox.pop(0)
                with contextlib.suppress(sqlite3.Error):  # goes back to the group, which repeats it
                    await self.controller.intake.report(report)
        finally:
            self._delivering = False

    def _send(self, report: GroupReport) -> None:
        if report.phase == "ready":
            self._ready_at.setdefault(report.group, self.time.unix() + self.time.set_back_s)
        if self.chance.random() < self.loses:
            return
        times = 2 if self.chance.random() < 0.05 else 1
        for _ in range(times):
            delay = 0.0 if self.chance.random() < 0.5 else self.chance.uniform(0, 2)
            self.time.after(delay, lambda: self._inbox.append(report))

    def _repeat(self, report: GroupReport) -> None:
        if self.chance.random() >= self.loses:
            self._inbox.append(report)

    def _off(self, name: str, seconds: float) -> None:
        self.faults.off(name, seconds)

    def _outcome(self, launch: GroupLaunch) -> Outcome:
        return self.faults.outcome(launch)

    # users

    async def apply(self, name: str, what: str = "apply") -> None:
        """Applies a deployment for a user: a new one, an unchanged one ("again"), or a changed one ("edit")."""
        if self.controller is None:
            return
        self.place.keep_older()
        there = self.store.deployments.desired().get(name)
        drained = self._drained()
        spec, plan = random_plan(name, [one for one in self.names if one not in drained], self.chance)
        if there is not None and what == "again":
            spec, plan = there.spec, there.plan
        if there is not None and what == "edit":
            spec, plan = edited(there, self.store.deployments.history(name), (spec, plan), self.chance)
        with contextlib.suppress(sqlite3.Error):
            desired, changed = await self.controller.commands.put(
                spec, plan, "somebody", retry=what == "again"
            )
            self.note(f"{name} {what}: generation {desired.generation}, changed: {changed}, {desired.groups}")
        self._changed_at = self.time.seconds

    async def remove(self, name: str) -> None:
        """Somebody deletes a deployment."""
        if self.controller is not None:
            with contextlib.suppress(ControlError, sqlite3.Error):
                await self.controller.commands.remove(name, "somebody")
                self.note(f"{name} removed")

    async def drain(self, node: str) -> None:
        """Somebody drains a node; what is planned on it moves, unless the command ends before."""
        if self.controller is None or not set(self.names) - self._drained() - {node}:
            return
        with contextlib.suppress(sqlite3.Error):
            await self.controller.commands.drain(node, "somebody")
            self.note(f"{node} drained")
            for one in self.store.deployments.desired().values():
                moves = any(node in group.choice.candidate.shape.nodes for group in one.plan.groups)
                if moves and self.drain_chance.random() < MOVES:
                    await self.apply(one.name)
        self._changed_at = self.time.seconds

    async def undrain(self, node: str) -> None:
        """Somebody lets a drained node be used again."""
        if self.controller is not None:
            with contextlib.suppress(ControlError, sqlite3.Error):
                await self.controller.commands.undrain(node, "somebody")
                self.note(f"{node} undrained")
            self._changed_at = self.time.seconds

    def _drained(self) -> frozenset[str]:
        return frozenset(one.node for one in self.store.drains.nodes())

    # checks

    def _check_drained(self, drained: frozenset[str], before: Mapping[GroupKey, Standing]) -> None:
        """Checks a step's starts and rungs against the nodes that were drained before it.

        Args:
            drained: those nodes.
            before: ladder positions before the step; {} if people changed what is wanted in it.
        """
        wanted, standings = self.store.deployments.desired(), self.store.groups.standings()
        self.report.violations += [
            *invariants.begun_on_drained(self.serve.began, drained),
            *invariants.falls_on_drained(wanted, before, standings, drained, self.time.seconds),
        ]
        self.serve.began.clear()
        if self.controller is not None and not self.store.is_full:
            self.report.violations += invariants.stays_on_drained_nodes(
                wanted,
                standings,
                self.fleet,
                self.serve,
                drained=drained & self._drained(),
                working_since=self._working_since,
            )

    async def _check(self) -> None:
        for at, engine, why in self.fleet.ended:
            self._ended_at[engine.group] = at
            self.report.ends[why] += 1
        for group in self.fleet.engines:
            if self.fleet.engines[group].ready:
                self._ended_at.pop(group, None)
        wanted = self.store.deployments.desired()
        for one in wanted.values():
            waits = invariants.older_serves(one, self.fleet)
            for group in one.groups:
                if waits or group not in self._since:
                    self._since[group] = self.time.seconds
        found = [
            *self._ended_without_reason(wanted),
            *invariants.start_storms(self.serve, self.time.seconds),
            *invariants.wedged_again(self.serve, self.time.seconds),
            *invariants.waits_for_nothing(self._held, self.place, self.time.seconds),
        ]
        for _, engine, _ in self.fleet.ended:
            self._ready_at.pop(engine.group, None)
        self.fleet.ended.clear()
        self.serve.calls = [
            one for one in self.serve.calls if self.time.seconds - one[0] < invariants.STORM_S
        ]
        if self.controller is None or self.store.is_full:
            self._working_since = self.time.seconds
        else:
            found += invariants.stays_on_gone_nodes(
                wanted,
                self.store.groups.standings(),
                self.fleet,
                self._since,
                self._working_since,
                drained=self._drained(),
            )
        if self.controller is not None:
            if self.time.seconds - self._asked_at >= STATUS_EVERY_S:
                self._asked_at = self.time.seconds
                self.controller.queries.status()
            table = await self.controller.gateways.table(known=-1, wait_s=0.0)
            found += invariants.not_ready_in_table(table, self.fleet, self._ended_at)
        self.report.violations += found

    def _ended_without_reason(self, wanted: dict[str, Desired]) -> Iterator[str]:
        if self.fleet.ended:
            events = self.store.events.read(limit=400)
            ready_at = {group: at - self.time.set_back_s for group, at in self._ready_at.items()}
            yield from invariants.ended_without_reason(self.fleet.ended, wanted, events, ready_at)

    async def _settle(self) -> None:
        """Without faults and drained nodes everything wanted runs, at the latest once it is applied again; nothing else."""
        for node in self._drained():
            self.store.drains.undrain(node)
        await self._until(self.time.seconds + QUIET_S)
        for name in self._failed():
            await self.apply(name, "again")
        await self._until(self.time.seconds + QUIET_S)
        if self.report.violations:
            return
        wanted = self.store.deployments.desired()
        self.report.violations += [
            *invariants.everything_wanted(wanted, self.store.groups.standings(), self.fleet),
            *invariants.nothing_unwanted(wanted, self.store.groups.standings(), self.serve, self.fleet),
        ]

    def _failed(self) -> list[str]:
        """Deployments with a group that is given up, of which `status` names the reason."""
        if self.controller is None:
            return []
        return [
            one.name
            for one in self.controller.queries.status().deployments
            if one.state == "failed" and one.detail
        ]

    def note(self, line: str) -> None:
        """Logs a line for a replay of the seed."""
        self.report.log.append(f"{self.time.seconds:10.1f} {line}")


def simulate(
    seed: int,
    hours: float = 3.0,
    nodes: int = 3,
    fault_every_s: float = FAULT_EVERY_S,
    drain_every_s: float = DRAIN_EVERY_S,
) -> Report:
    """One run from a seed.

    Args:
        seed: of all chance: the same seed gives the same run.
        hours: simulated hours with faults; up to three more without.
        nodes: how many Sparks.
        fault_every_s: mean time between two faults, simulated seconds.
        drain_every_s: mean time between two drained nodes; inf for none. They have a chance of their own, so that a seed
            without them gives the run that it gave before there were any.
    """
    logging.disable(logging.CRITICAL)  # injected failures are logged with tracebacks
    try:
        return asyncio.run(Simulation(seed, nodes, fault_every_s, drain_every_s).run(hours))
    finally:
        logging.disable(logging.NOTSET)
