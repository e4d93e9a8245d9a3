"""The world of one run: machines, Serve, the store and the controller's process. Faults and users change it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.nodes import CopyContent, SweepList
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.ranks.local_rank import DAEMON_S
from sparkfleet.lab.simulation.application import Outcome
from sparkfleet.lab.simulation.clients import SimulatedClients
from sparkfleet.lab.simulation.controller_processes import ControllerProcesses
from sparkfleet.lab.simulation.fleet import SimulatedFleet
from sparkfleet.lab.simulation.gateway_exchange import GatewayExchange
from sparkfleet.lab.simulation.memory_look import MemoryLook, memory_look
from sparkfleet.lab.simulation.plans import SHARE_GIB, SMALL_SHARE_GIB
from sparkfleet.lab.simulation.report_channel import ReportChannel
from sparkfleet.lab.simulation.run_report import RunReport
from sparkfleet.lab.simulation.serve import SimulatedServe
from sparkfleet.lab.simulation.store_place import StorePlace
from sparkfleet.lab.simulation.timeline import Timeline

UserAction = Literal["apply", "again", "edit", "break", "remove", "race", "drain", "undrain"]
"""An action of a user on a deployment or, the last two, on a node; "again": an apply without a change; "break": an edit
whose groups do not start; "race": two users who apply plans that they made from the same generation."""


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


def tool_lost(*nodes: str, began: bool) -> Diagnosis:
    """The diagnosis of a group whose container tool is away on these nodes."""
    return Diagnosis(cause=Cause.TOOL, summary="its container tool is away", began=began, nodes=nodes)


class SimulatedNodes:
    """The nodes as the controller asks for them."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def look(self, names: Collection[str] | None = None) -> tuple[NodeReport, ...]:
        """See `Nodes`."""
        fleet = self._world.fleet
        looked = [node for name, node in fleet.nodes.items() if names is None or name in names]
        reports = tuple(map(fleet.report, looked))
        self._world.note_memory()
        await self._world.pause()
        return reports

    async def sweep(self, names: Collection[str], listed: Callable[[], SweepList]) -> tuple[str, ...]:
        """See `Nodes`."""
        await self._world.pause()
        keep, newest, _ = listed()
        return self._world.fleet.sweep(names, keep, newest)

    async def keep_copy(self, names: Collection[str], copy: CopyContent) -> dict[str, str]:
        """See `Nodes`. Its nodes have no disks: a run does not send copies."""
        await self._world.pause()
        return dict.fromkeys(names, "a simulated node has no disk")


