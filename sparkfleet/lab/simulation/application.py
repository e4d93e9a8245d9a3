"""An application of the simulated Ray Serve, and the result of its next start."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkfleet.controlplane.state.status import AppStatus
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.report import GroupPhase, GroupReport


@dataclass
class Outcome:
    """Result of the next start of a rung."""

    takes_s: float
    diagnosis: Diagnosis | None = None
    """Cause of its failure; None: it comes up."""
    serves_s: float | None = None
    """It comes up, and dies of that cause after so many seconds; None: it does not."""
    takes_down: str = ""
    """The node that goes down with it."""


@dataclass
class SimulatedApp:
    """An application with its one replica."""

    launch: GroupLaunch
    status: AppStatus = "starting"
    construction: int = 0
    """Counts constructions, so that what belonged to an older one is dropped."""
    has_served: bool = False
    failures: int = 0
    phase: GroupPhase | None = None
    """Phase of its group; None while it is not placed."""
    report: GroupReport | None = None
    last_report_at: float = float("-inf")
    actor: int = 0
    """Order of its present actor among all of the run."""
    reports: int = 0
    """Changes that this actor has reported."""
    barred_since: float = 0.0
    """Begin of its wait for a drained node, if its phase is that."""
    stored: bool = False
    """A controller answered when its start began, and its nodes had reported: it is known if it takes one down."""
    retired_at: float = 0.0
    """Moment at which it was retired, if its status is that, simulated seconds."""
    starved: list[float] = field(default_factory=list)
    """Moments at which its memory ran out while it served, since it was deployed, simulated seconds."""
    stalled: bool = False
    """Its actor does nothing for now: it sends no report."""
