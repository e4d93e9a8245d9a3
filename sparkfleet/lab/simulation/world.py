"""The world of one run: machines, Serve, the store and the controller's process. Faults and users change it."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from sparkfleet.controlplane.clocks import WallClock
from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.status import NodeReport, app_name
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.gateway.routing_table import GroupEntry
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.ranks.local_rank import DAEMON_S
from sparkfleet.group.report import GroupReport
from sparkfleet.lab.simulation.arrived_reports import ArrivedReports
from sparkfleet.lab.simulation.clients import DEMANDED, SimulatedClients
from sparkfleet.lab.simulation.entries import SimulatedEntries
from sparkfleet.lab.simulation.fleet import SimulatedEngine, SimulatedFleet
from sparkfleet.lab.simulation.gateway import SimulatedGateway
from sparkfleet.lab.simulation.plans import SHARE_GIB, SMALL_SHARE_GIB, launch
from sparkfleet.lab.simulation.published_tables import left_out, table_of
from sparkfleet.lab.simulation.serve import Outcome, SimulatedServe
from sparkfleet.lab.simulation.store_place import FLEET, StorePlace
from sparkfleet.lab.simulation.timeline import Timeline
from sparkfleet.telemetry.metrics import ControlMetrics

REGISTER_S = 5.0
"""Seconds between two reports of a gateway (`ray_serve.REGISTER_S`, in a module that imports Ray)."""
LOOKS_AGAIN_S = 5.0
"""Seconds after which a controller looks for its store again; the real one does after one."""

UserAction = Literal["apply", "again", "edit", "remove", "race", "drain", "undrain"]
"""An action of a user on a deployment or, the last two, on a node; "again": an apply without a change; "race": two users who
apply plans that they made from the same generation."""


class ControllerKilledError(BaseException):
    """The controller's process ends here; nothing of it may catch this."""


async def _nothing() -> None:
    pass


class ServeFailedError(RuntimeError):
    """A call of Serve failed. It may have done its work before."""


@dataclass
class CallTrouble:
    """Trouble of Serve's calls for now."""

    slow_s: float = 0.0
    """Most seconds that one takes."""
    fails: float = 0.0
    """Share of them that fail."""
    failing: tuple[str, ...] = ()
    """The calls of which some fail."""


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


def tool_lost(*nodes: str, began: bool) -> Diagnosis:
    """The diagnosis of a group whose container tool is away on these nodes."""
    return Diagnosis(cause=Cause.TOOL, summary="its container tool is away", began=began, nodes=nodes)


@dataclass(frozen=True)
class MemoryLook:
    """The nodes' memory and engines at one moment."""

    at: float
    free: Mapping[str, int]
    """Bytes, by node."""
    engines: Mapping[GroupKey, SimulatedEngine]
    ending: frozenset[GroupKey]
    """Groups that are being retired."""
    adopted: frozenset[GroupKey]
    """Groups whose engine an actor found running."""
    unplaced: bool
    """True if a group is about to start, or has not finished its start."""


