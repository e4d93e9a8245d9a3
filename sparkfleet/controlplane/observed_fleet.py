"""The fleet as the controller knows it between rounds: the store, and in memory what it observes again after a restart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from sparkfleet.controlplane.clocks import Clocks
from sparkfleet.controlplane.nodes import SweepList
from sparkfleet.controlplane.policy.demand.memory_claims import waits_for_long
from sparkfleet.controlplane.policy.pending_starts import learnt_boots
from sparkfleet.controlplane.policy.state import FleetState, Pending, SeenNodes
from sparkfleet.controlplane.state.demand_cache import DemandCache
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.report_cache import ReportCache
from sparkfleet.controlplane.state.start_forecast import StartForecast
from sparkfleet.controlplane.state.status import App, NodeReport
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.views.ready_words import STARTED, started_s_of
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.planner.capacity.start_time import predicted_start
from sparkfleet.planner.report.carry_over import RunningGroup
from sparkfleet.planner.types.plan import Candidate, Rung


class ObservedFleet:
    """Desired and observed state of the fleet, and the groups that follow from both."""

    def __init__(self, store: Store, here: NodeReport, clocks: Clocks) -> None:
        self.store = store
        self.clocks = clocks
        self.apps: tuple[App, ...] = ()
        """Groups that exist, as they were listed last."""
        self.is_listed = False
        """False until Ray Serve has listed them once: until then no group in `apps` does not mean that none serves."""
        self.nodes = SeenNodes.only(here)
        self.pending = Pending()
        self.paused = False
        """True while every group is to stop and the desired state is kept."""
        self.reports = ReportCache(lambda: clocks().steady)
        self.forecast = StartForecast(lambda: clocks().unix, self._earlier_start_s, self._predicted_start_s)
        self.demand = DemandCache(lambda: clocks().steady)

    def see_nodes(self, nodes: Collection[NodeReport], began: float) -> None:
        """Takes a reading of the nodes; `began` is its start, on the monotonic clock."""
        self.nodes = self.nodes.seen(nodes, began, self.clocks())
        # At once: if a node goes down before the next round, its boot would never be known.
        for group, boots in learnt_boots(self.store.groups.starts(), self.nodes).items():
            self.store.groups.begin_start(group, boots)

    def answering(self) -> frozenset[str]:
        """Nodes that answered at the last look. A call of any other one would wait for it, for as long as it may."""
        return frozenset(name for name, boot in self.nodes.boots.items() if boot)

    def see_apps(self, apps: tuple[App, ...]) -> None:
        """Takes Ray Serve's list of the groups that exist."""
        self.apps, self.is_listed = apps, True

    def retire(self, group: GroupKey) -> None:
        """Counts a group as retiring for the rest of the round."""
        self.apps = tuple(
            app.model_copy(update={"status": "retiring"}) if app.group == group else app for app in self.apps
        )

    def forget_gone(self) -> None:
        """Drops what groups have reported that are neither desired nor have an application."""
        kept = self.kept()
        self.reports.forget(kept)
        self.forecast.forget(kept)

    def applied(self) -> dict[str, Desired]:
        """Deployments that are to serve, those that wait for demand included; none while paused."""
        return {} if self.paused else self.store.deployments.desired()

    def kept(self) -> frozenset[GroupKey]:
        """Groups that are desired or still have an application."""
        there = {app.group for app in self.apps}
        loaded = FleetState(self.applied(), self.apps, pending=self.pending).to_run
        return frozenset(there.union(*(one.groups for one in loaded.values())))

    def sweep_list(self) -> SweepList:
        """Groups and files that a sweep leaves alone now."""
        deployments = self.store.deployments
        return SweepList(self.kept(), deployments.generations(), deployments.with_kv_on_disk())

    def present(self) -> frozenset[GroupKey]:
        """The same, also while the fleet is being stopped: `up` starts them again."""
        return self.kept().union(*(one.groups for one in self.store.deployments.desired().values()))

    def older(self, name: str) -> list[RunningGroup]:
        """Groups of a deployment that run at a rung of an earlier plan, are no longer desired and not given up."""
        wanted = self.store.deployments.desired().get(name)
        alive = {
            app.group for app in self.apps if app.deployment == name and app.status in ("starting", "running")
        }
        if not alive or (wanted is not None and alive.issubset(wanted.groups)):
            return []  # the usual case, without reading the history
        alive -= {group for group, one in self.store.groups.standings().items() if one.given_up}
        return [
            one
            for group, one in self._planned_earlier(name, alive).items()
            if wanted is None or group not in wanted.groups
        ]

    def ending(self) -> dict[GroupKey, Rung]:
        """Groups that are being retired, of generations that are kept, each at its rung."""
        found: dict[GroupKey, Rung] = {}
        retiring = {app.group for app in self.apps if app.status == "retiring"}
        for name in {group[0] for group in retiring}:
            earlier = self._planned_earlier(name, retiring)
            found |= {group: one.plan.rung_at(one.rung) for group, one in earlier.items()}
        return found

    def _planned_earlier(self, name: str, groups: Collection[GroupKey]) -> dict[GroupKey, RunningGroup]:
        """Selects those of some groups that are in a kept generation of a deployment.

        The rung is the reported one, or the stored one of a group that has not reported to this process yet.
        """
        rungs = {group: one.rung for group, one in self.store.groups.standings().items()}
        rungs |= {report.group: report.rung for report in self.reports.groups()}
        plans = {
            key: plan
            for one in self.store.deployments.history(name)
            for key, plan in one.planned()
            if key in groups
        }
        return {
            key: RunningGroup(member=key[1:], plan=plan, rung=rungs.get(key, 0))
            for key, plan in plans.items()
        }

    def running(self) -> dict[str, tuple[RunningGroup, ...]]:
        """Groups of each deployment that run, start, or wait for demand, each at its rung."""
        return {
            name: tuple(
                one.at_its_rung() for one in (*self.store.deployments.running(desired), *self.older(name))
            )
            for name, desired in self.applied().items()
        }

    def rung_of(self, report: GroupReport) -> Rung | None:
        """Returns the rung that a group of the newest plans reports; None for any other group."""
        desired = self.store.deployments.desired().get(report.deployment)
        if desired is None or report.group not in desired.groups:
            return None
        return desired.plan_of(report.group).rung_at(report.rung)

    def candidate_of(self, report: GroupReport) -> Candidate | None:
        """Returns the candidate of that rung."""
        rung = self.rung_of(report)
        return rung.candidate if rung is not None else None

    def _earlier_start_s(self, deployment: str) -> float | None:
        """Seconds of a deployment's last start in the events."""
        event = self.store.events.last_of(deployment, GroupPhase.READY.value, STARTED)
        return started_s_of(event.message) if event is not None else None

    def _predicted_start_s(self, report: GroupReport) -> float | None:
        rung = self.rung_of(report)
        found = predicted_start(rung.candidate, rung.prediction.weights_bytes) if rung is not None else None
        return found.first.mid if found is not None else None

    def drained(self) -> frozenset[str]:
        """Nodes on which nothing is to be started."""
        return frozenset(one.node for one in self.store.drains.nodes())

    def state(
        self, available: Mapping[str, int] | None = None, unusable: Mapping[str, str] | None = None
    ) -> FleetState:
        """Snapshot for the policy.

        Args:
            available: free memory of each node that answered, bytes; left out if nothing waits for memory.
            unusable: nodes on which no engine can start, each with the reason; left out in the same case.
        """
        older = {(name, *one.member): one for name in self.applied() for one in self.older(name)}
        state = FleetState(
            desired=self.store.deployments.desired(),
            apps=self.apps,
            reports=self.reports.groups(),
            fresh=frozenset(report.name for report in self.reports.fresh()),
            standings=self.store.groups.standings(),
            starts=self.store.groups.starts(),
            older={group: one.candidate for group, one in older.items()},
            older_needs={group: _most(one) for group, one in older.items()},
            ending=self.ending(),
            nodes=self.nodes,
            available=available or {},
            unusable=unusable or {},
            drained=self.drained(),
            demand=self.demand.present(),
            pending=self.pending,
            paused=self.paused,
        )
        now = self.clocks()
        failed = [
            one
            for one in state.applied.values()
            if state.has_given_up(one) or (one.spec.on_demand and waits_for_long(state, one, now))
        ]
        served = {one.name: self.store.deployments.last_served(one) for one in failed}
        return replace(state, last_served={name: one for name, one in served.items() if one is not None})


def _most(one: RunningGroup) -> int:
    """Bytes that a group may take of each of its nodes at its rung."""
    return int(one.plan.rung_at(one.rung).prediction.memory_bytes_per_rank.high)
