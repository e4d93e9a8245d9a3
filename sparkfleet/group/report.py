"""Reports of a group: its phase, its ranks, its counters."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.engines.startup_phases import StartupPhase
from sparkfleet.values import Value


class GroupPhase(StrEnum):
    """Phases of a group's life, in order."""

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
    """Report of a group, sent at every change and every few seconds. Soft state: never written to disk."""

    deployment: str
    generation: int
    replica: int
    phase: GroupPhase
    detail: str = ""
    step: StartupPhase | None = None
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
    """Why it failed; None if it has not."""
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
    """For how long it has said nothing, if that is long: then all of this is how it was."""

    @property
    def group(self) -> tuple[str, int, int]:
        """Deployment, generation and replica."""
        return self.deployment, self.generation, self.replica

    @property
    def name(self) -> str:
        """`<deployment>/g<generation>/<replica>`."""
        return f"{self.deployment}/g{self.generation}/{self.replica}"
