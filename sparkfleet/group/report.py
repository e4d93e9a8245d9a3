"""Reports of a group: its phase, its ranks, its counters."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.engines.startup_phases import StartupPhase
from sparkfleet.group.group_name import NamedGroupValue
from sparkfleet.values import Value

HEARTBEAT_S = 2.0
"""Seconds between two reports of a group that serves."""


class GroupPhase(StrEnum):
    """Phases of a group's life, in order."""

    BARRED = "barred"
    """It waits: its engine does not run, and a node of it is drained."""
    PREPARING = "preparing"
    STARTING = "starting"
    PROBING = "probing"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


BEGINNING = (GroupPhase.PREPARING, GroupPhase.STARTING)
"""Phases of a start."""


class RankReport(Value):
    """One rank of a group."""

    rank: int
    node: str
    pid: int | None = None
    log_path: str = ""
    """Path of its log on its node."""


WRONG_OUTPUT = "The engine is up and its output is wrong"
"""Beginning of the reason for which a canary has stopped an engine, by which its events are found again."""


class GroupReport(NamedGroupValue):
    """Report of a group, sent at every change and every few seconds. Soft state: never written to disk."""

    phase: GroupPhase
    detail: str = ""
    step: StartupPhase | None = None
    """Startup phase of the slowest rank. None before its log shows one, and once the engine is up."""
    node: str
    """Rank 0's."""
    engine: str = ""
    url: str = ""
    """Address of the engine; only the gateway has the token for it."""
    secret: str = ""
    """Mark of the secret of its engine's token (`token_secrets.mark_of`); "" before the engine is held."""
    ranks: tuple[RankReport, ...] = ()
    since: float
    """Begin of this phase, Unix seconds."""
    actor: str = ""
    """Id of the actor that sent it, another one for each life of the group's actor; "" from a release before this field."""
    number: int = 0
    """Its number among the reports of that actor, from 1. A repeated report has the same one."""
    started_s: float | None = None
    """Seconds from start to ready."""
    start_times: dict[str, float] = Field(default_factory=dict)
    """Seconds of the parts of its start (`start_times.PARTS`), waits for memory and other starts left out; {} before it is
    ready, of an adopted engine, and of one whose log shows no phase."""
    adopted: bool = False
    unused: bool = False
    """True if it was adopted before it had served anybody: its engine was started while Ray started, or for an actor that
    ended meanwhile."""
    lost: str = ""
    """Ranks of its engine that ended while no actor of the group held them, in words; "" for none, and once it is ready."""
    rung: int = 0
    """Index of the rung in its ladder, from 0."""
    diagnosis: Diagnosis | None = None
    """Diagnosis of its failure; None if it has not failed."""
    was_starting: bool = False
    """True if it failed before it was ready."""
    running: int = 0
    """Requests that its engine works on; of a custom workload, whose API is not known, the open connections to its port."""
    waiting: int = 0
    """Requests in its engine's queue."""
    unchecked: tuple[str, ...] = ()
    """Readings that the canary could not take, in words."""
    tokens: float | None = None
    """Tokens since its engine started, by the engine's own counter; None if that is not known."""
    complaint: str = ""
    """Fault of its output that the canary found, in words; "" for none."""
    chat_refusal: str = ""
    """The error with which its engine answered a chat at the start, in words: a base model has no chat template, and another
    one's may be missing or broken; "" if it answered."""
    drafted: float = 0.0
    """Draft tokens that its engine proposed since it started; 0 without speculation."""
    accepted: float = 0.0
    draft_steps: float = 0.0
    """Verifications of one request's draft each since its engine started; 0 if the engine does not count them."""
    accepted_by_position: tuple[float, ...] = ()
    """The accepted draft tokens by their position in the draft; () if the engine does not count them."""
    measured: dict[str, float] = Field(default_factory=dict)
    silent_s: float = 0.0
    """Seconds since its last report, if that is long: everything else here is then out of date."""

    @property
    def counts_connections(self) -> bool:
        """True if `running` counts connections instead of requests."""
        return self.engine == "custom"
