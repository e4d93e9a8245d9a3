"""What the controller knows of what runs, as values: reports from groups, and the answer to `sparkfleet status`."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Literal

from pydantic import Field

from sparkfleet.engines.progress import Step
from sparkfleet.engines.signatures import Diagnosis
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.planning.plan import DeploymentPlan
from sparkfleet.planning.remembered import Remembered
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


BEGINNING = (GroupPhase.PREPARING, GroupPhase.STARTING)
"""Phases in which a group loads."""


class RankReport(Value):
    """One rank of a group."""

    rank: int
    node: str
    pid: int | None = None
    log_path: str = ""
    """Where its log is, on its node."""


class GroupReport(Value):
    """What a group says of itself, at every change and every few seconds. Soft state: it is not written down."""

    deployment: str
    generation: int
    replica: int
    phase: GroupPhase
    detail: str = ""
    step: Step | None = None
    """How far its engine is with coming up: the rank that is least far. None before its log shows a phase,
    and once it is up."""
    node: str
    """Rank 0's."""
    engine: str = ""
    url: str = ""
    """Where the engine listens; only the gateway has the token for it."""
    ranks: tuple[RankReport, ...] = ()
    since: float
    """When this phase began, Unix seconds."""
    started_s: float | None = None
    """Seconds from start to ready."""
    adopted: bool = False
    rung: int = 0
    """Which rung of its ladder this is, from 0."""
    diagnosis: Diagnosis | None = None
    """Why it failed; None where it has not."""
    was_starting: bool = False
    """Whether it failed before it was ready."""
    running: int = 0
    waiting: int = 0
    unchecked: tuple[str, ...] = ()
    """What the canary could not read of it, in words."""
    drafted: float = 0.0
    """Draft tokens that its engine has proposed since it started; 0 without speculation."""
    accepted: float = 0.0
    measured: dict[str, float] = Field(default_factory=dict)
    silent_s: float = 0.0
    """For how long it has said nothing, where that is long: then all of this is how it was."""

    @property
    def group(self) -> tuple[str, int, int]:
        """Deployment, generation and replica."""
        return self.deployment, self.generation, self.replica

    @property
    def name(self) -> str:
        """`<deployment>/g<generation>/<replica>`."""
        return f"{self.deployment}/g{self.generation}/{self.replica}"


class NodeReport(Value):
    """One node of the fleet, as it is now."""

    name: str
    joined: bool
    """Whether Ray on it is part of the fleet."""
    memory_total: int | None = None
    """Bytes; None where it was not read."""
    memory_available: int | None = None
    boot: str = ""
    """Which boot of it this is (`this_boot`); "" where it was not read."""


AppStatus = Literal["starting", "running", "failed", "retiring"]


class App(Value):
    """A Serve application: one group of one generation of one deployment, with one replica."""

    deployment: str
    generation: int
    replica: int = 0
    """Which of the deployment's groups, from 0, in the order of its plan."""
    status: AppStatus
    message: str = ""

    @property
    def group(self) -> tuple[str, int, int]:
        """Deployment, generation and replica."""
        return self.deployment, self.generation, self.replica

    @property
    def name(self) -> str:
        """Name of the Serve application."""
        return app_name(self.deployment, self.generation, self.replica)


def app_name(deployment: str, generation: int, replica: int) -> str:
    """The Serve application of one group. `--g` cannot occur in a public name's end by accident: it is parsed."""
    return f"{deployment}--g{generation}-{replica}"


def parse_app_name(name: str) -> tuple[str, int, int] | None:
    """Deployment, generation and replica in a Serve application's name; None where it is not one of ours."""
    found = re.fullmatch(r"(.+)--g(\d+)-(\d+)", name)
    return (found[1], int(found[2]), int(found[3])) if found else None


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
    passed: tuple[tuple[str, ...], ...] = ()
    """Of each group of the plan why the rungs above the one where it stands were left, in order; of one that is given up
    also why that one was."""
    spec: str = ""
    """The deployment as it was asked for, JSON."""


class FleetStatus(Value):
    """The whole fleet."""

    version: int = STATUS_VERSION
    fleet: str
    sparkfleet: str
    endpoint: str
    gateways: tuple[GatewayReport, ...]
    nodes: tuple[NodeReport, ...] = ()
    failures: tuple[Remembered, ...] = ()
    """What has not started on this fleet, so that planning does not try it first again."""
    deployments: tuple[DeploymentStatus, ...]
    last_event: int
    trouble: str = ""
    """Why the controller's own work does not go on, in words; "" where it does."""
