"""The controller: keeps what runs equal to what is wanted, and answers for it. Independent of Ray.

One loop takes a snapshot of what is known, calls `policy.decide` for the actions, and carries them out (`effects`).
Everything it must not forget is in the store; everything else (reports of groups) comes back by itself within seconds of a
restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Mapping

from sparkfleet import __version__
from sparkfleet.controlplane.clocks import Clocks, read_clocks
from sparkfleet.controlplane.controller_failures import ControllerFailures
from sparkfleet.controlplane.effects import Effects, OrdersOf, Surroundings
from sparkfleet.controlplane.node_watch import NodeWatch
from sparkfleet.controlplane.policy.decide import decide
from sparkfleet.controlplane.policy.memory_admission import waiting
from sparkfleet.controlplane.policy.reported import on_report
from sparkfleet.controlplane.policy.state import FleetState
from sparkfleet.controlplane.serve_backend import ServeBackend
from sparkfleet.controlplane.state.api_keys import ApiKeys
from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.fleet_snapshot import FleetSnapshot, scrape_targets
from sparkfleet.controlplane.state.metrics_export import show_groups
from sparkfleet.controlplane.state.nodes import Generation, Nodes
from sparkfleet.controlplane.state.report_cache import ReportCache
from sparkfleet.controlplane.state.routing_publisher import RoutingPublisher
from sparkfleet.controlplane.state.status import App, FleetStatus, NodeReport
from sparkfleet.controlplane.state.store import Desired, Event, GroupKey, Store
from sparkfleet.errors import ControlError
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.gateway.routing_table import RoutingTable
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.telemetry.metrics import ControlMetrics
from sparkfleet.telemetry.targets import TargetGroup

log = logging.getLogger(__name__)

TICK_S = 0.5


class Controller:
    """Desired state in, applications out.

    Args:
        fleet: name of the fleet.
        store: what must not be forgotten.
        apps: where groups run.
        metrics: counters and gauges of the controller.
        endpoint: URL of the gateway, for people.
        orders_of: from a wanted deployment, and how far down its ladder each group is, to what each group is told.
        nodes: the machines.
        here: the one of them that this runs on.
        clocks: replaceable by a simulation.
    """

    def __init__(
        self,
        *,
        fleet: str,
        store: Store,
        apps: ServeBackend,
        metrics: ControlMetrics,
        endpoint: str,
        orders_of: OrdersOf,
        nodes: Nodes,
        here: NodeReport,
        clocks: Clocks = read_clocks,
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._apps = apps
        self._metrics = metrics
        self._endpoint = endpoint
        self._nodes = nodes
        self._seen: tuple[App, ...] = ()
        self._shown: tuple[GroupReport, ...] | None = None
        self._clocks = clocks
        self._heard = ReportCache(self._steady)
        self._journal = EventLog(store)
        self.ends = ControllerFailures(store, self._journal)
        """Why its own work has failed."""
        self.keys = ApiKeys(store, self._journal)
        """What people need to ask the gateways."""
        self._publisher = RoutingPublisher(self._steady)
        around = Surroundings(orders_of=orders_of, leave=self._leave, kept=self._kept)
        self._effects = Effects(
            store=store,
            apps=apps,
            nodes=nodes,
            journal=self._journal,
            metrics=metrics,
            here=here,
            around=around,
            clocks=clocks,
        )
        self._watch = NodeWatch(nodes, self._effects.see, metrics, self._journal, self._steady)
        self._wake = asyncio.Event()
        self._paused = False

    # what people ask for

    async def put(
        self, spec: Deployment, plan: DeploymentPlan, who: str, retry: bool = False
    ) -> tuple[Desired, bool]:
        """Ask for a deployment (see `Store.put`); returns what is wanted now and whether that is a change."""
        desired, changed = self._store.put(spec, plan, who, retry)
        if changed:
            await self._journal.record(desired.name, desired.generation, "", "wanted", f"{who} asked for it")
            self._wake.set()
        return desired, changed

    async def remove(self, name: str, who: str) -> None:
        """No longer serve a deployment. Raises ControlError for a name that is not there."""
        desired = self._store.desired()
        if name not in desired:
            raise ControlError(
                f"There is no deployment {name!r}.", do=f"There are: {', '.join(sorted(desired)) or 'none'}."
            )
        self._store.remove(name)
        await self._journal.record(name, desired[name].generation, "", "unwanted", f"{who} deleted it")
        self._wake.set()

    def pause(self) -> None:
        """Stop everything, without forgetting what is wanted: what `sparkfleet down` asks for."""
        self._paused = True
        self._wake.set()

    # what is seen

    def status(self) -> FleetStatus:
        """The whole fleet as it is known now."""
        return FleetStatus(
            fleet=self._fleet,
            sparkfleet=__version__,
            endpoint=self._endpoint,
            gateways=self._heard.gateways(),
            nodes=self._watch.reports,
            failures=self._store.failures(),
            deployments=self._view().deployments(),
            last_event=self._store.last_event_id(),
            trouble=self.ends.trouble,
        )

    def targets(self, own: str) -> list[TargetGroup]:
        """Everything that Prometheus should scrape, in its `http_sd` form. `own` is the controller's host:port."""
        return scrape_targets(self._heard.groups(), self._heard.gateways(), own)

    async def events(self, after: int, deployment: str | None, wait_s: float) -> tuple[Event, ...]:
        """Events with an id above `after`; waits for one, at most `wait_s`."""
        return await self._journal.events(after, deployment, wait_s)

    async def table(self, known: int, wait_s: float = 10.0) -> RoutingTable:
        """The gateway's table; waits for one other than `known`, at most `wait_s`. Version 0: none was published yet."""
        return await self._publisher.table(known, wait_s)

    # what groups and gateways say

    async def report(self, report: GroupReport) -> None:
        """A group says where it is."""
        if self._heard.group(report):
            await self._phase_changed(report)
        elif report.detail and report.phase in BEGINNING:
            await self._journal.record_once(
                report.deployment, report.generation, report.name, "progress", report.detail
            )

    async def register_gateway(self, report: GatewayReport) -> None:
        """A gateway replica says where it listens."""
        if self._heard.gateway(report):
            words = f"gateway listening on {report.url}"
            await self._journal.record("", 0, report.replica, "gateway", words)

    # the loop

    async def run(self) -> None:
        """Reconcile until cancelled. A failure of one round is written down and the next one tries again."""
        self.ends.works()
        looking = asyncio.create_task(self._watch.run())
        try:
            await self._reconcile_forever()
        finally:
            looking.cancel()

    async def _reconcile_forever(self) -> None:
        while True:
            await self.round()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            self._wake.clear()

    async def look(self) -> None:
        """Look at the nodes once, as `run` does every two seconds."""
        await self._watch.look()

    async def round(self) -> None:
        """Reconcile once; a failure is written down, for the next round to try again."""
        try:
            await self.reconcile()
        except Exception as error:
            log.exception("a round of reconciling failed")
            with contextlib.suppress(sqlite3.Error):  # a full disk may be why it failed
                await self._journal.record_once(
                    "", 0, "reconcile", "error", f"could not reconcile: {error!r}"
                )

    async def reconcile(self) -> None:
        """One round: look, decide, do, publish."""
        self._seen = await self._apps.list()
        self._effects.forget_answers([app.name for app in self._seen if app.status == "failed"])
        self._heard.forget(self._kept())
        # Before anything is waited for: whoever is told "ready" asks the gateway next.
        await self._publish()
        available = await self._available()
        state = self._state(available)
        await self._effects.carry_out(decide(state, self._clocks()), state.wanted)
        await self._publish()

    def _state(self, available: Mapping[str, int] | None = None) -> FleetState:
        """Everything that is known now."""
        return FleetState(
            desired=self._store.desired(),
            apps=self._seen,
            reports=self._heard.groups(),
            fresh=frozenset(report.name for report in self._heard.fresh()),
            standings=self._store.standings(),
            starts=self._store.starts(),
            nodes=self._effects.nodes,
            available=available or {},
            pending=self._effects.pending,
            paused=self._paused,
        )

    async def _available(self) -> dict[str, int]:
        """Free memory of the nodes that answer, bytes. They are only asked if a generation waits for memory."""
        if not waiting(self._state()):
            return {}
        told = {node.name: node.memory_available for node in await self._nodes.look()}
        return {name: memory for name, memory in told.items() if memory is not None}

    async def _leave(self, group: GroupKey) -> None:
        """The gateways must stop sending to a group before it goes, and must not be told of it again in this round."""
        await self._publish(without=group[:2])
        self._seen = tuple(
            app.model_copy(update={"status": "retiring"}) if app.group == group else app for app in self._seen
        )

    def _steady(self) -> float:
        return self._clocks().steady

    def _wanted(self) -> dict[str, Desired]:
        return {} if self._paused else self._store.desired()

    def _kept(self) -> frozenset[Generation]:
        """Generations that are wanted or still there."""
        there = {app.group[:2] for app in self._seen}
        return frozenset({*there, *((name, one.generation) for name, one in self._wanted().items())})

    # publishing

    async def _publish(self, without: Generation | None = None) -> None:
        reports = self._heard.groups()
        if reports != self._shown:
            show_groups(self._metrics, reports)
            self._shown = reports
        await self._publisher.publish(self._view(), self._store.keys(), without)

    def _view(self) -> FleetSnapshot:
        state = self._state()
        wanted = state.wanted
        return FleetSnapshot(
            wanted,
            self._seen,
            state.reports,
            self._heard.fresh(),
            failed={
                (name, one.generation)
                for name, one in wanted.items()
                if state.has_given_up(name, one.generation)
            },
            told=self._publisher.told(),
            passed={name: _passed(state, one) for name, one in wanted.items()},
            stranded={name: _stranded(state, one) for name, one in wanted.items()},
        )

    async def _phase_changed(self, report: GroupReport) -> None:
        words = report.detail
        state = self._state()
        await self._effects.carry_out(on_report(state, report, self._clocks()), state.wanted)
        if report.phase is GroupPhase.READY:
            words = _ready_words(report)
            self._metrics.starts.labels(report.deployment, "adopted" if report.adopted else "ready").inc()
            if report.started_s is not None:
                self._metrics.start.labels(report.deployment).observe(report.started_s)
            self._store.measure(report.deployment, report.generation, report.name, dict(report.measured))
            await self._publish()
        if report.phase is GroupPhase.FAILED:
            self._metrics.restarts.labels(report.deployment).inc()
        await self._journal.record(
            report.deployment, report.generation, report.name, report.phase.value, words
        )
        self._wake.set()


def _passed(state: FleetState, desired: Desired) -> tuple[tuple[str, ...], ...]:
    """Of each group of a deployment why it has left the rungs above the one where it is."""
    return tuple(state.standing(group).passed for group in _groups(desired))


def _stranded(state: FleetState, desired: Desired) -> str:
    """Condition that a deployment's group may wait for in vain; "" if there is none."""
    return next(
        (state.pending.waiting[group] for group in _groups(desired) if group in state.pending.waiting), ""
    )


def _groups(desired: Desired) -> list[GroupKey]:
    return [(desired.name, desired.generation, replica) for replica in range(len(desired.plan.groups))]


def _ready_words(report: GroupReport) -> str:
    measured = report.measured
    how = "adopted, ready after" if report.adopted else "started in"
    words = f"{how} {report.started_s or 0:.1f} s"
    if {"ttft_ms", "decode_tps"} <= measured.keys():
        words += f"; measured TTFT {measured['ttft_ms']:.0f} ms, {measured['decode_tps']:.1f} tok/s alone"
    if report.unchecked:
        words += f"; not checked: {', '.join(report.unchecked)}"
    if report.rung:
        words += f"; at rung {report.rung + 1} of its ladder"
    return words
