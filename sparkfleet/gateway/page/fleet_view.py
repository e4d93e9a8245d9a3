"""The fleet as the page and other programs see it: `GET /api/fleet`. No secrets, no settings of deployments, no texts."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.specs.timeouts import Timeouts
from sparkfleet.values import Value

VIEW_VERSION = 1


class BandView(Value):
    """A predicted number with its error band."""

    low: float
    mid: float
    high: float
    provenance: str
    """As in plans, or `declared`: it is of the deployment's file."""


class GpuView(Value):
    """One GPU. None: not reported."""

    power_w: float | None = None
    temperature_c: float | None = None
    busy: float | None = None
    """0 to 1."""
    clock_mhz: float | None = None


class RailView(Value):
    """One rail's end on a node. Counters are bytes since the driver was loaded, RDMA included."""

    netdev: str
    up: bool
    received: int = 0
    sent: int = 0


class NodeView(Value):
    """One node."""

    name: str
    joined: bool
    head: bool = False
    drained: bool = False
    """True if nothing is started on it until it is undrained."""
    memory_total: int | None = None
    memory_available: int | None = None
    memory_unaccounted: int | None = None
    gpus: tuple[GpuView, ...] = ()
    rails: tuple[RailView, ...] = ()


class LinkView(Value):
    """A cable between two nodes, or between a node and a switch."""

    nodes: tuple[str, ...]
    switch: str | None = None
    rails: int
    up: int
    """Rails of which every end has a carrier."""


class MemoryView(Value):
    """Memory that one rank takes, as measured on its node."""

    node: str
    bytes: int


class GroupView(Value):
    """One group. A number that is not known is None."""

    name: str
    state: str
    drained: bool = False
    """True if it gets no new requests until it is undrained."""
    detail: str = ""
    since: float
    """Begin of the state, Unix seconds."""
    node: str
    """Rank 0's."""
    ranks: tuple[str, ...] = ()
    """Node of each rank."""
    engine: str = ""
    how: str = ""
    """Engine, weights and speculation in words."""
    shape: str = ""
    model: str = ""
    """Its checkpoint: the Hub id, or the name of its directory."""
    context: int = 0
    """Longest context, tokens; 0: not known."""
    rung: int = 1
    rungs: int = 1
    reason: str = ""
    """Reason for the rung's place in the plan."""
    passed: tuple[str, ...] = ()
    """Reasons for leaving the rungs above."""
    phase: str = ""
    """Phase of its start; "" once it serves."""
    share: float | None = None
    """Share of the phase that is done."""
    running: int = 0
    """Requests that its engine works on; of the engine `custom` open connections."""
    waiting: int = 0
    slots: int = 0
    tokens: float | None = None
    """Output tokens since the engine started, by its own counter."""
    drafted: float = 0.0
    accepted: float = 0.0
    started_s: float | None = None
    memory: tuple[MemoryView, ...] = ()
    """Of each rank, by rank; ranks that were not measured are left out."""
    measured: Mapping[str, float] = {}
    predicted: Mapping[str, BandView] = {}
    notes: tuple[str, ...] = ()
    """Warnings of the plan about it."""


class RejectedView(Value):
    """A candidate that the plan did not take."""

    what: str
    reason: str
    rule: str = ""


class PlannedView(Value):
    """A group that a request starts, by its plan."""

    nodes: tuple[str, ...]
    shape: str
    how: str
    """Engine, weights and speculation in words."""
    model: str
    """Its checkpoint: the Hub id, or the name of its directory."""
    context: int = 0
    """Longest context, tokens; 0: not known."""
    predicted: Mapping[str, BandView] = {}
    """As of a group that runs."""


class OnDemandView(Value):
    """Use of a deployment on demand. Times are Unix seconds."""

    in_flight: int = 0
    """Requests in flight at the gateways, those that wait for its start included."""
    waiting_since: float | None = None
    """Time since which a request or a person waits for its start; None: nobody does."""
    loaded_by: str = ""
    """The person who loads it; "" if nobody does."""
    idle_s: float | None = None
    """Seconds without a request after which it ends; None: only another one that needs its memory ends it."""
    unused_since: float | None = None
    """End of its last request, or of its start; None: it is in use or not ready, or no gateway has reported."""
    ends_at: float | None = None
    """Time at which it ends if no request comes; None: it is in use or not ready, or has no `idle_s`."""
    start_s: float | None = None
    """Seconds of its last start; None: not known."""
    instead: int | None = None
    """The generation that requests start because the desired one did not; None: they start the desired one, or nothing."""
    planned: tuple[PlannedView, ...] = ()
    """Its groups, while none of them runs, if requests start them."""


class DeploymentView(Value):
    """One deployment."""

    name: str
    state: str
    detail: str = ""
    generation: int
    since: float
    objective: str = ""
    groups: tuple[GroupView, ...] = ()
    on_demand: OnDemandView | None = None
    """None: it runs always."""
    speculation: tuple[str, ...] = ()
    """Acceptance of each of its drafts on its own requests, and a faster depth with the words for its file."""
    bench: tuple[str, ...] = ()
    """Speeds that `sparkfleet bench` measured of its setups, each beside its prediction."""
    rejected: tuple[RejectedView, ...] = ()
    ready_at: float | None = None
    """Unix seconds at which a start that is under way will probably have ended, by the last start; None: not known."""
    queued: int = 0
    """Requests that wait at this gateway until a group has room."""
    wait_s: int = 0
    """Seconds that a request which comes now would wait, by the forecasts of the groups; 0 if nothing waits."""


class StoppedView(Value):
    """A deployment that was stopped, of which a generation is kept that can be started again."""

    name: str
    generation: int
    """The last one."""
    nodes: tuple[str, ...] = ()
    """Nodes of its plan."""
    on_demand: bool = False
    """True if its next request starts it, not `start`."""


class EntryView(Value):
    """A further address of the endpoint, of a node beside the head."""

    node: str
    url: str
    """Base URL for OpenAI clients."""
    reached: bool
    """True if its clients reach the gateway; `warnings` have the reason if they do not."""
    connections: int = 0


class EventView(Value):
    """One event."""

    id: int
    at: float
    deployment: str
    subject: str
    kind: str
    message: str


class FleetView(Value):
    """The whole fleet."""

    version: int = VIEW_VERSION
    at: float
    """Time of the controller's answer, Unix seconds."""
    fleet: str
    sparkfleet: str
    endpoint: str = ""
    """Base URL for OpenAI clients, at the head."""
    entries: tuple[EntryView, ...] = ()
    certificate_expires_at: float | None = None
    """End of the endpoint's certificate, Unix seconds; None without TLS."""
    drain_s: float = Timeouts().drain_s
    """Time in which requests in flight may end before an engine is stopped, seconds."""
    nodes: tuple[NodeView, ...] = ()
    links: tuple[LinkView, ...] = ()
    deployments: tuple[DeploymentView, ...] = ()
    paused: bool = False
    """True while the fleet is taken down, also after a `sparkfleet down` that did not end: nothing that was applied runs."""
    stopped: tuple[StoppedView, ...] = ()
    """For admin keys and this machine."""
    events: tuple[EventView, ...] = ()
    """The last ones, newest first."""
    trouble: str = ""
    """Failure of the controller's own work, in words; "" while it works."""
    warnings: tuple[str, ...] = ()
    """Troubles in which it works on, for admin keys and this machine: they name deployments."""
