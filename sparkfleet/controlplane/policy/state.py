"""Snapshot of the fleet: the whole input of the policy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from sparkfleet.controlplane.state.demand import RequestDemand
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.status import App, NodeReport
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport
from sparkfleet.planner.types.plan import Candidate, Rung

GONE_S = 180.0
"""Seconds after which a group that can run elsewhere no longer waits for an absent node: a Spark boots in less."""

NEVER_FAILED = Standing()
"""Position of a group that has none in the store."""


@dataclass(frozen=True)
class Now:
    """A moment on both clocks, seconds."""

    unix: float
    """Wall clock, for times that are stored."""
    steady: float
    """A clock that only goes forward, for waits within one process."""

    @classmethod
    def at(cls, seconds: float) -> Now:
        """The same moment on both clocks, for a simulation."""
        return cls(unix=seconds, steady=seconds)


@dataclass(frozen=True)
class SeenNodes:
    """Latest reading of the nodes."""

    here: str = ""
    """The node that the controller runs on, which is always present."""
    boots: Mapping[str, str] = field(default_factory=dict)
    """Boot id of each node that is part of the fleet; "" if it was not read."""
    away_since: Mapping[str, float] = field(default_factory=dict)
    """Nodes that are not part of the fleet, with the time since (steady clock)."""
    looked_at: float | None = None
    """Time at which the last reading of all nodes began (steady clock); None before the first."""

    @classmethod
    def only(cls, here: NodeReport) -> SeenNodes:
        """The controller's own node only, before the first reading."""
        return cls(here=here.name, boots={here.name: here.boot})

    def seen(self, nodes: Collection[NodeReport], began: float, now: Now) -> SeenNodes:
        """The nodes after a reading that began at `began` (steady clock)."""
        own = {self.here: self.boots[self.here]} if self.here in self.boots else {}
        boots = {node.name: node.boot for node in nodes if node.joined} | own
        away = {node.name: self.away_since.get(node.name, now.steady) for node in nodes if not node.joined}
        return replace(self, boots=boots, away_since=away, looked_at=began)

    def gone(self, now: Now) -> frozenset[str]:
        """Nodes that have been away for `GONE_S` or longer."""
        return self._away_for_long(now.steady)

    def gone_when_seen(self) -> frozenset[str]:
        """The same at the last reading of all nodes."""
        return frozenset() if self.looked_at is None else self._away_for_long(self.looked_at)

    def _away_for_long(self, steady: float) -> frozenset[str]:
        return frozenset(name for name, since in self.away_since.items() if steady - since >= GONE_S)


@dataclass(frozen=True)
class Pending:
    """Memory of the controller between rounds; it may be lost with its process."""

    answered: Mapping[str, float] = field(default_factory=dict)
    """Applications whose failure has been answered, until they have another status, and since when (steady clock)."""
    counted: frozenset[GroupKey] = frozenset()
    """Groups whose failed start is counted and that have not restarted yet: a second report of it does not count."""
    failed_at: Mapping[GroupKey, float] = field(default_factory=dict)
    """Failed starts without an answer, with the time of the failure (steady clock)."""
    waiting: Mapping[GroupKey, str] = field(default_factory=dict)
    """Groups that wait for nodes that may never come back, with the reason."""
    recorded: Mapping[str, str] = field(default_factory=dict)
    """Last recorded reason of each generation (`<deployment>/g<generation>`) that waits for memory."""
    deployed: frozenset[GroupKey] = frozenset()
    """Groups whose application this controller has deployed at their present rung."""
    asked_at: float | None = None
    """Time at which the wait for boot ids of nodes began (steady clock)."""
    loaded: frozenset[str] = frozenset()
    """Deployments on demand that are to run."""
    unloaded: Mapping[str, str] = field(default_factory=dict)
    """Deployments on demand that have been ended, with the reason. One that is in neither runs if it has a group."""

    def answered_only(self, failed: Collection[str]) -> Pending:
        """Without the answers of applications that are no longer failed."""
        return replace(self, answered={app: at for app, at in self.answered.items() if app in failed})


