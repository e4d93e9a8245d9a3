"""The controller: keeps what runs equal to what is wanted, and answers for it. Independent of Ray.

One loop looks at the applications there are, asks `reconcile.decide` what to do, and does it. Everything it must not
forget is in the store; everything else (reports of groups) comes back by itself within seconds of a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from sparkfleet import __version__
from sparkfleet.control.apps import Apps
from sparkfleet.control.nodes import Nodes
from sparkfleet.control.order import GroupOrder
from sparkfleet.control.reconcile import Action, Wanted, decide
from sparkfleet.control.recovery import Recovery
from sparkfleet.control.status import App, FleetStatus, GroupPhase, GroupReport, NodeReport
from sparkfleet.control.store import Desired, Event, Store
from sparkfleet.control.view import View, scrape_targets
from sparkfleet.errors import ControlError
from sparkfleet.gateway.keys import generate
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.gateway.table import KeyEntry, Table
from sparkfleet.observe.metrics import ControlMetrics
from sparkfleet.observe.targets import TargetGroup
from sparkfleet.planning.plan import DeploymentPlan
from sparkfleet.spec.deployment import Deployment

log = logging.getLogger(__name__)

TICK_S = 0.5
STALE_S = 15.0
"""A group that has said nothing for this long is not counted as ready."""
FORGET_S = 600.0
"""A gateway replica that has said nothing for this long is another one when it speaks again."""
SETTLE_S = 10.0
"""After a restart of the controller: how long the gateways keep their old table while groups report again."""

LOOK_S = 2.0
"""How often the nodes are looked at."""

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
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._apps = apps
        self._metrics = metrics
        self._endpoint = endpoint
        self._orders_of = orders_of
        self._nodes = nodes
        self._node_reports: tuple[NodeReport, ...] = ()
        self._seen: tuple[App, ...] = ()
        self._reports: dict[str, tuple[float, GroupReport]] = {}
        self._gateways: dict[str, tuple[float, GatewayReport]] = {}
        self._table = Table(version=0, models={}, keys=())
        self._changed = asyncio.Condition()
        self._wake = asyncio.Event()
        self._recovery = Recovery(store, apps, self._order, self._record)
        self._said: dict[str, str] = {}
        self._paused = False
        self._began = time.monotonic()

    # what people ask for

    async def put(self, spec: Deployment, plan: DeploymentPlan, who: str) -> tuple[Desired, bool]:
        """Ask for a deployment; returns what is wanted now and whether that is a change."""
        before = self._store.desired().get(spec.name)
        # Applying what has failed asks to try it again.
        again = before is not None and self._recovery.has_given_up(spec.name, before.generation)
        desired, changed = self._store.put(spec, plan, who, again=again)
        if changed:
            await self._record(desired.name, desired.generation, "", "wanted", f"{who} asked for it")
            self._wake.set()
        return desired, changed

    async def remove(self, name: str, who: str) -> None:
        """No longer serve a deployment. Raises ControlError for a name that is not there."""
        desired = self._store.desired()
        if name not in desired:
            raise ControlError(f"There is no deployment {name!r}.", do=f"There are: {_names(desired)}.")
        self._store.remove(name)
        await self._record(name, desired[name].generation, "", "unwanted", f"{who} deleted it")
        self._wake.set()

    def pause(self) -> None:
        """Stop everything, without forgetting what is wanted: what `sparkfleet down` asks for."""
        self._paused = True
        self._wake.set()

    async def create_key(self, name: str) -> tuple[str, KeyEntry]:
        """Make an API key; its text is returned once and never kept. Raises ControlError for a name that is taken."""
        text, key = generate(name)
        if not self._store.add_key(key):
            raise ControlError(
                f"There is a key {name!r} already.",
                means="Its text was shown when it was made and is not kept.",
                do=f"Choose another name, or `sparkfleet keys revoke {name}` first.",
            )
        await self._record("", 0, name, "key", f"key {name} created")
        return text, key

    async def revoke_key(self, name_or_id: str) -> KeyEntry:
        """Make a key worthless from now on. Raises ControlError for one that is not there."""
        key = self._store.remove_key(name_or_id)
        if key is None:
            raise ControlError(
                f"There is no key {name_or_id!r}.", do="`sparkfleet keys list` shows those there are."
            )
        await self._record("", 0, key.name, "key", f"key {key.name} revoked")
        return key

    def list_keys(self) -> tuple[KeyEntry, ...]:
        """All keys: names and hashes."""
        return self._store.keys()

    # what is seen

    def status(self) -> FleetStatus:
        """The whole fleet as it is known now."""
        return FleetStatus(
            fleet=self._fleet,
            sparkfleet=__version__,
            endpoint=self._endpoint,
            gateways=self._gateways_heard(),
            nodes=self._node_reports,
            failures=self._store.failures(),
            deployments=self._view(self._wanted()).deployments(),
            last_event=self._store.last_event_id(),
        )

    def targets(self, own: str) -> list[TargetGroup]:
        """Everything that Prometheus should scrape, in its `http_sd` form. `own` is the controller's host:port."""
        return scrape_targets(self.reports(), self._gateways_heard(), own)

    def _gateways_heard(self) -> tuple[GatewayReport, ...]:
        """Gateway replicas that have spoken lately: others were replaced."""
        now = time.monotonic()
        return tuple(report for at, report in self._gateways.values() if now - at < STALE_S)

    def reports(self) -> tuple[GroupReport, ...]:
        """The newest report of every group that is not gone."""
        return tuple(report for _, report in self._reports.values())

    async def events(self, after: int, deployment: str | None, wait_s: float) -> tuple[Event, ...]:
        """Events with an id above `after`; waits for one, at most `wait_s`."""
        deadline = time.monotonic() + wait_s
        async with self._changed:
            while not (found := self._store.events(after, deployment)):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._changed.wait()
        return found

    async def table(self, known: int, wait_s: float = 10.0) -> Table:
        """The gateway's table; waits for one other than `known`, at most `wait_s`. Version 0: none was published yet."""
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait_for(lambda: self._table.version not in (known, 0))
        return self._table

    # what groups and gateways say

    async def report(self, report: GroupReport) -> None:
        """A group says where it is."""
        before = self._reports.get(report.name)
        self._reports[report.name] = (time.monotonic(), report)
        if before is None or before[1].phase is not report.phase:
            await self._phase_changed(report)
        elif report.detail and report.phase in (GroupPhase.PREPARING, GroupPhase.STARTING):
            await self._progress(report)

    async def register_gateway(self, report: GatewayReport) -> None:
        """A gateway replica says where it listens."""
        if report.replica not in self._gateways:
            await self._record("", 0, report.replica, "gateway", f"gateway listening on {report.url}")
        self._gateways = {
            replica: (at, one)
            for replica, (at, one) in self._gateways.items()
            if time.monotonic() - at < FORGET_S
        }
        self._gateways[report.replica] = (time.monotonic(), report)

    # the loop

    async def run(self) -> None:
        """Reconcile until cancelled. A failure of one round is written down and the next one tries again."""
        looking = asyncio.create_task(self._watch_nodes())
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
                await self._say_once("", 0, "reconcile", "error", f"could not reconcile: {error!r}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            self._wake.clear()

    async def reconcile(self) -> None:
        """One round: look, decide, do, publish."""
        self._seen = await self._apps.list()
        desired = self._wanted()
        self._forget(desired)
        await self._publish(
            desired
        )  # before anything is waited for: whoever is told "ready" asks the gateway next
        room = await self._room(desired)
        wanted = {
            name: Wanted(generation=one.generation, groups=len(one.plan.groups))
            for name, one in desired.items()
        }
        for action in decide(wanted, self._seen, room):
            group = (action.deployment, action.generation, action.replica)
            if action.verb == "retire" or not self._recovery.has_given_up(*group):
                await self._do(action, desired)
        mine = [app for app in self._seen if self._is_wanted(app, desired)]
        for deployment in await self._recovery.run(mine, desired, self._reports_by_name()):
            self._metrics.starts.labels(deployment, "failed").inc()
        await self._publish(desired)

    async def _do(self, action: Action, desired: dict[str, Desired]) -> None:
        if action.verb == "deploy":
            order = self._order(desired[action.deployment], action.replica)
            await self._record(action.deployment, action.generation, order.name, "deploy", action.reason)
            await self._nodes.sweep(self._keep(desired))
            await self._apps.deploy(order)
        else:
            # The gateway must stop sending there before it goes.
            await self._publish(desired, without=(action.deployment, action.generation))
            await self._record(action.deployment, action.generation, "", "retire", action.reason)
            await self._apps.retire(action.deployment, action.generation, action.replica)

    def _order(self, desired: Desired, replica: int) -> GroupOrder:
        standings = self._store.rungs(desired.name, desired.generation)
        return self._orders_of(desired, {at: one.rung for at, one in standings.items()})[replica]

    async def _room(self, desired: dict[str, Desired]) -> dict[str, bool]:
        """Whether each wanted generation fits beside what runs. Only asked where there is an older one."""
        replaced = {app.deployment for app in self._seen}
        waiting = [
            d for n, d in desired.items() if n in replaced and (n, d.generation) not in self._generations()
        ]
        if not waiting:
            return {}
        available = {node.name: node.memory_available or 0 for node in await self._nodes.look()}
        for one in desired.values():
            if self._is_loading(one):  # what it will take is not all taken yet
                _take(available, one.plan)
        room = {}
        for one in waiting:
            needed = _needed(one.plan).items()
            room[one.name] = all(available.get(node, 0) >= need for node, need in needed)
            if room[one.name]:
                _take(available, one.plan)
        return room

    def _is_loading(self, desired: Desired) -> bool:
        """Whether a wanted generation has groups that are starting."""
        loading = (GroupPhase.PREPARING, GroupPhase.STARTING)
        return any(
            report.phase in loading
            for report in self.reports()
            if (report.deployment, report.generation) == (desired.name, desired.generation)
        )

    async def _watch_nodes(self) -> None:
        while True:
            try:
                await self._see(await self._nodes.look())
            except Exception:
                log.exception("the nodes could not be looked at")
            await asyncio.sleep(LOOK_S)

    async def _see(self, nodes: tuple[NodeReport, ...]) -> None:
        """Keep what was seen, and say who has joined or left since."""
        before = {node.name: node.joined for node in self._node_reports}
        self._recovery.see(nodes)
        self._node_reports = nodes
        for node in nodes:
            self._metrics.joined.labels(node.name).set(node.joined)
            if node.memory_available is not None:
                self._metrics.memory.labels(node.name).set(node.memory_available)
        for node in nodes:
            if node.joined != before.get(node.name, False):
                words = "joined the fleet" if node.joined else "left the fleet: Ray on it does not answer"
                await self._record("", 0, node.name, "node", f"{node.name} {words}")

    @staticmethod
    def _is_wanted(app: App, desired: Mapping[str, Desired]) -> bool:
        return app.deployment in desired and desired[app.deployment].generation == app.generation

    def _reports_by_name(self) -> dict[str, GroupReport]:
        return {name: report for name, (_, report) in self._reports.items()}

    def _wanted(self) -> dict[str, Desired]:
        return {} if self._paused else self._store.desired()

    def _generations(self) -> set[tuple[str, int]]:
        return {(app.deployment, app.generation) for app in self._seen}

    def _keep(self, desired: dict[str, Desired]) -> frozenset[tuple[str, int]]:
        return frozenset({*self._generations(), *((n, d.generation) for n, d in desired.items())})

    def _forget(self, desired: dict[str, Desired]) -> None:
        """Drop reports of generations that are neither wanted nor there."""
        keep = self._keep(desired)
        self._reports = {
            name: entry
            for name, entry in self._reports.items()
            if (entry[1].deployment, entry[1].generation) in keep
        }

    # publishing

    async def _publish(self, desired: dict[str, Desired], without: tuple[str, int] | None = None) -> None:
        view = self._view(desired)
        models = view.models(without)
        keys = self._store.keys()
        self._set_gauges()
        same = self._table.version > 0 and (models, keys) == (self._table.models, self._table.keys)
        settling = not view.all_heard() and time.monotonic() - self._began < SETTLE_S
        if same or settling:
            return
        # Not counted from 1: a gateway must never take the table of a restarted controller for one it has.
        self._table = Table(version=max(self._table.version + 1, time.time_ns()), models=models, keys=keys)
        async with self._changed:
            self._changed.notify_all()

    def _view(self, desired: dict[str, Desired]) -> View:
        now = time.monotonic()
        fresh = [report for at, report in self._reports.values() if now - at < STALE_S]
        told = {group.app: group for entry in self._table.models.values() for group in entry.groups}
        failed = {
            (name, one.generation)
            for name, one in desired.items()
            if self._recovery.has_given_up(name, one.generation)
        }
        return View(desired, self._seen, self.reports(), fresh, failed, told)

    def _set_gauges(self) -> None:
        self._metrics.group_state.clear()
        self._metrics.drafts.clear()
        phases = tuple(phase.value for phase in GroupPhase)
        for report in self.reports():
            self._metrics.show_state(report.deployment, report.name, report.phase.value, phases)
            if report.drafted:
                drafts = self._metrics.drafts
                drafts.labels(report.deployment, report.name, "proposed").set(report.drafted)
                drafts.labels(report.deployment, report.name, "accepted").set(report.accepted)

    # events

    async def _phase_changed(self, report: GroupReport) -> None:
        words = report.detail
        if report.phase is GroupPhase.READY:
            words = _ready_words(report)
            self._recovery.started(report, self._store.desired().get(report.deployment))
            self._metrics.starts.labels(report.deployment, "adopted" if report.adopted else "ready").inc()
            if report.started_s is not None:
                self._metrics.start.labels(report.deployment).observe(report.started_s)
            self._store.measure(report.deployment, report.generation, report.name, dict(report.measured))
            await self._publish(self._wanted())
        if report.phase is GroupPhase.FAILED:
            self._metrics.restarts.labels(report.deployment).inc()
            self._recovery.fell(report)
        await self._record(report.deployment, report.generation, report.name, report.phase.value, words)
        self._wake.set()

    async def _progress(self, report: GroupReport) -> None:
        await self._say_once(report.deployment, report.generation, report.name, "progress", report.detail)

    async def _say_once(
        self, deployment: str, generation: int, subject: str, kind: str, message: str
    ) -> None:
        """Write an event unless it says what this subject said last."""
        if self._said.get(subject) != message:
            self._said[subject] = message
            await self._record(deployment, generation, subject, kind, message)

    async def _record(self, deployment: str, generation: int, subject: str, kind: str, message: str) -> None:
        self._store.record(deployment, generation, subject, kind, message)
        async with self._changed:
            self._changed.notify_all()


def _needed(plan: DeploymentPlan) -> dict[str, int]:
    """Bytes that the groups of a plan may take on each node, by the high end of what is predicted."""
    needed: dict[str, int] = {}
    for group in plan.groups:
        for node in group.choice.candidate.shape.nodes:
            needed[node] = needed.get(node, 0) + int(group.choice.prediction.memory_bytes_per_rank.high)
    return needed


def _take(available: dict[str, int], plan: DeploymentPlan) -> None:
    """Count what the groups of a plan may take as taken."""
    for node, need in _needed(plan).items():
        available[node] = available.get(node, 0) - need


def _ready_words(report: GroupReport) -> str:
    measured = report.measured
    how = "adopted, ready after" if report.adopted else "started in"
    words = f"{how} {report.started_s or 0:.1f} s"
    if {"ttft_ms", "decode_tps"} <= measured.keys():
        words += f"; measured TTFT {measured['ttft_ms']:.0f} ms, {measured['decode_tps']:.1f} tok/s alone"
    if report.rung:
        words += f"; at rung {report.rung + 1} of its ladder"
    return words


def _names(desired: dict[str, Desired]) -> str:
    return ", ".join(sorted(desired)) or "none"
