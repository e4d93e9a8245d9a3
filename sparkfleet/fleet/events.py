"""Typed events of a use-case while it runs: steps that pass, and facts that stay."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from sparkfleet.controlplane.state.event import Event
from sparkfleet.staging.progress import TransferProgress
from sparkfleet.values import Value


class FleetStep(StrEnum):
    """The steps of a start in their usual order, from a file to the first token, then those of a stop."""

    INSTALLING = "installing"
    """The environment of sparkfleet and its engines on nodes that lack it."""
    STAGING = "staging weights and images"
    STARTING_RAY = "starting Ray"
    JOINING = "waiting for nodes"
    WAITING = "waiting"
    """For the controller to begin, or for free memory on a node."""
    TRAINING = "training the small model"
    STARTING_ENGINE = "starting the engine"
    LOADING = "loading"
    COMPILING = "compiling"
    WARMING_UP = "warming up"
    FIRST_TOKEN = "first token"  # noqa: S105 (a step)
    STOPPING = "stopping"
    FINISHING = "waiting for requests to end"


class ExpectedTime(Value):
    """Expected duration of a step."""

    seconds: float
    measured: bool
    """True for the time of the last start on this fleet, False for a typical value."""


class StepRunning(Value):
    """A step that is under way. Sent again whenever its detail changes; the first event of another step ends it."""

    step: FleetStep
    detail: str = ""
    """A node, a percentage, or seconds left: a few words, never a line of an engine's log."""
    subjects: tuple[str, ...] = ()
    """Deployments or nodes that are waited for."""
    expected: ExpectedTime | None = None
    """None if it is unknown."""


class StepEnded(Value):
    """A step that is over."""

    step: FleetStep
    seconds: float
    failed: bool = False
    """It ended with the failure of an engine's start, or with an error of the command."""


class BytesMoving(Value):
    """Weights or an image on their way to a node."""

    progress: TransferProgress


class FactFound(Value):
    """A fact that was found, as a line that stays on the screen."""

    line: str


class TroubleFound(Value):
    """A fault that does not stop the use-case, as a line that stays on the screen."""

    line: str


class FleetEvent(Value):
    """An event of a deployment from the controller's log."""

    event: Event


class KeyCreated(Value):
    """An API key that was made because there was none. It is shown once and not stored."""

    name: str
    key: str


UseCaseEvent = StepRunning | StepEnded | BytesMoving | FactFound | TroubleFound | FleetEvent | KeyCreated

OnEvent = Callable[[UseCaseEvent], None]


def ignored(_: UseCaseEvent) -> None:
    """Drop an event, for callers that need only the result."""
