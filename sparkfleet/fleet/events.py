"""Typed events of a use-case while it runs: steps that pass, and facts that stay."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from sparkfleet.controlplane.state.store import Event
from sparkfleet.staging.progress import TransferProgress
from sparkfleet.values import Value


class FleetStep(StrEnum):
    """The steps from a file to the first token, in their usual order, then those of the way down."""

    INSTALLING = "installing"
    """The environment of sparkfleet and its engines on nodes that lack it."""
    STAGING = "bringing weights and images"
    STARTING_RAY = "starting Ray"
    JOINING = "waiting for nodes"
    WAITING = "waiting"
    """For the controller to begin, or for room beside what runs."""
    TRAINING = "training the small model"
    STARTING_ENGINE = "starting the engine"
    LOADING = "loading"
    COMPILING = "compiling"
    WARMING_UP = "warming up"
    FIRST_TOKEN = "first token"  # noqa: S105 (a step)
    STOPPING = "stopping"


class ExpectedTime(Value):
    """Expected duration of a step."""

    seconds: float
    measured: bool
    """Whether it is what the last start on this fleet took; a typical value otherwise."""


class StepRunning(Value):
    """A step that goes on. Sent again whenever its detail changes; a step ends with the first event of another."""

    step: FleetStep
    detail: str = ""
    """A node, a share, seconds left: a few words, never a line of an engine's log."""
    subjects: tuple[str, ...] = ()
    """Deployments or nodes that are waited for."""
    expected: ExpectedTime | None = None
    """None if nothing is known."""


class StepEnded(Value):
    """A step that is over."""

    step: FleetStep
    seconds: float


class BytesMoving(Value):
    """Weights or an image on their way to a node."""

    progress: TransferProgress


class FactFound(Value):
    """A line that stays: a fact found on the way."""

    line: str


class TroubleFound(Value):
    """A line that stays, of something that is wrong and does not stop the use-case."""

    line: str


class FleetEvent(Value):
    """An event of the controller's log: what happened to a deployment."""

    event: Event


class KeyCreated(Value):
    """An API key that was made because there was none. It is shown once and not kept."""

    name: str
    key: str


UseCaseEvent = StepRunning | StepEnded | BytesMoving | FactFound | TroubleFound | FleetEvent | KeyCreated

OnEvent = Callable[[UseCaseEvent], None]


def ignored(_: UseCaseEvent) -> None:
    """Drops an event: for callers that want the result alone."""
