"""The controller: keeps what runs equal to what is wanted, and answers for it. Independent of Ray.

One loop looks at the applications there are, asks `reconcile.decide` what to do, and does it. Everything it must not
forget is in the store; everything else (reports of groups) comes back by itself within seconds of a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence

from sparkfleet import __version__
from sparkfleet.control.api_keys import ApiKeys
from sparkfleet.control.apps import Apps
from sparkfleet.control.ends import Ends
from sparkfleet.control.gauges import show_groups
from sparkfleet.control.heard import Heard
from sparkfleet.control.journal import Journal
from sparkfleet.control.node_watch import NodeWatch
from sparkfleet.control.nodes import Nodes
from sparkfleet.control.order import GroupOrder
from sparkfleet.control.publisher import Publisher
from sparkfleet.control.reconcile import Action, Wanted, decide
from sparkfleet.control.recovery import Recovery
from sparkfleet.control.room import fitting, needed
from sparkfleet.control.status import BEGINNING, App, FleetStatus, GroupPhase, GroupReport, NodeReport
from sparkfleet.control.store import Desired, Event, Store
from sparkfleet.control.view import View, scrape_targets
from sparkfleet.errors import ControlError
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.gateway.table import Table
from sparkfleet.observe.metrics import ControlMetrics
from sparkfleet.observe.targets import TargetGroup
from sparkfleet.planning.plan import DeploymentPlan
from sparkfleet.spec.deployment import Deployment

log = logging.getLogger(__name__)

TICK_S = 0.5

OrdersOf = Callable[[Desired, Mapping[int, int]], Sequence[GroupOrder]]


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
    """

    def __init__(
        self,
        *,
        fleet: str,
        store: Store,
        apps: Apps,
        metrics: ControlMetrics,
        endpoint: str,
        orders_of: OrdersOf,
        nodes: Nodes,
        here: NodeReport,
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._apps = apps
        self._metrics = metrics
        self._endpoint = endpoint
        self._orders_of = orders_of
        self._nodes = nodes
        self._seen: tuple[App, ...] = ()
        self._heard = Heard()
        self._journal = Journal(store)
        self.ends = Ends(store, self._journal)
        """Why its own work has failed."""
        self.keys = ApiKeys(store, self._journal)
        """What people need to ask the gateways."""
        self._publisher = Publisher()
        self._recovery = Recovery(store, apps, self._order, self._journal.record, here)
        self._watch = NodeWatch(nodes, self._recovery, metrics, self._journal)
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
            deployments=self._view(self._wanted()).deployments(),
            last_event=self._store.last_event_id(),
            trouble=self.ends.trouble,
        )

    def targets(self, own: str) -> list[TargetGroup]:
        """Everything that Prometheus should scrape, in its `http_sd` form. `own` is the controller's host:port."""
        return scrape_targets(self._heard.groups(), self._heard.gateways(), own)

    async def events(self, after: int, deployment: str | None, wait_s: float) -> tuple[Event, ...]:
        """Events with an id above `after`; waits for one, at most `wait_s`."""
        return await self._journal.events(after, deployment, wait_s)

    async def table(self, known: int, wait_s: float = 10.0) -> Table:
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
            try:
                await self.reconcile()
            except Exception as error:
                log.exception("a round of reconciling failed")
                with contextlib.suppress(sqlite3.Error):  # a full disk may be why it failed
                    await self._journal.record_once(
                        "", 0, "reconcile", "error", f"could not reconcile: {error!r}"
                    )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            self._wake.clear()

    async def reconcile(self) -> None:
        """One round: look, decide, do, publish."""
        self._seen = await self._apps.list()
        desired = self._wanted()
        self._heard.forget(self._keep(desired))
        # Before anything is waited for: whoever is told "ready" asks the gateway next.
        await self._publish(desired)
        for deployment in await self._recovery.judge(self._seen, desired):
            self._metrics.starts.labels(deployment, "failed").inc()
        room = await self._room(desired)
        wanted = {
            name: Wanted(
                generation=one.generation,
                groups=len(one.plan.groups),
                given_up=self._recovery.has_given_up(name, one.generation),
            )
            for name, one in desired.items()
        }
        for action in decide(wanted, self._seen, room):
            group = (action.deployment, action.generation, action.replica)
            if action.verb == "retire" or self._recovery.may_start(group):
                await self._do(action, desired)
        mine = [app for app in self._seen if self._is_wanted(app, desired)]
        reports = {report.name: report for report in self._heard.groups()}
        for deployment in await self._recovery.run(mine, desired, reports):
            self._metrics.starts.labels(deployment, "failed").inc()
        await self._publish(desired)

    async def _do(self, action: Action, desired: dict[str, Desired]) -> None:
        if action.verb == "deploy":
            order = self._order(desired[action.deployment], action.replica)
            await self._journal.record(
                action.deployment, action.generation, order.name, "deploy", action.reason
            )
            await self._nodes.sweep(self._keep(desired))
            self._recovery.starts(order)
            await self._apps.deploy(order)
        else:
            # The gateway must stop sending there before it goes.
            await self._publish(desired, without=(action.deployment, action.generation))
            await self._journal.record(action.deployment, action.generation, "", "retire", action.reason)
            await self._apps.retire(action.deployment, action.generation, action.replica)
            self._retires(action)
            self._recovery.ended((action.deployment, action.generation, action.replica))

    def _retires(self, action: Action) -> None:
        """What was looked at in this round is older: the gateways must not be told of it again."""
        group = (action.deployment, action.generation, action.replica)
        self._seen = tuple(
            app.model_copy(update={"status": "retiring"})
            if (app.deployment, app.generation, app.replica) == group
            else app
            for app in self._seen
        )

    def _order(self, desired: Desired, replica: int) -> GroupOrder:
        standings = self._store.rungs(desired.name, desired.generation)
        return self._orders_of(desired, {at: one.rung for at, one in standings.items()})[replica]

    async def _room(self, desired: dict[str, Desired]) -> dict[str, bool | None]:
        """Whether each wanted generation fits beside what runs. Only asked where there is an older one."""
        replaced = {app.deployment for app in self._seen}
        waiting = [
            d
            for n, d in desired.items()
            if n in replaced
            and (n, d.generation) not in self._generations()
            and not self._recovery.has_given_up(n, d.generation)
        ]
        if not waiting:
            return {}
        told = {node.name: node.memory_available for node in await self._nodes.look()}
        available = {name: memory for name, memory in told.items() if memory is not None}
        room = fitting(waiting, filter(self._is_loading, desired.values()), available)
        for one in waiting:
            silent = needed(one.plan).keys() - available.keys()
            if room[one.name] is None and self._recovery.gone() & silent:
                # It is placed all the same, and goes to a rung that does without: nothing that serves is lost by it.
                room[one.name] = None if self._view(desired).serving(one.name) else False
            if room[one.name] is None:
                words = f"not known how much memory is free on {', '.join(sorted(silent))}; nothing is stopped for it"
                subject = f"{one.name}/g{one.generation}"
                await self._journal.record_once(one.name, one.generation, subject, "waits", words)
        return room

    def _is_loading(self, desired: Desired) -> bool:
        """Whether a wanted generation has groups that are starting."""
        return any(
            report.phase in BEGINNING
            for report in self._heard.groups()
            if (report.deployment, report.generation) == (desired.name, desired.generation)
        )

    @staticmethod
    def _is_wanted(app: App, desired: Mapping[str, Desired]) -> bool:
        return app.deployment in desired and desired[app.deployment].generation == app.generation

    def _wanted(self) -> dict[str, Desired]:
        return {} if self._paused else self._store.desired()

    def _generations(self) -> set[tuple[str, int]]:
        return {(app.deployment, app.generation) for app in self._seen}

    def _keep(self, desired: dict[str, Desired]) -> frozenset[tuple[str, int]]:
        return frozenset({*self._generations(), *((n, d.generation) for n, d in desired.items())})

    # publishing

    async def _publish(self, desired: dict[str, Desired], without: tuple[str, int] | None = None) -> None:
        show_groups(self._metrics, self._heard.groups())
        await self._publisher.publish(self._view(desired), self._store.keys(), without)

    def _view(self, desired: dict[str, Desired]) -> View:
        failed = {
            (name, one.generation)
            for name, one in desired.items()
            if self._recovery.has_given_up(name, one.generation)
        }
        passed = {name: self._recovery.passed(one) for name, one in desired.items()}
        stranded = {name: self._recovery.stranded(one) for name, one in desired.items()}
        heard, told = self._heard, self._publisher.told()
        return View(desired, self._seen, heard.groups(), heard.fresh(), failed, told, passed, stranded)

    async def _phase_changed(self, report: GroupReport) -> None:
        words = report.detail
        wanted = self._store.desired().get(report.deployment)
        # What `down` stops goes on talking for a moment.
        starts = report.phase in BEGINNING and not self._paused
        if starts and wanted is not None and wanted.generation == report.generation:
            self._recovery.starts(self._order(wanted, report.replica))
        if report.phase is GroupPhase.READY:
            words = _ready_words(report)
            self._recovery.started(report, wanted)
            self._metrics.starts.labels(report.deployment, "adopted" if report.adopted else "ready").inc()
            if report.started_s is not None:
                self._metrics.start.labels(report.deployment).observe(report.started_s)
            self._store.measure(report.deployment, report.generation, report.name, dict(report.measured))
            await self._publish(self._wanted())
        if report.phase is GroupPhase.FAILED:
            self._metrics.restarts.labels(report.deployment).inc()
            self._recovery.fell(report)
        await self._journal.record(
            report.deployment, report.generation, report.name, report.phase.value, words
        )
        self._wake.set()


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