class World:
    """Everything that exists in one run.

    Args:
        seed: of all chance.
        nodes: how many.
        root: an empty directory: the lock of the store is a real one.
        small: how many of the nodes, the last ones, have 64 GB.
    """

    def __init__(self, seed: int, nodes: int, root: Path, small: int = 0) -> None:
        self.chance = random.Random(seed)  # noqa: S311  # it is to be repeatable
        self.drain_chance = random.Random(f"drains {seed}")  # noqa: S311
        self.race_chance = random.Random(f"races {seed}")  # noqa: S311
        self.demand_chance = random.Random(f"demand {seed}")  # noqa: S311
        self.head_chance = random.Random(f"heads {seed}")  # noqa: S311
        self.answer_chance = random.Random(f"answers {seed}")  # noqa: S311
        self.report = RunReport(seed=seed, hours=0.0, rounds=0)
        self.time = Timeline()
        self.names = tuple(f"spark{n}" for n in range(1, nodes + 1))
        self.fleet = SimulatedFleet(self.names, self.time, self.names[nodes - small :])
        self.place = StorePlace(self.time, self.names, self.chance, root)
        self.store = self.place.right
        """Everything that was applied, whatever is in its place."""
        self.channel = ReportChannel(self.time, self.chance, self.report.violations)
        self.serve = self._made_serve()
        self.processes = ControllerProcesses(
            self.fleet,
            self.place,
            serve=self.serve,
            nodes=SimulatedNodes(self),
            note=self.note,
            on_new=self.channel.begin,
            on_lost=self.channel.clear,
        )
        self.serve.published = self.processes.is_published
        self.gateways: GatewayExchange | None = None
        """Clients of deployments on demand with their gateways; None: there are no such deployments."""
        self.calls = CallTrouble()
        self.act: Callable[[], Awaitable[None]] = _nothing
        """Lets users act while a call of Serve takes its time."""
        self.people: list[tuple[UserAction, str]] = []
        """Next actions of users, with the deployment or the node."""
        self.has_acted = False
        """True if users did anything in this step."""
        self.changed_at = 0.0
        """Moment of the last event or user's action, simulated seconds."""
        self.bad: dict[tuple[str, int], Callable[[GroupLaunch], Outcome]] = {}
        """By deployment and rung: the result of a start, while it is not well."""
        self.broken: dict[tuple[str, int], Outcome] = {}
        """By deployment and generation: the result of each start of a group that an edit has added."""
        self.refused: list[tuple[float, GroupLaunch]] = []
        """Starts since the last check that found too little memory, and when."""
        self.looked: MemoryLook | None = None
        """Nodes at the controller's last look at them."""
        self.share_gib = SHARE_GIB

    def _made_serve(self) -> SimulatedServe:
        return SimulatedServe(
            self.fleet,
            self.time,
            self.chance,
            outcome_of=self._outcome,
            send=self.channel.send,
            repeat=self.channel.repeat,
            barred=self._barred_by,
            pause=self._serve_pause,
            power_off=self.off,
        )

    @property
    def controller(self) -> Controller | None:
        """The controller that works; None while its process is away or waits for its store."""
        return self.processes.controller

    @property
    def clients(self) -> SimulatedClients | None:
        """Clients of deployments on demand; None: there are no such deployments."""
        return self.gateways.clients if self.gateways is not None else None

    # state

    def drained(self) -> frozenset[str]:
        """Drained nodes."""
        return frozenset(one.node for one in self.store.drains.nodes())

    def is_loaded(self, one: Desired) -> bool:
        """True if a deployment runs always, or on demand and has an application."""
        return not one.spec.on_demand or any(
            key[0] == one.name and app.status != "retiring" for key, app in self.serve.apps.items()
        )

    def loaded(self, wanted: Mapping[str, Desired]) -> dict[str, Desired]:
        """Loaded ones of some deployments."""
        return {name: one for name, one in wanted.items() if self.is_loaded(one)}

    # machines

    def off(self, name: str, seconds: float) -> None:
        """Switch a node off for so long; with the head goes the controller, and Ray with all applications."""
        fleet = self.fleet
        if not fleet.nodes[name].up:
            return
        fleet.power_off(name)
        if name == fleet.head.name:
            self.processes.end_lingering()
            self.processes.end(None)
            self.serve.clear()
        self.serve.notice_nodes()

        def on() -> None:
            if not fleet.nodes[name].up:
                fleet.power_on(name)
            if name == fleet.head.name:
                self.time.after(30.0, self.processes.start)

        self.time.after(seconds, on)

    def lose_head(self, to: str, moved_after_s: float, back_after_s: float) -> None:
        """Switch the head off for so long; its owner moves it to another node (`sparkfleet move-head NODE --lost`).

        Not if that one is away by then: the controller starts again when the head is back.
        """
        fleet, lost = self.fleet, self.fleet.head
        self.off(lost.name, back_after_s)

        def move() -> None:
            if fleet.head is lost and not lost.up and fleet.nodes[to].joined:
                fleet.head_name = to
                self.note(f"the head is moved from {lost.name} to {to}")
                self.processes.start()

        self.time.after(moved_after_s, move)

    def _outcome(self, launch: GroupLaunch) -> Outcome:
        bad = self.bad.get((launch.deployment, launch.rung))
        if bad is not None:
            return bad(launch)
        if (broken := self.broken.get((launch.deployment, launch.generation))) is not None:
            return broken
        nodes = launch.candidate.shape.nodes
        if without_tool := tuple(node for node in nodes if self.fleet.nodes[node].without_tool):
            return Outcome(DAEMON_S, tool_lost(*without_tool, began=False))
        if any(self.fleet.free(node) < launch.needs for node in nodes):
            self.refused.append((self.time.seconds, launch))
            return Outcome(
                2.0, Diagnosis(cause=Cause.MEMORY, summary="not enough memory is free", began=False)
            )
        return Outcome(self.chance.uniform(20, 240))

    def _barred_by(self, nodes: Sequence[str]) -> str | None:
        return None if self.controller is None else self.controller.queries.bars(nodes)

    # record of the run

    def record(self, fault: str) -> None:
        """Counts a fault and logs it for a replay of the seed."""
        self.report.faults[fault] += 1
        self.note(f"fault: {fault}")

    def note(self, line: str) -> None:
        """Logs a line for a replay of the seed."""
        self.report.log.append(f"{self.time.seconds:10.1f} {line}")

    def note_memory(self) -> None:
        """Keeps what the controller sees now, for the checks."""
        if self.gateways is not None:
            self.looked = memory_look(self.fleet, self.serve.apps)

    # what happens beside the controller's round

    def open_to_clients(self) -> None:
        """Deployments on demand may be applied from now on, and clients send requests for them."""
        self.share_gib = SMALL_SHARE_GIB
        self.gateways = GatewayExchange(
            self.fleet,
            self.processes,
            self.demand_chance,
            answers=self.answer_chance,
            loses=lambda: self.channel.loses,
        )
        self.serve.drains_s = self.gateways.drains_s

    async def deliver(self) -> None:
        """Let the reports that have arrived reach the controller."""
        await self.channel.deliver(self.processes, self.serve)

    async def exchange(self) -> None:
        """Lets gateways get the newest table, and the controller their reports."""
        if self.gateways is not None:
            await self.gateways.run()

    async def pause(self) -> None:
        """Let what runs beside the caller happen: reports arrive, or the controller's process ends."""
        self.processes.require_caller()
        if not self.channel.is_empty and self.chance.random() < 0.5:
            await self.deliver()
        await self.exchange()

    async def _serve_pause(self, call: str) -> None:
        """Pauses as `pause` does; calls of Serve may be slow, and fail."""
        if self.calls.slow_s:
            self.time.move_to(self.time.seconds + self.race_chance.uniform(0.0, self.calls.slow_s))
            self.changed_at = self.time.seconds
            await self.act()
        self.processes.count_call(call)
        await self.pause()
        if call in self.calls.failing and self.race_chance.random() < self.calls.fails:
            raise ServeFailedError("Serve does not answer")