class SimulatedNodes:
    """The nodes as the controller asks for them."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def look(self) -> tuple[NodeReport, ...]:
        """See `Nodes`."""
        fleet = self._world.fleet
        reports = tuple(map(fleet.report, fleet.nodes.values()))
        self._world.note_memory()
        await self._world.pause()
        return reports

    async def sweep(self, keep: frozenset[GroupKey], newest: Mapping[str, int]) -> tuple[str, ...]:
        """See `Nodes`."""
        await self._world.pause()
        return self._world.fleet.sweep(keep, newest)


class World:
    """Everything that exists in one run.

    Args:
        seed: of all chance.
        nodes: how many.
        root: an empty directory: the lock of the store is a real one.
    """

    def __init__(self, seed: int, nodes: int, root: Path) -> None:  # noqa: PLR0915  # what a run has
        self.chance = random.Random(seed)  # noqa: S311  # it is to be repeatable
        self.drain_chance = random.Random(f"drains {seed}")  # noqa: S311
        self.race_chance = random.Random(f"races {seed}")  # noqa: S311
        self.demand_chance = random.Random(f"demand {seed}")  # noqa: S311
        self.time = Timeline()
        self.names = tuple(f"spark{n}" for n in range(1, nodes + 1))
        self.fleet = SimulatedFleet(self.names, self.time)
        self.place = StorePlace(self.time, self.names, self.chance, root)
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
            pause=self._serve_pause,
            power_off=self.off,
        )
        self.serve.published = self._is_published
        self.controller: Controller | None = None
        self.lingering: Controller | None = None
        """The controller before, if its process still lives although Ray has started another."""
        self.caller: Controller | None = None
        """The controller whose round runs."""
        self.rounds: list[tuple[float, int]] = []
        """Rounds since the last check: when, of which process, by their order."""
        self.calls = CallTrouble()
        self.act: Callable[[], Awaitable[None]] = _nothing
        """Lets users act while a call of Serve takes its time."""
        self.has_acted = False
        """True if users did anything in this step."""
        self.dying = False
        """The controller's process ends at its next call."""
        self.is_held = False
        """True while the controller's process lives and waits for its store."""
        self.looked_at = float("-inf")
        """Moment at which this controller last looked at its nodes, simulated seconds."""
        self.loses = 0.0
        """Share of reports that are lost on their way."""
        self.bad: dict[tuple[str, int], Callable[[GroupLaunch], Outcome]] = {}
        """By deployment and rung: the result of a start, while it is not well."""
        self.people: list[tuple[UserAction, str]] = []
        """Next actions of users, with the deployment or the node."""
        self.clients: SimulatedClients | None = None
        """Clients of deployments on demand; None: there are no such deployments."""
        self.share_gib = SHARE_GIB
        self.looked: MemoryLook | None = None
        """Nodes at the controller's last look at them."""
        self.refused: list[tuple[float, GroupLaunch]] = []
        """Starts since the last check that found too little memory, and when."""
        self.report = Report(seed=seed, hours=0.0, rounds=0)
        self.changed_at = 0.0
        """Moment of the last event or user's action, simulated seconds."""
        self.ready_at: dict[GroupKey, float] = {}
        """Unix seconds of each engine's readiness by a wall clock that was never set back."""
        self.arrived = ArrivedReports()  # at this controller
        self._inbox: list[GroupReport] = []
        self._delivering = False
        self._wall = WallClock(self.time.now)
        self._table: Mapping[str, GroupEntry] = {}
        """The table that the gateways hold, as it was read last."""
        self._lock, self._lingering_lock = self.place.lock(), self.place.lock()
        self._number = 0
        """Of the controller's process that started last: the first one is 1."""
        self._lingering_number = 0

    def drained(self) -> frozenset[str]:
        """Drained nodes."""
        return frozenset(one.node for one in self.store.drains.nodes())

    # life of the controller

    def start_controller(self) -> None:
        """A new process on the head, if it is up and there is none. It waits if its store cannot be used."""
        if self.controller is not None or not self.fleet.head.up:
            return
        try:
            self._lock.take()
            store = self.place.open()
        except StoreError as error:
            self.hold(error)
            return
        self.is_held = False
        self.dying = False
        self._number += 1
        self.looked_at = float("-inf")
        self.arrived = ArrivedReports()
        head = self.fleet.head
        self.controller = Controller(
            fleet=FLEET,
            store=store,
            apps=self.serve,
            metrics=ControlMetrics(),
            address=HeadAddress(ray="", api="", gateway_host="127.0.0.1", gateway_port=8000),
            launch_of=launch,
            nodes=SimulatedNodes(self),
            entries=SimulatedEntries(),
            here=NodeReport(name=head.name, joined=True, boot=f"{head.name}-{head.boots}"),
            clocks=self.time.now,
            wall=self._wall,
            check=partial(self.place.check, store),
        )
        self.note("the controller starts")

    def hold(self, error: StoreError) -> None:
        """The controller waits for its store, and looks for it again."""
        if not self.is_held:
            # Without its path: a replay has the same log.
            self.note(f"the controller waits: its store is {error.fault}")
        self.is_held, self.controller = True, None
        self._inbox.clear()
        self.time.after(LOOKS_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        if self.is_held:
            self.start_controller()

    def end_controller(self, back_after_s: float | None) -> None:
        """The controller's process ends; Ray starts another one, unless it has lost its head (None)."""
        if self.controller is None and not self.is_held:
            return
        self.controller, self.is_held = None, False
        self._lock.release()
        self._inbox.clear()
        self.note("the controller ends")
        if back_after_s is not None:
            self.time.after(back_after_s, self.start_controller)

    def replace_controller(self, lives_s: float) -> None:
        """Ray starts another controller, and this one's process lives on for so long: it was stopped, or lost its Ray."""
        if self.controller is None or self.lingering is not None:
            return
        lingering = self.lingering = self.controller
        self._lingering_number = self._number
        self._lingering_lock, self._lock = self._lock, self.place.lock()
        self.controller = None
        self.time.after(lives_s, lambda: self.end_lingering() if self.lingering is lingering else None)
        self.note("the controller is replaced, and its process lives on")
        self.start_controller()

    def end_lingering(self) -> None:
        """The process of the controller before ends, if it still lives."""
        if self.lingering is not None:
            self.lingering = None
            self._lingering_lock.release()
            self.place.back_at = self.time.seconds
            self.note("the process of the controller before ends")

    async def round(self, controller: Controller) -> None:
        """A round of a controller's work."""
        number = self._lingering_number if controller is self.lingering else self._number
        self.caller = controller
        self.rounds.append((self.time.seconds, number))
        await controller.round()
        if controller.gateways.is_current:
            self._table = controller.gateways.snapshot().published

    def end_controller_in_round(self) -> None:
        """The controller's process ends at its next call."""
        self.dying = self.controller is not None

    def off(self, name: str, seconds: float) -> None:
        """Switch a node off for so long; with the head goes the controller, and Ray with all applications."""
        fleet = self.fleet
        if not fleet.nodes[name].up:
            return
        fleet.power_off(name)
        if name == fleet.head.name:
            self.end_lingering()
            self.end_controller(None)
            self.serve.clear()
        self.serve.notice_nodes()

        def on() -> None:
            if not fleet.nodes[name].up:
                fleet.power_on(name)
            if name == fleet.head.name:
                self.time.after(30.0, self.start_controller)

        self.time.after(seconds, on)

    def _outcome(self, launch: GroupLaunch) -> Outcome:
        bad = self.bad.get((launch.deployment, launch.rung))
        if bad is not None:
            return bad(launch)
        nodes = launch.candidate.shape.nodes
        if without_tool := tuple(node for node in nodes if self.fleet.nodes[node].without_tool):
            return Outcome(DAEMON_S, tool_lost(*without_tool, began=False))
        if any(self.fleet.free(node) < launch.needs for node in nodes):
            self.refused.append((self.time.seconds, launch))
            return Outcome(
                2.0, Diagnosis(cause=Cause.MEMORY, summary="not enough memory is free", began=False)
            )
        return Outcome(self.chance.uniform(20, 240))

    def record(self, fault: str) -> None:
        """Counts a fault and logs it for a replay of the seed."""
        self.report.faults[fault] += 1
        self.note(f"fault: {fault}")

    def note(self, line: str) -> None:
        """Logs a line for a replay of the seed."""
        self.report.log.append(f"{self.time.seconds:10.1f} {line}")

    # clients of deployments on demand

    def is_loaded(self, one: Desired) -> bool:
        """True if a deployment runs always, or on demand and has an application."""
        return not one.spec.on_demand or any(
            key[0] == one.name and app.status != "retiring" for key, app in self.serve.apps.items()
        )

    def loaded(self, wanted: Mapping[str, Desired]) -> dict[str, Desired]:
        """Loaded ones of some deployments."""
        return {name: one for name, one in wanted.items() if self.is_loaded(one)}

    def open_to_clients(self) -> None:
        """Deployments on demand may be applied from now on, and clients send requests for them."""
        self.share_gib = SMALL_SHARE_GIB
        self.clients = SimulatedClients(self.time, self.demand_chance, self._serves)
        self.serve.drains_s = self._drains_s

    def _serves(self, app: str) -> bool:
        return any(app_name(*key) == app and one.ready for key, one in self.fleet.engines.items())

    async def exchange(self) -> None:
        """Gateways get the newest table, and the controller their reports."""
        if self.clients is None:
            return
        self.clients.pass_time()
        for gateway in self.clients.gateways:
            if self.controller is not None and self.controller.gateways.is_current:
                gateway.follow(await table_of(self.controller))
            is_due = gateway.has_news or self.time.seconds - gateway.reported_at >= REGISTER_S
            if is_due and self.controller is not None:
                await self._register(gateway, self.controller)

    async def _register(self, gateway: SimulatedGateway, controller: Controller) -> None:
        report = gateway.report()
        if self.demand_chance.random() >= self.loses:
            with contextlib.suppress(sqlite3.Error):
                await controller.intake.register_gateway(report)

    async def _drains_s(self, group: GroupKey) -> float:
        """Seconds until a group's engine has ended, which finishes its requests first."""
        if self.clients is None or group[0] not in DEMANDED:
            return 0.0
        if self.caller is not None and self.caller.gateways.is_current:
            table = await table_of(self.caller)
            for gateway in self.clients.gateways:
                gateway.follow(table)
        app = app_name(*group)
        busy_until = max(gateway.busy_until(app) for gateway in self.clients.gateways)
        return max(self.demand_chance.uniform(0.0, 8.0), busy_until - self.time.seconds)

    def note_memory(self) -> None:
        """Keeps what the controller sees now, for the checks."""
        if self.clients is None:
            return
        apps = self.serve.apps
        self.looked = MemoryLook(
            at=self.time.seconds,
            free={name: self.fleet.free(name) for name in self.names},
            engines=dict(self.fleet.engines),
            ending=frozenset(key for key, app in apps.items() if app.status == "retiring"),
            adopted=frozenset(
                key for key, app in apps.items() if app.report is not None and app.report.adopted
            ),
            unplaced=any(
                app.status != "retiring"
                and (key not in self.fleet.engines or not self.fleet.engines[key].ready)
                for key, app in apps.items()
            ),
        )

    def _barred_by(self, nodes: Sequence[str]) -> str | None:
        return None if self.controller is None else self.controller.queries.bars(nodes)

    def _is_published(self, group: GroupKey) -> bool:
        """True if the gateways' table names a group as ready; the former controller's until this one has its own."""
        if self.caller is not None and self.caller.gateways.is_current:
            self._table = self.caller.gateways.snapshot().published
        entry = self._table.get(app_name(*group))
        return entry is not None and entry.ready

    async def pause(self) -> None:
        """Let what runs beside the caller happen: reports arrive, or the controller's process ends."""
        dies = self.dying and self.caller is self.controller
        if dies or self.caller not in (self.controller, self.lingering):
            raise ControllerKilledError
        if self._inbox and self.chance.random() < 0.5:
            await self.deliver()
        if self.clients is not None:
            await self.exchange()

    async def _serve_pause(self, call: str) -> None:
        """Pauses as `pause` does; calls of Serve may be slow, and fail."""
        if self.calls.slow_s:
            self.time.move_to(self.time.seconds + self.race_chance.uniform(0.0, self.calls.slow_s))
            self.changed_at = self.time.seconds
            await self.act()
        await self.pause()
        if call in self.calls.failing and self.race_chance.random() < self.calls.fails:
            raise ServeFailedError("Serve does not answer")

    async def deliver(self) -> None:
        """Let the reports that have arrived reach the controller."""
        if self.controller is None:
            self._inbox.clear()  # what is sent to an actor that is not there is lost
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._inbox and self.controller is not None:
                report, controller = self._inbox.pop(0), self.controller
                known = (await table_of(controller)).version
                with contextlib.suppress(sqlite3.Error):  # goes back to the group, which repeats it
                    await controller.intake.report(report)
                newest = controller.fleet.reports.newest(report.name)
                self.report.violations += self.arrived.take(report, newest, self.time.seconds)
                if (table := await table_of(controller)).version != known:
                    self.report.violations += left_out(table, controller, self.serve, self.time.seconds)
        finally:
            self._delivering = False

    def _send(self, report: GroupReport) -> None:
        if report.phase == "ready":
            self.ready_at.setdefault(report.group, self.time.unix() + self.time.set_back_s)
        if self.chance.random() < self.loses:
            return
        times = 2 if self.chance.random() < 0.05 else 1
        for _ in range(times):
            delay = 0.0 if self.chance.random() < 0.5 else self.chance.uniform(0, 2)
            self.time.after(delay, lambda: self._inbox.append(report))

    def _repeat(self, report: GroupReport) -> None:
        if self.chance.random() >= self.loses:
            self._inbox.append(report)
