"""Commands of the API: changes of the desired state and of drains, each stored with its event in one transaction.

`request` is the id of a client's request, "" if it has none. Its second try changes nothing and is answered as the first
one: the id is stored with the event, so a controller that was restarted between them knows it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkfleet.controlplane.gateway_control import GatewayControl
from sparkfleet.controlplane.node_watch import NodeWatch
from sparkfleet.controlplane.observed_fleet import ObservedFleet
from sparkfleet.controlplane.policy.actions import UnloadDeployment
from sparkfleet.controlplane.policy.start_choice import startable
from sparkfleet.controlplane.policy.state_after import pending_after
from sparkfleet.controlplane.state.demand_cache import LOAD_S
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.tables.bench_table import BenchResult
from sparkfleet.controlplane.views.bench_words import bench_words
from sparkfleet.errors import ControlError
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.fields import quote
from sparkfleet.telemetry.metrics import ControlMetrics


class FleetCommands:
    """Changes that people and programs request. `wake`: lets the controller begin a round now."""

    def __init__(
        self,
        fleet: ObservedFleet,
        watch: NodeWatch,
        gateways: GatewayControl,
        event_log: EventLog,
        wake: Callable[[], None],
        *,
        metrics: ControlMetrics,
    ) -> None:
        self._fleet = fleet
        self._store = fleet.store
        self._watch = watch
        self._gateways = gateways
        self._event_log = event_log
        self._wake = wake
        self._metrics = metrics

    async def put(
        self,
        spec: Deployment,
        plan: DeploymentPlan,
        who: str,
        retry: bool = False,
        base: int | None = None,
        *,
        request: str = "",
    ) -> tuple[Desired, bool]:
        """Applies a deployment (see `DeploymentTable.put`); returns the desired state, and True if it changed."""
        if (done := self._store.events.of_request(request)) is not None:
            kept = self._store.deployments.history(done.deployment)
            return next(one for one in kept if one.generation == done.generation), True
        older = self._fleet.older(spec.name)
        with self._store.together():
            desired, changed = self._store.deployments.put(spec, plan, who, retry, older, base=base)
            if changed:
                self._store.events.record(
                    desired.name, desired.generation, "", "wanted", f"applied by {who}", request=request
                )
        if changed:
            await self._event_log.announce()
            self._wake()
        return desired, changed

    async def remove(self, name: str, who: str, request: str = "") -> None:
        """Deletes a deployment. Raises ControlError if it does not exist."""
        if self._store.events.of_request(request) is not None:
            return
        desired = self._store.deployments.desired()
        if name not in desired:
            raise ControlError(
                f"There is no deployment {quote(name)}.",
                do=f"Existing deployments: {', '.join(sorted(desired)) or 'none'}.",
            )
        with self._store.together():
            self._store.deployments.remove(name)
            self._store.events.record(
                name, desired[name].generation, "", "unwanted", f"deleted by {who}", request=request
            )
        self._fleet.demand.unload(name)
        await self._event_log.announce()
        self._wake()

    async def load(self, name: str, who: str, for_s: float = LOAD_S) -> None:
        """Lets a deployment on demand start as if a request waited for it, for so many seconds.

        A command that waits repeats it.

        Raises:
            ControlError: it does not exist, is not on demand, or cannot start until somebody does something about it.
        """
        desired = self._on_demand(name)
        state = self._fleet.state()
        if startable(state, desired) is None:
            raise ControlError(
                f"{name} did not start the last time.",
                do=f"`sparkfleet describe {name}` shows the reason; `sparkfleet apply FILE --retry` tries again.",
            )
        if drained := [one.name for one in self._store.drains.groups() if one.group in desired.groups]:
            raise ControlError(
                f"{', '.join(drained)} is drained: it would get no request.",
                do=f"`sparkfleet undrain {drained[0]}` lets it get requests.",
            )
        if self._fleet.demand.load(name, who, for_s):
            self._wake()

    async def unload(self, name: str, who: str, request: str = "") -> bool:
        """Ends a deployment on demand once its requests have ended. False if it was not loaded.

        Raises:
            ControlError: it does not exist, or is not on demand.
        """
        if self._store.events.of_request(request) is not None:
            return True
        desired = self._on_demand(name)
        self._fleet.demand.unload(name)
        if name not in self._fleet.state().to_run:
            return False
        reason = f"unloaded by {who}"
        action = UnloadDeployment(
            deployment=name, generation=desired.generation, kind="person", reason=reason
        )
        with self._store.together():
            self._store.events.record(name, desired.generation, "", "unload", action.reason, request=request)
        self._metrics.unloads.labels(name, action.kind).inc()
        self._fleet.pending = pending_after(self._fleet.pending, action, self._fleet.clocks())
        await self._event_log.announce()
        self._wake()
        return True

    def _on_demand(self, name: str) -> Desired:
        desired = self._fleet.applied().get(name)
        if desired is None:
            names = ", ".join(sorted(self._fleet.applied())) or "none"
            raise ControlError(f"There is no deployment {quote(name)}.", do=f"Existing deployments: {names}.")
        if not desired.spec.on_demand:
            raise ControlError(
                f"{name} is not on demand: it runs always.",
                do="`on_demand: true` in its file, and `sparkfleet apply FILE`, let it be loaded and unloaded.",
            )
        return desired

    async def keep_bench(
        self, name: str, results: Sequence[BenchResult], who: str, request: str = ""
    ) -> None:
        """Stores speeds that were measured of a deployment. Raises ControlError if it does not exist."""
        if self._store.events.of_request(request) is not None:
            return
        if (desired := self._store.deployments.desired().get(name)) is None:
            raise ControlError(f"There is no deployment {quote(name)}.", means="Its speeds were not kept.")
        with self._store.together():
            for one in results:
                self._store.bench.keep(one)
            words = f"measured by {who}: {'; '.join(bench_words(one) for one in results)}"
            self._store.events.record(name, desired.generation, "", "bench", words, request=request)
        await self._event_log.announce()

    async def drain(self, node: str, who: str) -> None:
        """Stores that nothing is to be started on a node. Raises ControlError if the fleet has no such node."""
        self._require_known(node)
        with self._store.together():
            if not self._store.drains.drain(node, who):
                return
            self._store.events.record("", 0, node, "drain", f"{node} is drained by {who}")
        await self._event_log.announce()

    def _require_known(self, node: str) -> None:
        known = [one.name for one in self._watch.reports]
        if known and node not in known:  # it has not looked yet: the command checks the inventory
            raise ControlError(f"There is no node {quote(node)}.", do=f"Nodes: {', '.join(known)}.")

    async def undrain(self, node: str, who: str, request: str = "") -> None:
        """Takes that back. Raises ControlError if the node is not drained."""
        if self._store.events.of_request(request) is not None:
            return
        with self._store.together():
            if not self._store.drains.undrain(node):
                self._require_known(node)
                names = ", ".join(one.node for one in self._store.drains.nodes()) or "none"
                raise ControlError(f"{node} is not drained.", do=f"Drained nodes: {names}.")
            self._store.events.record(
                "", 0, node, "drain", f"{node} may be used again, by {who}", request=request
            )
        await self._event_log.announce()

    async def drain_group(self, group: GroupKey, who: str) -> frozenset[str]:
        """Lets the gateways send no new requests to a group; its engine and what runs on it go on.

        Returns the gateways that do not know it yet. Raises ControlError if there is no such group.
        """
        present = self._fleet.present()
        if group not in present:
            names = ", ".join(sorted(map(name_of, present))) or "none"
            raise ControlError(f"There is no group {name_of(group)}.", do=f"Groups: {names}.")
        with self._store.together():
            if self._store.drains.drain_group(group, who):
                words = f"no new requests go to it: it is drained by {who}"
                self._store.events.record(group[0], group[1], name_of(group), "drain", words)
        await self._event_log.announce()
        return await self._gateways.confirmed()

    async def undrain_group(self, group: GroupKey, who: str, request: str = "") -> frozenset[str]:
        """Takes that back. Returns the gateways that do not know it yet. Raises ControlError if it is not drained."""
        if self._store.events.of_request(request) is not None:
            return await self._gateways.confirmed()
        with self._store.together():
            if not self._store.drains.undrain_group(group):
                names = ", ".join(one.name for one in self._store.drains.groups()) or "none"
                raise ControlError(f"{name_of(group)} is not drained.", do=f"Drained groups: {names}.")
            words = f"it gets requests again, by {who}"
            self._store.events.record(group[0], group[1], name_of(group), "drain", words, request=request)
        await self._event_log.announce()
        return await self._gateways.confirmed()

    def pause(self) -> None:
        """Stops every group and keeps the desired state, for `sparkfleet down`."""
        self._fleet.paused = True
        self._wake()

    def resume(self) -> None:
        """Lets the groups run again, after a `sparkfleet down` that did not end."""
        self._fleet.paused = False
        self._wake()
