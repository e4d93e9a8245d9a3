"""The controller: keeps the running groups equal to the desired state, and answers requests. Independent of Ray.

One loop takes a snapshot of the fleet, calls `policy.decide` for the actions, and carries them out (`effects`).
Everything that must survive is in the store; everything else (reports of groups) arrives again within seconds of a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence

from sparkfleet import __version__
from sparkfleet.controlplane.clocks import Clocks, read_clocks
from sparkfleet.controlplane.controller_failures import SUBJECT, ControllerFailures
from sparkfleet.controlplane.desired import Desired, GroupKey
from sparkfleet.controlplane.effects import Effects, LaunchesOf, Surroundings
from sparkfleet.controlplane.node_watch import NodeWatch
from sparkfleet.controlplane.policy.decide import decide
from sparkfleet.controlplane.policy.memory_admission import depends_on_memory
from sparkfleet.controlplane.policy.reported import on_report
from sparkfleet.controlplane.policy.rest import is_at_rest
from sparkfleet.controlplane.policy.state import FleetState, name_of, nodes_of
from sparkfleet.controlplane.policy.wanted import barred_by, is_wanted
from sparkfleet.controlplane.serve_backend import ServeBackend
from sparkfleet.controlplane.state.api_keys import CONFIRM_S, ApiKeys, KeyRow
from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.fleet_snapshot import FleetSnapshot, scrape_targets
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.metrics_export import fleet_samples, key_samples
from sparkfleet.controlplane.state.nodes import Nodes
from sparkfleet.controlplane.state.report_cache import ReportCache
from sparkfleet.controlplane.state.routing_publisher import RoutingPublisher
from sparkfleet.controlplane.state.start_forecast import StartForecast
from sparkfleet.controlplane.state.start_phases import StartPhases
from sparkfleet.controlplane.state.status import App, FleetStatus, NodeReport
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.store_rows import Event
from sparkfleet.controlplane.state.usage_ledger import UsageRow
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.controlplane.store_safety.store_watch import corrupted
from sparkfleet.controlplane.wall_clock import WallClock
from sparkfleet.errors import Cause, ControlError
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.gateway.routing_table import KeyEntry, KeyLimits, RoutingTable
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport
from sparkfleet.planner.report.carry_over import RunningGroup
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.telemetry.metrics import ControlMetrics
from sparkfleet.telemetry.samples import Sample
from sparkfleet.telemetry.targets import TargetGroup

log = logging.getLogger(__name__)

TICK_S = 0.5
LONGEST_REST_S = 60.0
"""Seconds after which a fleet at rest gets a whole round: a change that a round does not compare is late then, not lost."""
SWEEP_S = 10.0
"""Time limit of a sweep after a retired group has ended: Ray's own calls have none."""
USAGE_S = 15.0
"""Seconds between two writes of a gateway's usage."""


