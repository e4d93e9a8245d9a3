"""Values of the fleet's status: nodes, applications, deployments, and the answer to `sparkfleet status`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from pydantic import Field

from sparkfleet.controlplane.state.drained import DrainedGroup, DrainedNode
from sparkfleet.controlplane.state.store_copies import KeptCopy
from sparkfleet.controlplane.state.tables.bench_table import BenchResult
from sparkfleet.controlplane.state.tables.draft_traffic import DraftTraffic
from sparkfleet.gateway.listening import GatewayListening
from sparkfleet.gateway.report import EndpointCertificate, EntryReport, GatewayReport
from sparkfleet.gateway.routing_table import GROUP_APP
from sparkfleet.group.group_name import GroupKey, GroupValue
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.planner.report.carry_over import Member, RunningGroup
from sparkfleet.planner.rules.failure_memory import RememberedFailure
from sparkfleet.planner.types.plan import DeploymentPlan, Rung
from sparkfleet.telemetry.node_readings import NodeReadings
from sparkfleet.units import gib_of
from sparkfleet.values import Value

GROUP_DEPLOYMENT = "group"


STATUS_VERSION = 1


class NodeReport(Value):
    """Current state of one node of the fleet."""

    name: str
    joined: bool
    """True if Ray on it is part of the fleet."""
    memory_total: int | None = None
    """Bytes; None if it was not read."""
    memory_available: int | None = None
    boot: str = ""
    """Its boot id (`runtime/boot_id.py`); "" if it was not read."""
    up_s: float | None = None
    """Seconds since that boot."""
    readings: NodeReadings | None = None
    """For Prometheus and the page; None if they were not read."""
    silent_s: float | None = None
    """Seconds since its last answer, if Ray still counts it as joined and it has answered nothing for long."""
    spoilt: tuple[str, ...] = ()
    """Things that its next start needs and cannot use, with what puts it right: files, Ray, its watchdog."""
    cannot_start: str = ""
    """The reason for which no engine starts on it, with what puts it right; "" if one may."""
    kept_copy: KeptCopy | None = None
    """The copy of the head's store that it keeps; None if it keeps none, or that was not read. The head keeps none."""

    @property
    def troubles(self) -> tuple[str, ...]:
        """Things that it cannot use, a GPU that does not answer, and the rails that are down, each in words."""
        if self.readings is None:
            return self.spoilt
        return (*self.spoilt, *self._gpu_troubles(self.readings), *self._rail_troubles(self.readings))

    @property
    def heat_and_memory(self) -> str:
        """Heat and memory of the node, in words: what explains that it went off; "" if neither was read."""
        slow = self.readings.slow if self.readings else None
        heat = max((gpu.temperature_c or 0.0 for gpu in slow.gpus or ()), default=0.0) if slow else 0.0
        found = (
            f"the hottest thermal zone at {slow.temperature_c:.0f} °C" if slow and slow.temperature_c else "",
            f"the GPU at {heat:.0f} °C" if heat else "",
            f"{gib_of(self.memory_available, self.memory_total)} available"
            if self.memory_available is not None and self.memory_total
            else "",
        )
        return ", ".join(filter(None, found))

    def _gpu_troubles(self, readings: NodeReadings) -> tuple[str, ...]:
        found = readings.slow.gpu_trouble
        means = f"No engine starts here until it answers: `sparkfleet doctor {self.name}`."
        return (f"the GPU cannot be read: {found} {means}",) if found else ()

    def _rail_troubles(self, readings: NodeReadings) -> tuple[str, ...]:
        states = {None: "does not exist", False: "has no carrier"}
        lost = [rail for rail in readings.rails if rail.is_lost]
        if not lost:
            return ()
        down = " and ".join(f"rail {rail.netdev} {states[rail.up]}" for rail in lost)
        end = "the other node" if all(rail.peer for rail in lost) else "the switch"
        means = f"the cable is out, or {end} off; groups over the link have half of its bandwidth, or none"
        return (f"{down}: {means}. Check it: `sparkfleet doctor {self.name}`.",)

    def beside(self, lost: Collection[str], drained: Collection[str]) -> NodeReport:
        """The report with the rails marked that have a drained node at an end, or one that is off.

        A node that does not answer is not off while another rail to it has a carrier: the one that is down may be the
        reason.
        """
        if self.readings is None:
            return self
        lit = {rail.peer for rail in self.readings.rails if rail.up}
        away = {*drained, *(node for node in lost if node not in lit)}
        rails = tuple(
            rail.model_copy(update={"end_away": self.name in away or rail.peer in away})
            for rail in self.readings.rails
        )
        return self.model_copy(update={"readings": self.readings.model_copy(update={"rails": rails})})


