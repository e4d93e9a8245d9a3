"""A snapshot of the fleet: everything that the policy decides from, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from sparkfleet.controlplane.desired import Desired, GroupKey, Standing
from sparkfleet.controlplane.state.status import App, NodeReport
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport

GONE_S = 180.0
"""A node that has been away this long is not waited for if a group can run elsewhere: a Spark boots in less."""


@dataclass(frozen=True)
class Now:
    """A moment on both clocks, seconds."""

    unix: float
    """Wall clock; what is kept across processes is counted by it."""
    steady: float
    """A clock that only goes forward; waiting within one process is counted by it."""

    @classmethod
    def at(cls, seconds: float) -> Now:
        """The same moment on both clocks, for a simulation."""
        return cls(unix=seconds, steady=seconds)


@dataclass(frozen=True)
class SeenNodes:
    """Nodes as they were seen last."""

    here: str = ""
    """The node that the controller runs on, which is always there."""
    boots: Mapping[str, str] = field(default_factory=dict)
    """Boot id of each node that is part of the fleet; "" if it was not read."""
    away_since: Mapping[str, float] = field(default_factory=dict)
    """Nodes that are not part of the fleet, and since when (steady clock)."""
    looked_at: float | None = None
    """When the last look at all nodes began (steady clock); None before the first."""

    @classmethod
    def only(cls, here: NodeReport) -> SeenNodes:
        """Nothing is known yet but the controller's own node."""
        return cls(here=here.name, boots={here.name: here.boot})

    def seen(self, nodes: Collection[NodeReport], began: float, now: Now) -> SeenNodes:
        """After a look that began at `began` (steady clock)."""
        own = {self.here: self.boots[self.here]} if self.here in self.boots else {}
        boots = {node.name: node.boot for node in nodes if node.joined} | own
        away = {node.name: self.away_since.get(node.name, now.steady) for node in nodes if not node.joined}
        return replace(self, boots=boots, away_since=away, looked_at=began)

    def gone(self, now: Now) -> frozenset[str]:
        """Nodes that have been away for so long that nothing waits for them that can do without."""
        return frozenset(name for name, since in self.away_since.items() if now.steady - since >= GONE_S)


@dataclass(frozen=True)
class Pending:
    """Memory of the controller from round to round, which it may lose with its process."""

    answered: frozenset[str] = frozenset()
    """Applications whose failure has been answered, until they are seen in another state."""
    counted: frozenset[GroupKey] = frozenset()
    """Groups whose failed start is counted and which are not started again yet: a second report of it does not count."""
    failed_at: Mapping[GroupKey, float] = field(default_factory=dict)
    """Starts that failed and were not answered yet, and since when that is known (steady clock)."""
    waiting: Mapping[GroupKey, str] = field(default_factory=dict)
    """Groups that wait for nodes that may never come back, with the reason."""
    told: Mapping[str, str] = field(default_factory=dict)
    """Why a generation (`<deployment>/g<generation>`) waited for memory, as it was written down last."""
    asked_at: float | None = None
    """When nodes were first waited for to report their boots (steady clock)."""

    def answered_only(self, failed: Collection[str]) -> Pending:
        """Without the answers of applications that are in another state than failed."""
        return replace(self, answered=self.answered.intersection(failed))


@dataclass(frozen=True)
class FleetState:
    """Everything that is known of a fleet at one moment. Each part may be left out."""

    desired: Mapping[str, Desired] = field(default_factory=dict)
    """Deployments that somebody asked for, by name."""
    apps: tuple[App, ...] = ()
    """Groups that exist, as Ray Serve reports them."""
    reports: tuple[GroupReport, ...] = ()
    """The newest report of each group, however old."""
    fresh: frozenset[str] = frozenset()
    """Names of those reports that are young enough to count."""
    standings: Mapping[GroupKey, Standing] = field(default_factory=dict)
    """Rung, tries and falls of each group; one that is left out has never failed."""
    starts: Mapping[GroupKey, Mapping[str, str]] = field(default_factory=dict)
    """Starts that have not ended, with the boot of each of their nodes when they began ("" if not known)."""
    nodes: SeenNodes = field(default_factory=SeenNodes)
    available: Mapping[str, int] = field(default_factory=dict)
    """Free memory of each node that answered, bytes."""
    pending: Pending = field(default_factory=Pending)
    paused: bool = False
    """Everything is to stop, and nothing is to be forgotten."""

    @property
    def wanted(self) -> Mapping[str, Desired]:
        """Deployments that are to run now."""
        return {} if self.paused else self.desired

    def standing(self, group: GroupKey) -> Standing:
        """The group's place on its ladder."""
        return self.standings.get(group, Standing())

    def has_given_up(self, deployment: str, generation: int) -> bool:
        """True if any group of a generation is not started again until it is applied again."""
        return any(one.given_up for key, one in self.standings.items() if key[:2] == (deployment, generation))

    def desired_of(self, group: GroupKey) -> Desired | None:
        """The wanted deployment that a group belongs to; None if it is of another generation or not wanted."""
        desired = self.wanted.get(group[0])
        return desired if desired is not None and desired.generation == group[1] else None

    def mine(self) -> tuple[App, ...]:
        """Applications of wanted generations."""
        return tuple(app for app in self.apps if self.desired_of(app.group) is not None)

    def report(self, group: GroupKey) -> GroupReport | None:
        """The newest report of a group."""
        return next((one for one in self.reports if one.group == group), None)

    def serves(self, deployment: str) -> bool:
        """True if a group of any generation is ready and is not being retired."""
        ready = {r.group for r in self.reports if r.name in self.fresh and r.phase is GroupPhase.READY}
        return any(
            app.deployment == deployment and app.status != "retiring" and app.group in ready
            for app in self.apps
        )

    def is_loading(self, desired: Desired) -> bool:
        """True if a group of the wanted generation is starting."""
        return any(
            report.phase in BEGINNING and report.group[:2] == (desired.name, desired.generation)
            for report in self.reports
        )


def nodes_of(desired: Desired, replica: int, standing: Standing) -> tuple[str, ...]:
    """Nodes of a group at the rung where it is."""
    ladder = desired.plan.groups[replica].ladder
    return ladder[min(standing.rung, len(ladder) - 1)].candidate.shape.nodes


def name_of(group: GroupKey) -> str:
    """`<deployment>/g<generation>/<replica>`, as the group itself reports it."""
    return f"{group[0]}/g{group[1]}/{group[2]}"