@dataclass(frozen=True)
class FleetState:
    """The known state of a fleet at one moment. Each part may be left out."""

    desired: Mapping[str, Desired] = field(default_factory=dict)
    """Applied deployments, by name."""
    apps: tuple[App, ...] = ()
    """Groups that exist, as Ray Serve reports them."""
    reports: tuple[GroupReport, ...] = ()
    """The newest report of each group, however old."""
    fresh: frozenset[str] = frozenset()
    """Names of the reports that are recent enough to count."""
    standings: Mapping[GroupKey, Standing] = field(default_factory=dict)
    """Ladder position of each group; one that is left out has never failed."""
    starts: Mapping[GroupKey, Mapping[str, str]] = field(default_factory=dict)
    """Unfinished starts, with the boot id of each of their nodes at their beginning ("" if not known)."""
    older: Mapping[GroupKey, Candidate] = field(default_factory=dict)
    """Groups of earlier generations that run or start and are no longer desired, with the candidate of their rung."""
    older_needs: Mapping[GroupKey, int] = field(default_factory=dict)
    """Bytes that each of them may take of each of its nodes, by the high end of the predicted band."""
    ending: Mapping[GroupKey, Rung] = field(default_factory=dict)
    """Groups that are being retired, of generations that are kept, each at its rung."""
    last_served: Mapping[str, Desired] = field(default_factory=dict)
    """Of each deployment with a group that is given up, or that waits for long: the newest generation before it that has
    served, if it is kept."""
    nodes: SeenNodes = field(default_factory=SeenNodes)
    available: Mapping[str, int] = field(default_factory=dict)
    """Free memory of each node that answered, bytes."""
    unusable: Mapping[str, str] = field(default_factory=dict)
    """Nodes on which no engine can start, each with the reason, as far as they answered."""
    pending: Pending = field(default_factory=Pending)
    drained: frozenset[str] = frozenset()
    """Nodes on which nothing is to be started."""
    demand: Mapping[str, RequestDemand] = field(default_factory=dict)
    """Requests for each deployment that is on demand; without those of which no gateway reports."""
    paused: bool = False
    """True while every group is to stop and the desired state is kept (`sparkfleet down`)."""

    @property
    def applied(self) -> Mapping[str, Desired]:
        """Deployments that are to serve, those that wait for demand included; none while paused."""
        return {} if self.paused else self.desired

    @cached_property
    def to_run(self) -> Mapping[str, Desired]:
        """Deployments whose groups are to run: all that serve, without those on demand that are not loaded."""
        return {name: one for name, one in self.applied.items() if self.is_loaded(one)}

    def is_loaded(self, desired: Desired) -> bool:
        """True if a deployment is to run now: it is not on demand, or it was loaded, or one of its groups exists."""
        name = desired.name
        if not desired.spec.on_demand or name in self.pending.loaded:
            return True
        return name not in self.pending.unloaded and any(
            app.deployment == name and app.status != "retiring" for app in self.apps
        )

    def standing(self, group: GroupKey) -> Standing:
        """The group's position on its ladder."""
        return self.standings.get(group, NEVER_FAILED)

    def has_given_up(self, desired: Desired) -> bool:
        """True if any group of a deployment is given up."""
        return any(self.standing(group).given_up for group in desired.groups)

    def generation_of(self, group: GroupKey) -> Desired | None:
        """The generation of a group that is to run: the desired one, or the last that served; None of another group."""
        if (desired := self.to_run.get(group[0])) is None:
            return None
        served = self.last_served.get(group[0])
        return next((one for one in (desired, served) if one is not None and group in one.groups), None)

    def desired_of(self, group: GroupKey) -> Desired | None:
        """The desired deployment of a group; None if the group is no longer desired."""
        desired = self.to_run.get(group[0])
        return desired if desired is not None and group in desired.groups else None

    @cached_property
    def desired_apps(self) -> tuple[App, ...]:
        """Applications of desired groups."""
        return tuple(app for app in self.apps if self.desired_of(app.group) is not None)

    @cached_property
    def _reports(self) -> Mapping[GroupKey, GroupReport]:
        return {one.group: one for one in self.reports}

    def report(self, group: GroupKey) -> GroupReport | None:
        """The newest report of a group."""
        return self._reports.get(group)

    def is_ready(self, group: GroupKey) -> bool:
        """True if a group has reported so, and is not silent."""
        report = self.report(group)
        return report is not None and report.name in self.fresh and report.phase is GroupPhase.READY

    def may_serve(self, app: App) -> bool:
        """True if an application may have requests: Serve counts it as running, and its group has reported nothing else."""
        report = self.report(app.group)
        return app.status == "running" and (report is None or report.phase is GroupPhase.READY)

    def ready_groups(self) -> frozenset[GroupKey]:
        """All groups that are."""
        return frozenset(one.group for one in self.reports if self.is_ready(one.group))

    def is_barred(self, group: GroupKey) -> bool:
        """True if the group's last report at its rung is that it waits for a drained node."""
        report = self.report(group)
        if report is None or report.phase is not GroupPhase.BARRED:
            return False
        return report.rung == self.standing(group).rung

    def is_loading(self, desired: Desired) -> bool:
        """True if a desired group of the deployment is starting."""
        return any(report.phase in BEGINNING and report.group in desired.groups for report in self.reports)


def replaced(state: FleetState, desired: Desired) -> list[App]:
    """Groups of a deployment that are no longer desired, including those that are being retired."""
    return [app for app in state.apps if app.deployment == desired.name and app.group not in desired.groups]


def older(state: FleetState, desired: Desired) -> list[App]:
    """Groups of a deployment that are no longer desired and not retired yet."""
    return [app for app in replaced(state, desired) if app.status != "retiring"]


def has_begun(state: FleetState, desired: Desired) -> bool:
    """True if a group that the desired generation adds has an application."""
    return any(app.group in desired.groups and desired.is_new(app.group) for app in state.apps)


def nodes_of(desired: Desired, group: GroupKey, standing: Standing) -> tuple[str, ...]:
    """Nodes of a group at its current rung."""
    return desired.plan_of(group).rung_at(standing.rung).candidate.shape.nodes