AppStatus = Literal["starting", "running", "failed", "retiring"]


class App(GroupValue):
    """A Serve application: one group of one generation of one deployment, with one replica."""

    status: AppStatus
    message: str = ""

    @property
    def name(self) -> str:
        """Name of the Serve application."""
        return app_name(*self.group)


def app_name(deployment: str, generation: int, replica: int) -> str:
    """The Serve application of one group. `--g` cannot occur in a public name's end by accident: it is parsed."""
    return f"{deployment}--g{generation}-{replica}"


def parse_app_name(name: str) -> GroupKey | None:
    """The group in a Serve application's name; None if it is not a group's."""
    found = GROUP_APP.fullmatch(name)
    return (found[1], int(found[2][1:]), int(found[3])) if found else None


class OnDemandStatus(Value):
    """Use of a deployment on demand. Seconds, no times: a reader's clock may differ from the head's."""

    in_flight: int = 0
    """Requests in flight at the gateways, those that wait for its start included."""
    waits_s: float | None = None
    """Seconds for which a request or a person has waited for its start; None: nobody waits."""
    loaded_by: str = ""
    """The person who loads it, which counts as a request that waits; "" if nobody does."""
    idle_s: float | None = None
    """Its `idle`: seconds without a request after which it ends; None: only another one that needs its memory ends it."""
    unused_s: float | None = None
    """Seconds since its last request, or since its start if none came; None: it is in use or not ready, or no gateway has
    reported."""
    ends_in_s: float | None = None
    """Seconds until it ends if no request comes; None: it is in use or not ready, or has no `idle_s`."""
    start_s: float | None = None
    """Seconds of its last start; None: not known."""


class DeploymentStatus(Value):
    """One deployment, for people and programs."""

    name: str
    generation: int
    state: Literal["ready", "starting", "updating", "failed", "stopping", "unloaded"]
    detail: str
    on_demand: bool = False
    demand: OnDemandStatus | None = None
    """None: it runs always, or a controller of an earlier release does not report it."""
    who: str
    since: float
    plan: DeploymentPlan | None
    groups: tuple[GroupReport, ...]
    passed: tuple[tuple[str, ...], ...] = ()
    """For each group of the plan the reasons for leaving the rungs above its current one, in order; if it is given up also
    the reason for the current one."""
    spec: str = ""
    """The deployment as it was applied, JSON."""
    members: tuple[Member, ...] = ()
    """Generation and index that name each group of the plan, in its order. Empty: all are of this generation."""

    instead: int | None = None
    """The generation that served before, which requests for what is on demand start because the desired one did not; None:
    they start the desired one, or nothing."""
    running: tuple[RunningGroup, ...] | None = None
    """Groups that run or start and are not given up, each at its rung: also older ones, to which an apply may point back.
    None: a controller of an earlier release does not report them."""
    drafts: tuple[DraftTraffic, ...] = ()
    """Draft tokens of its requests over the last days, by what drafted them, the one with most steps first."""

    @property
    def is_loaded(self) -> bool:
        """False if it is on demand, and nothing of it runs, starts or ends: also if it did not start."""
        if self.on_demand and self.state == "failed":
            return any(group.phase is not GroupPhase.FAILED for group in self.groups)
        return self.state != "unloaded" or bool(self.groups)

    def index_of(self, group: GroupKey) -> int | None:
        """Index of a group in the plan; None if it belongs to another plan."""
        if not self.members:
            return group[2] if group[1] == self.generation else None
        return self.members.index(group[1:]) if group[1:] in self.members else None

    def rung_of(self, report: GroupReport) -> Rung | None:
        """The rung that a group reports; None if its plan is another generation's."""
        at = self.index_of(report.group)
        if self.plan is None or at is None or at >= len(self.plan.groups):
            return None
        ladder = self.plan.groups[at].ladder
        return ladder[report.rung] if report.rung < len(ladder) else None


