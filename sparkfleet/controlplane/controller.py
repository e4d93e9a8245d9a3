"""The controller: keeps the running groups equal to the desired state. Independent of Ray.

One loop lists what runs, calls `policy.decide` for the actions, and carries them out (`effects`). Everything that must
survive is in the store; everything else (reports of groups) arrives again within seconds of a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from sparkfleet.controlplane.clocks import Clocks, WallClock, read_clocks
from sparkfleet.controlplane.controller_failures import LIST_LATE_S, ControllerFailures
from sparkfleet.controlplane.draft_collector import DraftCollector
from sparkfleet.controlplane.effects import Effects, LaunchOf
from sparkfleet.controlplane.entry_watch import Entries, EntryWatch
from sparkfleet.controlplane.fleet_commands import FleetCommands
from sparkfleet.controlplane.fleet_queries import FleetQueries
from sparkfleet.controlplane.gateway_control import GatewayControl
from sparkfleet.controlplane.node_watch import NodeWatch
from sparkfleet.controlplane.nodes import SWEEP_S, Nodes, SweepList
from sparkfleet.controlplane.observed_fleet import ObservedFleet
from sparkfleet.controlplane.policy.decide import decide, is_at_rest
from sparkfleet.controlplane.policy.demand.on_demand import awaits_memory
from sparkfleet.controlplane.policy.memory_admission import depends_on_memory
from sparkfleet.controlplane.policy.memory_retry import refused
from sparkfleet.controlplane.policy.start_choice import to_bring_back
from sparkfleet.controlplane.policy.state import FleetState
from sparkfleet.controlplane.report_intake import ReportIntake
from sparkfleet.controlplane.serve_backend import ServeBackend
from sparkfleet.controlplane.state.api_keys import ApiKeys
from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.status import App, NodeReport
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.usage_collector import UsageCollector
from sparkfleet.controlplane.store_safety.copy_distribution import CopyDistribution
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.controlplane.store_safety.store_watch import corrupted
from sparkfleet.controlplane.views.routing_publisher import RoutingPublisher
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.telemetry.metrics import ControlMetrics

log = logging.getLogger(__name__)

TICK_S = 0.5
LONGEST_REST_S = 60.0
"""Seconds after which a fleet at rest gets a whole round: a change that a round does not compare is late then, not lost."""


class Controller:
    """Turns desired state into applications. Its parts answer the API, the groups and the gateways.

    Args:
        entries: of the endpoint, on other nodes.
        wall: knows the wall clock of the controller before; None: of none.
        check: as `StoreWatch.check`.
    """

    def __init__(
        self,
        *,
        fleet: str,
        store: Store,
        serve: ServeBackend,
        metrics: ControlMetrics,
        address: HeadAddress,
        launch_of: LaunchOf,
        nodes: Nodes,
        entries: Entries,
        here: NodeReport,
        clocks: Clocks = read_clocks,
        wall: WallClock | None = None,
        check: Callable[[Sequence[App]], str] = lambda apps: "",
    ) -> None:
        self._store = store
        self._serve = serve
        self._metrics = metrics
        self._nodes = nodes
        self._clocks = clocks
        self._wall = wall or WallClock(clocks)
        self._check = check
        self._wake = asyncio.Event()
        self._at_rest_with: tuple[object, ...] = ()
        """Inputs of the last whole round, if it found nothing to do and time alone changes nothing."""
        self._rests_since = 0.0
        self._keep_kv: frozenset[str] = frozenset()
        """Deployments that keep KV on the disk, at the last look."""

        self._observe_with(here, entries, address)
        self._answer_with(fleet)
        self._act_with(launch_of)

    def _observe_with(self, here: NodeReport, entries: Entries, address: HeadAddress) -> None:
        """Makes the parts that know the fleet's state: what is stored, what runs, and what answers."""
        store, steady = self._store, self._steady
        self.event_log = EventLog(store)
        self.failures = ControllerFailures(store, self.event_log, steady=steady)
        self.fleet = ObservedFleet(store, here, self._clocks)
        self.watch = NodeWatch(
            self._nodes, self.fleet.see_nodes, self.event_log, steady, drained=self.fleet.drained
        )
        self.copies = CopyDistribution(
            FleetPaths(store.path.parent),
            lambda: store.identity().id,
            nodes=self._nodes,
            reports=lambda: [node for node in self.watch.reports if node.name != here.name],
            steady=steady,
        )
        publisher = RoutingPublisher(steady)
        self.gateways = GatewayControl(self.fleet, self.watch, publisher, self.event_log, address)
        self.entries = EntryWatch(entries, lambda: self.gateways.address, self.event_log, steady)

    def _answer_with(self, fleet: str) -> None:
        """Makes the parts that answer the API and Prometheus. `fleet`: its name."""
        store = self._store
        self.keys = ApiKeys(store, self.event_log, self.fleet.reports, self.gateways.confirmed)
        self.usage = UsageCollector(store.usage, self.fleet.reports, self._steady)
        self.commands = FleetCommands(
            self.fleet, self.watch, self.gateways, self.event_log, self._wake.set, metrics=self._metrics
        )
        self.queries = FleetQueries(
            fleet,
            self.fleet,
            self.watch,
            self.gateways,
            entries=self.entries,
            copies=self.copies,
            failures=self.failures,
        )
        self._metrics.show(self.queries.samples)

    def _act_with(self, launch_of: LaunchOf) -> None:
        """Makes the parts that change what runs, and take the reports of groups."""
        self._effects = Effects(
            fleet=self.fleet,
            serve=self._serve,
            nodes=self._nodes,
            event_log=self.event_log,
            metrics=self._metrics,
            launch_of=launch_of,
            leave=self.gateways.leave,
            clocks=self._clocks,
        )
        self.intake = ReportIntake(
            fleet=self.fleet,
            effects=self._effects,
            gateways=self.gateways,
            usage=self.usage,
            drafts=DraftCollector(self._store.drafts, self._steady),
            event_log=self.event_log,
            metrics=self._metrics,
            clocks=self._clocks,
            wake=self._wake.set,
        )

    @property
    def store_path(self) -> Path:
        """The store's file."""
        return self._store.path

    async def run(self) -> None:
        """Reconciles until it is cancelled. A failed round is recorded, and the next one tries again."""
        self.failures.works()
        watches = [asyncio.create_task(one.run()) for one in (self.watch, self.entries, self.copies)]
        try:
            await self._reconcile_forever()
        finally:
            for watch in watches:
                watch.cancel()

    async def _reconcile_forever(self) -> None:
        while True:
            await self.round()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            self._wake.clear()

    async def round(self) -> None:
        """Reconciles once; a failure is recorded, and the next round tries again.

        Raises:
            StoreError: the store may no longer be used.
        """
        try:
            with self.failures.working("a round of its work"):
                await self.reconcile()
            self.failures.warn("reconcile", "")
            self.event_log.settle("reconcile")
        except StoreError:
            raise
        except Exception as error:
            if (damage := corrupted(self._store.path, error)) is not None:
                raise damage from error
            self.failures.warn("reconcile", f"The fleet could not be reconciled: {_shortly(error)}.")
            log.exception("a round of reconciling failed")
            with contextlib.suppress(sqlite3.Error):  # a full disk may be the cause of the failure
                await self.event_log.record_once(
                    "", 0, "reconcile", "error", f"could not reconcile: {error!r}"
                )
            with contextlib.suppress(Exception):  # groups may have ended although Ray Serve does not answer
                await self.gateways.publish()

    async def reconcile(self) -> None:
        """Runs one round: observes, decides, acts, publishes. Ends after observing if that shows nothing new."""
        await self._observe()
        inputs, now = self._inputs(), self._steady()
        if inputs == self._at_rest_with and now - self._rests_since < LONGEST_REST_S:
            return
        # Before the first wait: a client that reads "ready" requests the gateway next.
        await self.gateways.publish()
        state = await self._state()
        for name in state.to_run:
            self._metrics.begin_counters(name)
        for name in (one.name for one in state.applied.values() if one.spec.on_demand):
            self._metrics.begin_unloads(name)
        actions = decide(state, self._clocks())
        await self._effects.carry_out(actions, state)
        await self.gateways.publish()
        rests = not actions and self.gateways.is_current and is_at_rest(state)
        self._at_rest_with, self._rests_since = (inputs, now) if rests else ((), now)

    async def _observe(self) -> None:
        """Lists what runs, and drops what is known of groups that are gone."""
        await self._notice_clock()
        before = self.fleet.apps
        with self.failures.working("the list of what runs", LIST_LATE_S):
            self.fleet.see_apps(await self._serve.list())
        self.failures.warn("store", self._check(self.fleet.apps))
        await self._sweep_after(before)
        failed = [app.name for app in self.fleet.apps if app.status == "failed"]
        self.fleet.pending = self.fleet.pending.answered_only(failed)
        self.fleet.forget_gone()
        self._forget_drained_groups()

    async def _notice_clock(self) -> None:
        """Lets the groups' actors be watched again if the wall clock was set back."""
        if back_s := self._wall.set_back_s():
            await self._serve.renew()
            self._wall.accept()
            words = (
                f"the clock of the head was set back by {back_s:.0f} s: Ray Serve's controller is restarted"
            )
            await self.event_log.record("", 0, "clock", "clock", words)

    async def _sweep_after(self, before: Sequence[App]) -> None:
        """Ends what retired groups left on the nodes: Serve may have ended a group's actor while it started its ranks.
        Removes KV that a deleted deployment kept on their disks, also if it was not loaded."""
        retired = {app.group for app in before if app.status == "retiring"}
        former, self._keep_kv = self._keep_kv, self._store.deployments.with_kv_on_disk()
        if retired - {app.group for app in self.fleet.apps} or former - self._keep_kv:

            def listed() -> SweepList:
                # Those that are present have ended already if the fleet is being stopped: their files stay.
                there = self.fleet.present() | {app.group for app in before}
                one = self.fleet.sweep_list()
                return one._replace(keep=one.keep | there - retired)

            with contextlib.suppress(TimeoutError):  # their leases end them, too
                async with asyncio.timeout(SWEEP_S):
                    await self._nodes.sweep(self.fleet.answering(), listed)

    def _forget_drained_groups(self) -> None:
        """Forgets drained groups that no longer exist: their names do not come again."""
        for one in self._store.drains.groups():
            if one.group not in self.fleet.present():
                self._store.drains.undrain_group(one.group)

    def _inputs(self) -> tuple[object, ...]:
        """Everything that a round depends on beside time, and memory that a generation waits for."""
        nodes = self.fleet.nodes
        demand = self.fleet.demand.outline()
        return (*self.gateways.inputs(), nodes.boots, nodes.away_since, self.fleet.pending, demand)

    async def _state(self) -> FleetState:
        """Snapshot for the policy, with the free memory of the nodes that answer if something waits for memory, and those of
        them on which nothing can start."""
        state = self.fleet.state()
        reads_memory = (depends_on_memory(state), refused(state), to_bring_back(state), awaits_memory(state))
        if not any(reads_memory):
            return state
        # Of those that answered last: with a silent one each round would take 5 s longer while anything waits.
        seen = self.fleet.nodes.looked_at is not None
        nodes = await self._nodes.look(self.fleet.answering() if seen else None)
        found = {node.name: node.memory_available for node in nodes}
        return self.fleet.state(
            {name: memory for name, memory in found.items() if memory is not None},
            {node.name: node.cannot_start for node in nodes if node.cannot_start},
        )

    def _steady(self) -> float:
        return self._clocks().steady


def _shortly(error: Exception) -> str:
    return " ".join(repr(error).split())[:300]