class Controller:
    """Turns desired state into applications.

    Args:
        fleet: name of the fleet.
        store: keeps everything that must survive a restart.
        apps: the backend that runs groups.
        metrics: counters and gauges of the controller.
        address: of the head, with the endpoint.
        launches_of: the launch of each group of a deployment, given the rung of each group.
        nodes: the nodes of the fleet.
        here: the node that the controller runs on.
        clocks: replaceable by a simulation.
        wall: knows the wall clock of the controller before; None: of none.
        check: raises StoreError if the store may no longer be used, given everything that exists.
    """

    def __init__(
        self,
        *,
        fleet: str,
        store: Store,
        apps: ServeBackend,
        metrics: ControlMetrics,
        address: HeadAddress,
        launches_of: LaunchesOf,
        nodes: Nodes,
        here: NodeReport,
        clocks: Clocks = read_clocks,
        wall: WallClock | None = None,
        check: Callable[[Sequence[App]], None] = lambda apps: None,
    ) -> None:
        self._check = check
        self.warnings: dict[str, str] = {}
        """Troubles in which it works on, by their subject, for people."""
        self._fleet = fleet
        self._store = store
        self._apps = apps
        self._metrics = metrics
        self._address = address
        self._nodes = nodes
        self._seen: tuple[App, ...] = ()
        self._clocks = clocks
        self._reports = ReportCache(self._steady)
        self._journal = EventLog(store)
        self.ends = ControllerFailures(store, self._journal)
        """Failures of the controller's own work."""
        self._usage_stored: dict[str, float] = {}
        """Time of the last write of each gateway replica's usage."""
        self.keys = ApiKeys(store, self._journal)
        """Keys that clients send to the gateways."""
        self._publisher = RoutingPublisher(self._steady)
        self._published_from: tuple[object, ...] = ()
        """Inputs of the table that the gateways have (`_table_inputs`)."""
        self._at_rest_with: tuple[object, ...] = ()
        """Inputs of the last whole round, if it found nothing to do and time alone changes nothing."""
        self._rests_since = 0.0
        around = Surroundings(launches_of=launches_of, leave=self._leave, kept=self._kept)
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
        self._watch = NodeWatch(nodes, self._effects.see, self._journal, self._steady)
        self._phases = StartPhases(metrics, self._steady)
        self._starts = StartForecast(lambda: clocks().unix)
        metrics.show(self.samples)
        self._wall = wall or WallClock(clocks)
        self._wake = asyncio.Event()
        self._paused = False

    # requests of the API

    async def put(
        self, spec: Deployment, plan: DeploymentPlan, who: str, retry: bool = False, base: int | None = None
    ) -> tuple[Desired, bool]:
        """Applies a deployment (see `Store.put`); returns the desired state, and True if it changed."""
        older = self._older(spec.name)
        with self._store.together():
            desired, changed = self._store.put(spec, plan, who, retry, older, base=base)
            if changed:
                self._store.record(desired.name, desired.generation, "", "wanted", f"applied by {who}")
        if changed:
            await self._journal.announce()
            self._wake.set()
        return desired, changed

    def _older(self, name: str) -> list[RunningGroup]:
        """Groups of a deployment that run at a rung of an earlier plan and are no longer desired."""
        wanted = self._store.desired().get(name)
        alive = {
            app.group
            for app in self._seen
            if app.deployment == name and app.status in ("starting", "running")
        }
        if not alive or (wanted is not None and alive.issubset(wanted.groups)):
            return []  # the usual case, without reading the history
        reports = {report.group: report for report in self._reports.groups()}
        plans = {
            key: plan
            for one in self._store.history(name)
            for key, plan in zip(one.groups, one.plan.groups, strict=True)
            if key in alive and (wanted is None or key not in wanted.groups)
        }
        return [
            RunningGroup(member=key[1:], plan=plan, rung=reports[key].rung)
            for key, plan in plans.items()
            if key in reports
        ]

    async def remove(self, name: str, who: str) -> None:
        """Deletes a deployment. Raises ControlError if it does not exist."""
        desired = self._store.desired()
        if name not in desired:
            raise ControlError(
                f"There is no deployment {name!r}.",
                do=f"Existing deployments: {', '.join(sorted(desired)) or 'none'}.",
            )
        with self._store.together():
            self._store.remove(name)
            self._store.record(name, desired[name].generation, "", "unwanted", f"deleted by {who}")
        await self._journal.announce()
        self._wake.set()

    async def listen(self, address: HeadAddress, who: str) -> frozenset[str]:
        """Lets the gateways listen at the endpoint of this address. Streams on the old one go on.

        Returns the gateways that have not changed yet. Raises ControlError if one cannot listen there.
        """
        if address == self._address:
            return frozenset()
        before, self._address = self._address, address
        late = await self._known_to_gateways()
        troubles = [report for report in self._reports.gateways() if report.trouble]
        if troubles:
            self._address = before
            await self._known_to_gateways()
            raise ControlError(
                troubles[0].trouble, means=f"The gateway listens at {troubles[0].url}, as before."
            )
        await self._journal.record("", 0, "", "gateway", f"the endpoint is {address.endpoint} now, by {who}")
        return late

    async def drain(self, node: str, who: str) -> None:
        """Stores that nothing is to be started on a node. Raises ControlError if the fleet has no such node."""
        known = [one.name for one in self._watch.reports]
        if known and node not in known:  # it has not looked yet: the command checks the inventory
            raise ControlError(f"There is no node {node!r}.", do=f"Nodes: {', '.join(known)}.")
        with self._store.together():
            if not self._store.drain(node, who):
                return
            self._store.record("", 0, node, "drain", f"{node} is drained by {who}")
        await self._journal.announce()

    async def undrain(self, node: str, who: str) -> None:
        """Takes that back. Raises ControlError if the node is not drained."""
        with self._store.together():
            if not self._store.undrain(node):
                names = ", ".join(one.node for one in self._store.drained()) or "none"
                raise ControlError(f"{node} is not drained.", do=f"Drained nodes: {names}.")
            self._store.record("", 0, node, "drain", f"{node} may be used again, by {who}")
        await self._journal.announce()

    async def drain_group(self, group: GroupKey, who: str) -> frozenset[str]:
        """Lets the gateways send no new requests to a group; its engine and what runs on it go on.

        Returns the gateways that do not know it yet. Raises ControlError if there is no such group.
        """
        if group not in self._present():
            names = ", ".join(sorted(map(name_of, self._present()))) or "none"
            raise ControlError(f"There is no group {name_of(group)}.", do=f"Groups: {names}.")
        with self._store.together():
            if self._store.drain_group(group, who):
                words = f"no new requests go to it: it is drained by {who}"
                self._store.record(group[0], group[1], name_of(group), "drain", words)
        await self._journal.announce()
        return await self._known_to_gateways()

    async def undrain_group(self, group: GroupKey, who: str) -> frozenset[str]:
        """Takes that back. Returns the gateways that do not know it yet. Raises ControlError if it is not drained."""
        with self._store.together():
            if not self._store.undrain_group(group):
                names = ", ".join(one.name for one in self._store.drained_groups()) or "none"
                raise ControlError(f"{name_of(group)} is not drained.", do=f"Drained groups: {names}.")
            words = f"it gets requests again, by {who}"
            self._store.record(group[0], group[1], name_of(group), "drain", words)
        await self._journal.announce()
        return await self._known_to_gateways()

    def pause(self) -> None:
        """Stops every group and keeps the desired state, for `sparkfleet down`."""
        self._paused = True
        self._wake.set()

    # answers of the API

    def status(self) -> FleetStatus:
        """Current status of the whole fleet."""
        return FleetStatus(
            fleet=self._fleet,
            sparkfleet=__version__,
            endpoint=self._address.endpoint,
            listening=self._address.listening,
            gateways=self._reports.gateways(),
            nodes=self._watch.reports,
            failures=self._store.failures(),
            drained=self._store.drained(),
            drained_groups=self._store.drained_groups(),
            deployments=self._view(self._running()).deployments(),
            last_event=self._store.last_event_id(),
            trouble=self.ends.trouble,
            warnings=(
                *self.warnings.values(),
                *self._watch.overdue(),
                *self._watch.spoilt(),
                *self._unpinned(),
            ),
        )

    def _unpinned(self) -> Iterator[str]:
        """Deployments of an older release that let code of a checkpoint run without a commit."""
        for desired in self._wanted().values():
            for problem in desired.code_problems:
                yield f"{desired.name}: {problem}"

    def samples(self) -> Iterator[Sample]:
        """Samples of the present state, for Prometheus."""
        yield from fleet_samples(self.status(), self._wanted(), self._store.standings())
        yield from key_samples(self._store.keys())

    def history(self, name: str) -> tuple[Desired, ...]:
        """The generations of a deployment that are kept, oldest first."""
        return self._store.history(name)

    def stopped(self) -> tuple[Desired, ...]:
        """The last generation of each deployment that was deleted, as far as it is kept."""
        return self._store.stopped()

    def targets(self, own: str) -> list[TargetGroup]:
        """Everything that Prometheus should scrape, in its `http_sd` form. `own` is the controller's host:port."""
        return scrape_targets(self._reports.groups(), self._reports.gateways(), own)

    async def events(self, after: int, deployment: str | None, wait_s: float) -> tuple[Event, ...]:
        """Events with an id above `after`; waits for one, at most `wait_s`."""
        return await self._journal.events(after, deployment, wait_s)

    async def table(self, known: int, wait_s: float = 10.0, replica: str = "") -> RoutingTable:
        """The gateway's table; waits for one other than `known`, at most `wait_s`. Version 0: none was published yet."""
        return await self._publisher.table(known, wait_s, replica)

    async def create_key(
        self, name: str, limits: KeyLimits | None = None
    ) -> tuple[str, KeyEntry, frozenset[str]]:
        """Creates an API key (see `ApiKeys.create`). Returns its text, its entry, and gateways that do not know it yet."""
        text, key = await self.keys.create(name, limits or KeyLimits())
        return text, key, await self._known_to_gateways()

    async def limit_key(self, name_or_id: str, limits: KeyLimits) -> tuple[KeyEntry, frozenset[str]]:
        """Replaces the limits of a key. Returns its entry, and gateways that do not know them yet."""
        key = await self.keys.limit(name_or_id, limits)
        return key, await self._known_to_gateways()

    async def rotate_key(self, name_or_id: str, until: float) -> tuple[str, KeyEntry, frozenset[str]]:
        """Rotates a key (see `ApiKeys.rotate`). Returns its text, its entry, and gateways that do not know it yet."""
        text, key = await self.keys.rotate(name_or_id, until)
        return text, key, await self._known_to_gateways()

    async def revoke_key(self, name_or_id: str) -> tuple[KeyEntry, frozenset[str]]:
        """Revokes a key (see `ApiKeys.revoke`). Returns its entry, and gateways that may still accept it."""
        key = await self.keys.revoke(name_or_id)
        return key, await self._known_to_gateways()

    async def _known_to_gateways(self) -> frozenset[str]:
        """Publishes the table and waits until the gateways have it, at most `CONFIRM_S`. Returns those that have not."""
        await self._publish()
        return await self._publisher.held_by(
            lambda: [report.replica for report in self._reports.gateways()], CONFIRM_S
        )

    def key_rows(self) -> tuple[KeyRow, ...]:
        """Each key with its last use and the deployments that it may use."""
        used: dict[str, float] = dict(self._store.keys_used())
        for report in self._reports.gateways():
            used |= {key: at for key, at in report.keys_used.items() if at > used.get(key, 0.0)}
        wanted = self._store.desired()
        return tuple(
            KeyRow(
                id=key.id,
                name=key.name,
                created=created,
                used=used.get(key.id),
                may_use=tuple(
                    n
                    for n, one in wanted.items()
                    if key.limits.inference and (not one.spec.keys or key.name in one.spec.keys)
                ),
                limits=key.limits,
                former_until=key.former.until if key.former is not None else None,
            )
            for key, created in self._store.keys_created()
        )

    def is_still_wanted(self, group: GroupKey, rung: int) -> bool:
        """True if the engine of a group at this rung is to run on, although its actor is being stopped."""
        return is_wanted(self._state(), group, rung)

    def bars(self, nodes: Sequence[str]) -> str:
        """The reason for which an engine may not start on these nodes now, in words; "" if it may."""
        return barred_by(self._state(), nodes)

    # reports of groups and gateways

    async def report(self, report: GroupReport) -> None:
        """Takes a group's report."""
        before = self._reports.newest(report.name)
        self._phases.see(report)
        self._starts.see(report)
        if self._reports.group(report):
            await self._phase_changed(report)
        elif before is not None and before.measured != report.measured:
            await self._measured(report)
        elif report.detail and report.phase in BEGINNING:
            await self._journal.record_once(
                report.deployment, report.generation, report.name, "progress", report.detail
            )

    async def register_gateway(self, report: GatewayReport) -> bool:
        """Takes a gateway replica's report of its address. True if its usage is stored."""
        self._store.use_keys(report.keys_used)
        is_stored = self._count_usage(report)
        if self._reports.gateway(report):
            words = f"gateway listening on {report.url}"
            words += f"; {report.trouble}" if report.trouble else ""
            words += f"; the one before: {report.after}" if report.after else ""
            words += f"; {report.usage_trouble}" if report.usage_trouble else ""
            await self._journal.record("", 0, report.replica, "gateway", words)
        return is_stored

    def _count_usage(self, report: GatewayReport) -> bool:
        """Stores a replica's usage, at most every `USAGE_S`; that of all when a new one reports: another may have ended."""
        now = self._steady()
        for former in report.former:
            self._store.add_usage(former.replica, former.usage)
        if report.replica not in self._usage_stored:
            self._usage_stored = {one.replica: now for one in (*self._reports.gateways(), report)}
            for one in (*self._reports.gateways(), report):
                self._store.add_usage(one.replica, one.usage)
        elif now - self._usage_stored[report.replica] >= USAGE_S:
            self._usage_stored[report.replica] = now
            self._store.add_usage(report.replica, report.usage)
        return self._usage_stored[report.replica] == now

    def usage(self, days: int) -> tuple[UsageRow, ...]:
        """Usage of the last days by day, key and model, with what the gateways have reported so far."""
        for report in self._reports.gateways():
            self._store.add_usage(report.replica, report.usage)
        return self._store.usage(days)

    async def resumed(self, reason: str) -> None:
        """Records that it works again, and for what it had waited."""
        await self._journal.record(
            "", 0, SUBJECT, "store", f"the controller works again; it had waited: {reason}"
        )

    async def record_hang(self, reason: str) -> None:
        """Records the end of the controller before, which hung; "" for none."""
        if reason:
            await self._journal.record("", 0, "controller", "error", f"the controller before: {reason}")

    # the loop

    async def run(self) -> None:
        """Reconciles until it is cancelled. A failed round is recorded, and the next one tries again."""
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
        """Reads the state of the nodes once, as `run` does every two seconds."""
        await self._watch.look()

    async def round(self) -> None:
        """Reconciles once; a failure is recorded, and the next round tries again.

        Raises:
            StoreError: the store may no longer be used.
        """
        try:
            await self.reconcile()
            self.warnings.pop("reconcile", None)
        except StoreError:
            raise
        except Exception as error:
            if (damage := corrupted(self._store.path, error)) is not None:
                raise damage from error
            self.warnings["reconcile"] = f"The fleet could not be reconciled: {_shortly(error)}."
            log.exception("a round of reconciling failed")
            with contextlib.suppress(sqlite3.Error):  # a full disk may be the cause of the failure
                await self._journal.record_once(
                    "", 0, "reconcile", "error", f"could not reconcile: {error!r}"
                )

    async def reconcile(self) -> None:
        """Runs one round: observes, decides, acts, publishes. Ends after observing if that shows nothing new."""
        await self._notice_clock()
        before, self._seen = self._seen, await self._apps.list()
        self._check(self._seen)
        await self._sweep_after(before)
        self._effects.forget_answers([app.name for app in self._seen if app.status == "failed"])
        self._reports.forget(self._kept())
        self._forget_drained_groups()
        inputs, now = self._inputs(), self._steady()
        if inputs == self._at_rest_with and now - self._rests_since < LONGEST_REST_S:
            return
        # Before the first wait: a client that reads "ready" requests the gateway next.
        await self._publish()
        state = await self._observed()
        actions = decide(state, self._clocks())
        await self._effects.carry_out(actions, state.wanted)
        await self._publish()
        rests = not actions and bool(self._published_from) and is_at_rest(state)
        self._at_rest_with, self._rests_since = (inputs, now) if rests else ((), now)

    def _inputs(self) -> tuple[object, ...]:
        """Everything that a round depends on beside time, and memory that a generation waits for."""
        nodes = self._effects.nodes
        return (*self._table_inputs(None), nodes.boots, nodes.away_since, self._effects.pending)

    def _forget_drained_groups(self) -> None:
        """Forgets drained groups that no longer exist: their names do not come again."""
        for one in self._store.drained_groups():
            if one.group not in self._present():
                self._store.undrain_group(one.group)

    async def _notice_clock(self) -> None:
        """Lets the groups' actors be watched again if the wall clock was set back."""
        if back_s := self._wall.set_back_s():
            await self._apps.renew()
            self._wall.accept()
            words = (
                f"the clock of the head was set back by {back_s:.0f} s: Ray Serve's controller is restarted"
            )
            await self._journal.record("", 0, "clock", "clock", words)

    async def _sweep_after(self, before: Sequence[App]) -> None:
        """Ends what retired groups left on the nodes: Serve may have ended a group's actor while it started its ranks."""
        retired = {app.group for app in before if app.status == "retiring"}
        if retired - {app.group for app in self._seen}:
            keep = self._kept() | {app.group for app in before} - retired
            with contextlib.suppress(TimeoutError):  # their leases end them, too
                async with asyncio.timeout(SWEEP_S):
                    await self._nodes.sweep(keep)

    def _state(self, available: Mapping[str, int] | None = None) -> FleetState:
        """Snapshot for the policy."""
        return FleetState(
            desired=self._store.desired(),
            apps=self._seen,
            reports=self._reports.groups(),
            fresh=frozenset(report.name for report in self._reports.fresh()),
            standings=self._store.standings(),
            starts=self._store.starts(),
            older={(name, *one.member): _nodes(one) for name in self._wanted() for one in self._older(name)},
            nodes=self._effects.nodes,
            available=available or {},
            drained=frozenset(one.node for one in self._store.drained()),
            pending=self._effects.pending,
            paused=self._paused,
        )

    async def _observed(self) -> FleetState:
        """Snapshot for the policy, with the free memory of the nodes that answer if a generation waits for memory."""
        state = self._state()
        if not depends_on_memory(state):
            return state
        found = {node.name: node.memory_available for node in await self._nodes.look()}
        return self._state({name: memory for name, memory in found.items() if memory is not None})

    async def _leave(self, group: GroupKey) -> None:
        """Takes a group out of the gateways' table before it ends, and keeps it out for the rest of the round."""
        await self._publish(without=group)
        self._seen = tuple(
            app.model_copy(update={"status": "retiring"}) if app.group == group else app for app in self._seen
        )

    def _steady(self) -> float:
        return self._clocks().steady

    def _wanted(self) -> dict[str, Desired]:
        return {} if self._paused else self._store.desired()

    def _kept(self) -> frozenset[GroupKey]:
        """Groups that are desired or still have an application."""
        there = {app.group for app in self._seen}
        return frozenset(there.union(*(one.groups for one in self._wanted().values())))

    def _present(self) -> frozenset[GroupKey]:
        """The same, also while the fleet is being stopped: `up` starts them again."""
        return self._kept().union(*(one.groups for one in self._store.desired().values()))

    # publishing

    async def _publish(self, without: GroupKey | None = None) -> None:
        """Publishes the table; costs nothing while all that it is made of is as it was."""
        inputs = self._table_inputs(without)
        if inputs == self._published_from:
            return
        current = await self._publisher.publish(
            self._view(), self._store.keys(), without, self._address.listening
        )
        self._published_from = inputs if current else ()

    def _table_inputs(self, without: GroupKey | None) -> tuple[object, ...]:
        """Everything that the gateways' table depends on; the store by the number of its writes."""
        return (
            without,
            self._paused,
            self._address.listening,
            self._publisher.version,
            self._store.writes,
            [(app.group, app.status) for app in self._seen],
            self._reports.outline(),
            self._effects.pending.waiting,
            self._watch.lost(),
            self._starts.ready_at(),
        )

    def _running(self) -> dict[str, tuple[RunningGroup, ...]]:
        """Groups of each deployment that run or start, each at its rung."""
        return {
            name: tuple(one.at_its_rung() for one in (*self._store.running(desired), *self._older(name)))
            for name, desired in self._wanted().items()
        }

    def _view(self, running: Mapping[str, tuple[RunningGroup, ...]] | None = None) -> FleetSnapshot:
        state = self._state()
        wanted = state.wanted
        return FleetSnapshot(
            wanted,
            self._seen,
            state.reports,
            self._reports.fresh(),
            failed={name for name, one in wanted.items() if state.has_given_up(one)},
            published=self._publisher.published(),
            passed={name: _passed(state, one) for name, one in wanted.items()},
            running=running or {},
            stranded={name: _stranded(state, one) for name, one in wanted.items()},
            lost={name: _lost(state, one, self._watch.lost()) for name, one in wanted.items()},
            ready_at=self._starts.ready_at(),
            drained={one.group for one in self._store.drained_groups()},
        )

    async def _measured(self, report: GroupReport) -> None:
        """Keeps a measurement that a group took while it served."""
        self._store.measure(report.deployment, report.generation, report.name, dict(report.measured))
        await self._journal.record(
            report.deployment, report.generation, report.name, "measured", _speed_words(report)
        )

    def _count_failure(self, report: GroupReport) -> None:
        found = report.diagnosis
        self._metrics.restarts.labels(
            report.deployment, (found.cause if found else Cause.UNKNOWN).value
        ).inc()
        if report.complaint:
            self._metrics.canary_failures.labels(report.deployment).inc()

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
            self._count_failure(report)
        await self._journal.record(
            report.deployment, report.generation, report.name, report.phase.value, words
        )
        self._wake.set()


