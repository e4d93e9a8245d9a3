"""What the controller knows of what runs, as values: reports from groups, and the answer to `sparkfleet status`."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from sparkfleet.gateway.report import GatewayReport
from sparkfleet.planning.plan import DeploymentPlan
from sparkfleet.values import Value

STATUS_VERSION = 1


class GroupPhase(StrEnum):
    """Where a group is in its life, in order."""

    PREPARING = "preparing"
    STARTING = "starting"
    PROBING = "probing"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class GroupReport(Value):
    """What a group says of itself, at every change and every few seconds. Soft state: it is not written down."""

    deployment: str
    generation: int
    replica: int
    phase: GroupPhase
    detail: str = ""
    node: str
    engine: str = ""
    url: str = ""
    """Where the engine listens; only the gateway has the token for it."""
    pid: int | None = None
    log_path: str = ""
    since: float
    """When this phase began, Unix seconds."""
    started_s: float | None = None
    """Seconds from start to ready."""
    adopted: bool = False
    running: int = 0
    waiting: int = 0
    measured: dict[str, float] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """`<deployment>/g<generation>/<replica>`."""
        return f"{self.deployment}/g{self.generation}/{self.replica}"


AppStatus = Literal["starting", "running", "failed", "retiring"]


class App(Value):
    """A Serve application that holds the groups of one generation of one deployment."""

    deployment: str
    generation: int
    status: AppStatus
    message: str = ""

    @property
    def name(self) -> str:
        """Name of the Serve application."""
        return app_name(self.deployment, self.generation)


def app_name(deployment: str, generation: int) -> str:
    """The Serve application of one generation. `--g` cannot occur in a public name's end by accident: it is parsed."""
    return f"{deployment}--g{generation}"


def parse_app_name(name: str) -> tuple[str, int] | None:
    """The deployment and generation in a Serve application's name; None where it is not one of ours."""
    deployment, separator, generation = name.rpartition("--g")
    if not separator or not generation.isdigit():
        return None
    return deployment, int(generation)


class DeploymentStatus(Value):
    """One deployment, for people and programs."""

    name: str
    generation: int
    state: Literal["ready", "starting", "updating", "failed", "stopping"]
    detail: str
    who: str
    since: float
    plan: DeploymentPlan | None
    groups: tuple[GroupReport, ...]
    spec: str = ""
    """The deployment as it was asked for, JSON."""


class FleetStatus(Value):
    """The whole fleet."""

    version: int = STATUS_VERSION
    fleet: str
    sparkfleet: str
    endpoint: str
    gateways: tuple[GatewayReport, ...]
    deployments: tuple[DeploymentStatus, ...]
    last_event: int
