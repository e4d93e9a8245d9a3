"""Actions of the policy: frozen values, each with its reason. Doing one of them twice changes nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkfleet.controlplane.desired import GroupKey, Standing


@dataclass(frozen=True, kw_only=True)
class Action:
    """One thing to do or to keep."""

    reason: str
    """Why, for people."""


@dataclass(frozen=True, kw_only=True)
class GroupAction(Action):
    """An action on one group."""

    group: GroupKey


@dataclass(frozen=True, kw_only=True)
class BeginAttempt(GroupAction):
    """Keep that a group is being started. A start that has not ended goes on, with the boots in which it began."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StartGroup(BeginAttempt):
    """Start a group that does not exist."""


@dataclass(frozen=True, kw_only=True)
class RestartGroup(BeginAttempt):
    """Start a group again, at the rung where it is now."""

    answers: bool = False
    """This answers the failure of its application."""


@dataclass(frozen=True, kw_only=True)
class EndAttempt(GroupAction):
    """Forget a start: it came up, its failure is counted, or nobody wants it."""


@dataclass(frozen=True, kw_only=True)
class RetireGroup(EndAttempt):
    """Take a group out of the gateways' table, drain it, and end it."""


@dataclass(frozen=True, kw_only=True)
class EndGroup(GroupAction):
    """End a group that is given up."""


@dataclass(frozen=True, kw_only=True)
class FailAttempt(GroupAction):
    """Keep that a start failed and is not answered yet."""


@dataclass(frozen=True, kw_only=True)
class KnowBoots(GroupAction):
    """Keep the boots of nodes that were not known when a start began."""

    boots: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class KeepStanding(GroupAction):
    """Keep a group's place on its ladder."""

    standing: Standing


@dataclass(frozen=True, kw_only=True)
class LadderStep(KeepStanding):
    """Keep a group's place on its ladder and begin a new start there."""

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
class GiveUp(KeepStanding):
    """Start a group no more, until its deployment is applied again."""


@dataclass(frozen=True, kw_only=True)
class WaitForBoots(GroupAction):
    """Hold a start back until its nodes have reported their boots, or their time is over."""


@dataclass(frozen=True, kw_only=True)
class WaitForNodes(GroupAction):
    """Leave a group at its rung until its nodes are back."""


@dataclass(frozen=True, kw_only=True)
class StopWaiting(GroupAction):
    """The nodes of a group are back, or it no longer needs them."""


@dataclass(frozen=True, kw_only=True)
class WaitForMemory(Action):
    """Hold a generation back until its nodes report their free memory."""

    deployment: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class RememberFailure(Action):
    """Hold a failed start against its candidate; `reason` is shown beside later plans."""

    fingerprint: str
    lasts_s: float = field(default=0.0)
    """Seconds; inf: until something about the candidate changes."""


@dataclass(frozen=True, kw_only=True)
class ForgetFailure(Action):
    """The candidate has started after all."""

    fingerprint: str
