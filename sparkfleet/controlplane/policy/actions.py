"""Actions of the policy: frozen values, each with its reason. Each is idempotent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.group.group_name import GroupKey

UnloadKind = Literal["unused", "other", "no_memory", "no_node", "person"]
"""Reasons for the end of a deployment on demand, as the metrics have them."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """Something to do or to store."""

    reason: str
    """The reason, for people."""


@dataclass(frozen=True, kw_only=True)
class GroupAction(Action):
    """An action on one group."""

    group: GroupKey


@dataclass(frozen=True, kw_only=True)
class BeginAttempt(GroupAction):
    """Store a start attempt of a group. An unfinished one goes on, with the boot ids of its beginning."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StartGroup(BeginAttempt):
    """Start a group that does not exist."""


@dataclass(frozen=True, kw_only=True)
class RestartGroup(BeginAttempt):
    """Start a group again, at its current rung."""

    answers: bool = False
    """True if this answers the failure of its application."""


@dataclass(frozen=True, kw_only=True)
class EndAttempt(GroupAction):
    """Remove a start attempt: the group is ready, its failure is counted, or it is no longer desired."""


@dataclass(frozen=True, kw_only=True)
class RetireGroup(EndAttempt):
    """Take a group out of the gateways' table, drain it, and end it."""


@dataclass(frozen=True, kw_only=True)
class EndGroup(GroupAction):
    """Take a group that is given up out of the gateways' table, and end it."""


@dataclass(frozen=True, kw_only=True)
class FailAttempt(GroupAction):
    """Record that a start failed and is not answered yet."""


@dataclass(frozen=True, kw_only=True)
class ForgetGroup(GroupAction):
    """Remove the ladder position and the start attempt of a group that no longer exists."""


@dataclass(frozen=True, kw_only=True)
class KeepStanding(GroupAction):
    """Store a group's position on its ladder."""

    standing: Standing


@dataclass(frozen=True, kw_only=True)
class LadderStep(KeepStanding):
    """Store a group's position on its ladder and begin a new start there."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TryAgain(LadderStep):
    """Count a failed start and stay at the rung."""


@dataclass(frozen=True, kw_only=True)
class NextRung(LadderStep):
    """Count a failed start and take the next rung."""


@dataclass(frozen=True, kw_only=True)
class MoveGroup(LadderStep):
    """Take a lower rung for a reason other than a failed start."""


@dataclass(frozen=True, kw_only=True)
class StayUp(KeepStanding):
    """Let a group go on that serves, although its restart at another rung or its end was decided."""


@dataclass(frozen=True, kw_only=True)
class GiveUp(KeepStanding):
    """Stop starting a group until its deployment is applied again."""


@dataclass(frozen=True, kw_only=True)
class WaitForBoots(GroupAction):
    """Hold a start back until its nodes have reported their boot ids, or their time is over."""


@dataclass(frozen=True, kw_only=True)
class WaitForNodes(GroupAction):
    """Keep a group at its rung until its nodes are back."""


@dataclass(frozen=True, kw_only=True)
class StopWaiting(GroupAction):
    """End the wait of a group: its nodes are back, or it no longer needs them."""


@dataclass(frozen=True, kw_only=True)
class DeploymentAction(Action):
    """An action on a deployment."""

    deployment: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class WaitForMemory(DeploymentAction):
    """Hold a generation back until its nodes report their free memory, or others have given theirs back."""


@dataclass(frozen=True, kw_only=True)
class LoadDeployment(DeploymentAction):
    """Let the groups of a deployment on demand run."""


@dataclass(frozen=True, kw_only=True)
class UnloadDeployment(DeploymentAction):
    """Let no group of a deployment on demand run until a request comes."""

    kind: UnloadKind


@dataclass(frozen=True, kw_only=True)
class ForgetLoad(Action):
    """Forget if a deployment was loaded: it is no longer desired."""

    deployment: str


@dataclass(frozen=True, kw_only=True)
class RememberFailure(Action):
    """Exclude a candidate that failed to start; later plans show `reason`."""

    fingerprint: str
    lasts_s: float = field(default=0.0)
    """Seconds; inf: until something about the candidate changes."""


@dataclass(frozen=True, kw_only=True)
class ForgetFailure(Action):
    """Remove the failure of a candidate that has started."""

    fingerprint: str