def _nodes(one: RunningGroup) -> tuple[str, ...]:
    """Nodes of a running group at its rung."""
    return one.plan.ladder[min(one.rung, len(one.plan.ladder) - 1)].candidate.shape.nodes


def _shortly(error: Exception) -> str:
    return " ".join(repr(error).split())[:300]


def _passed(state: FleetState, desired: Desired) -> tuple[tuple[str, ...], ...]:
    """Reasons of each group of a deployment for leaving the rungs above its current one."""
    return tuple(state.standing(group).passed for group in desired.groups)


def _stranded(state: FleetState, desired: Desired) -> str:
    """Nodes that a deployment's group waits for and that may never return, in words; "" if there are none."""
    return next(
        (state.pending.waiting[group] for group in desired.groups if group in state.pending.waiting), ""
    )


def _lost(state: FleetState, desired: Desired, lost: Mapping[str, float]) -> str:
    """Nodes of a deployment's groups that do not answer, in words; "" if all do."""
    used = {node for group in desired.groups for node in nodes_of(desired, group, state.standing(group))}
    words = [
        f"{node} does not answer" + (f" (for {seconds:.0f} s)" if seconds else "")
        for node, seconds in sorted(lost.items())
        if node in used
    ]
    return ", ".join(words)


def _speed_words(report: GroupReport) -> str:
    """`TTFT 24 ms, 17.3 tok/s for one user (3 streams, within 4 %)`; "" if it was not measured."""
    measured = report.measured
    if not {"ttft_ms", "decode_tps"} <= measured.keys():
        return ""
    runs, spread = measured.get("measured_runs", 1), measured.get("decode_tps_spread", 0.0)
    among = f" ({runs:.0f} streams, within {spread:.0%})" if runs > 1 else ""
    return f"TTFT {measured['ttft_ms']:.0f} ms, {measured['decode_tps']:.1f} tok/s for one user{among}"


def _ready_words(report: GroupReport) -> str:
    how = "adopted, ready after" if report.adopted else "started in"
    words = f"{how} {report.started_s or 0:.1f} s"
    if speed := _speed_words(report):
        words += f"; measured {speed}"
    if report.unchecked:
        words += f"; not checked: {', '.join(report.unchecked)}"
    if report.rung:
        words += f"; at rung {report.rung + 1} of its ladder"
    return words