class FleetStatus(Value):
    """The whole fleet."""

    version: int = STATUS_VERSION
    fleet: str
    sparkfleet: str
    endpoint: str
    listening: GatewayListening | None = None
    """Address of the gateway and limit of its bodies; None: an earlier release does not report them."""
    gateways: tuple[GatewayReport, ...]
    entries: tuple[EntryReport, ...] = ()
    """Further addresses of the endpoint, each of a node beside the head."""
    nodes: tuple[NodeReport, ...] = ()
    failures: tuple[RememberedFailure, ...] = ()
    """Candidates that failed to start on this fleet, which planning excludes."""
    drained: tuple[DrainedNode, ...] = ()
    """Nodes that planning excludes."""
    drained_groups: tuple[DrainedGroup, ...] = ()
    """Groups that get no new requests."""
    deployments: tuple[DeploymentStatus, ...]
    bench: tuple[BenchResult, ...] = ()
    """Speeds that were measured with `sparkfleet bench`, the newest first."""
    paused: bool = False
    """True while the fleet is taken down, also after a `down` that did not end. Only deployments that end are listed."""
    last_event: int
    trouble: str = ""
    """Failure of the controller's own work, or work of it that does not end, in words; "" while it works."""
    warnings: tuple[str, ...] = ()
    """Troubles in which the controller works on: a full disk, a copy that could not be made."""
    uncopied: Mapping[str, str] = Field(default_factory=dict)
    """Nodes beside the head that are not known to have the newest copy of the store, each with the reason."""

    @property
    def groups(self) -> tuple[GroupReport, ...]:
        """The groups of all deployments."""
        return tuple(group for one in self.deployments for group in one.groups)

    def named(self, name: str) -> DeploymentStatus | None:
        """The deployment of this name; None if there is none."""
        return next((one for one in self.deployments if one.name == name), None)

    @property
    def endpoint_port(self) -> int:
        """The gateway's present port; 0 if a controller of an earlier release does not report it."""
        return self.listening.port if self.listening is not None else 0

    @property
    def drained_nodes(self) -> frozenset[str]:
        """Names of the drained nodes."""
        return frozenset(one.node for one in self.drained)

    @property
    def certificate(self) -> EndpointCertificate | None:
        """The endpoint's certificate; None without TLS, or if no gateway has reported it yet."""
        found = (one.certificate for one in self.gateways if one.certificate is not None)
        return max(found, key=lambda one: one.expires_at, default=None)

    @property
    def gateway_troubles(self) -> tuple[str, ...]:
        """Troubles that gateways report of themselves and of engines."""
        own = (f"gateway: {one.trouble}" for one in self.gateways if one.trouble)
        outside = (
            f"external endpoint, asked by {one.url}: {one.external_trouble}"
            for one in self.gateways
            if one.external_trouble
        )
        return (*own, *outside, *(words for one in self.gateways for words in one.failing))

    def queued(self, name: str) -> int:
        """Requests for a deployment that wait at the gateways for a free slot of a group."""
        return sum(one.queued.get(name, 0) for one in self.gateways)

    def memory_of(self, group: GroupKey) -> tuple[tuple[str, int], ...]:
        """Node and bytes of each rank of a group, as measured on the nodes; ranks that were not measured are left out."""
        found = [
            (rank.rank, node.name, rank.bytes)
            for node in self.nodes
            for rank in (node.readings.slow.ranks if node.readings else ())
            if (rank.deployment, rank.generation, rank.replica) == group
        ]
        return tuple((name, held) for _, name, held in sorted(found))
