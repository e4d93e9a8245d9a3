"""Measures the durations of steps, keeps them for the next start, and shows them as expected times."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pydantic import TypeAdapter, ValidationError

from sparkfleet.fleet.events import (
    BytesMoving,
    ExpectedTime,
    FleetEvent,
    FleetStep,
    OnEvent,
    StepEnded,
    StepRunning,
    UseCaseEvent,
)
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.remote.atomic_write import write_atomically

if TYPE_CHECKING:  # a slow import, for a controller that answers
    from sparkfleet.controlplane.state.status import DeploymentStatus

StepTimes = dict[str, dict[FleetStep, float]]
"""Seconds by subject and step; a subject is `FLEET`, or an engine with its models (`started_by`)."""

FLEET = "fleet"
"""Subject of steps that do not depend on the deployments."""
OF_FLEET = frozenset({FleetStep.INSTALLING, FleetStep.STARTING_RAY, FleetStep.JOINING, FleetStep.STOPPING})

OF_ENGINE = frozenset(
    {
        FleetStep.STARTING_ENGINE,
        FleetStep.LOADING,
        FleetStep.COMPILING,
        FleetStep.WARMING_UP,
        FleetStep.FIRST_TOKEN,
    }
)
"""Steps that every start of an engine takes again. Weights and images are staged once, and waiting is of its own day."""

TYPICAL_FLEET_S: Mapping[FleetStep, float] = {FleetStep.STARTING_RAY: 10.0}
TYPICAL_BUILTIN_S: Mapping[FleetStep, float] = {
    FleetStep.TRAINING: 90.0,
    FleetStep.STARTING_ENGINE: 20.0,
    FleetStep.LOADING: 5.0,
    FleetStep.WARMING_UP: 5.0,
    FleetStep.FIRST_TOKEN: 10.0,
}
"""Of `builtin:tiny` on vLLM's CPU build, on two idle x86 cores: training from docs/builtin.md, the others rounded from
starts of the demo, 40 s together. Other models and machines differ too much for one number: they have no expected time
before their first start."""

_FORM = TypeAdapter(StepTimes)


def load_step_times(file: Path) -> StepTimes:
    """Durations of the last starts; empty if there is no readable file."""
    try:
        return _FORM.validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return {}


def save_step_times(file: Path, subject: str, times: Mapping[FleetStep, float]) -> None:
    """Save the durations of a start over the saved ones of the same steps, without those of an engine that it had no more.

    A start whose kernels were kept compiles nothing. A file that cannot be written is no error: the start has succeeded, and
    the next one shows older times.
    """
    known = load_step_times(file)
    if FleetStep.STARTING_ENGINE in times:
        before = known.get(subject, {})
        known[subject] = {step: seconds for step, seconds in before.items() if step not in OF_ENGINE}
    for step, seconds in times.items():
        known.setdefault(FLEET if step in OF_FLEET else subject, {})[step] = round(seconds, 1)
    with contextlib.suppress(OSError):
        write_atomically(file, json.dumps(known, indent=2).encode())


def started_by(plans: tuple[DeploymentPlan, ...]) -> str:
    """Subject of these plans' durations, equal if the same models start on the same engines. Pure."""
    candidates = {group.choice.candidate for plan in plans for group in plan.groups}
    return " + ".join(sorted({f"{one.model} on {one.engine}, TP={one.shape.tp}" for one in candidates}))


def last_start_s(known: StepTimes, plan: DeploymentPlan) -> float | None:
    """Seconds of the last start of a plan's engines, from their command to the first token; None if there was none. Pure.

    A download before it, which a change does not repeat, is not counted.
    """
    steps = known.get(started_by((plan,)), {})
    return sum(seconds for step, seconds in steps.items() if step in OF_ENGINE) or None


def expected_times(known: StepTimes, subject: str) -> dict[FleetStep, ExpectedTime]:
    """Expected duration of each step of a start: the last measured, else a typical one, else none. Pure."""
    typical = dict(TYPICAL_FLEET_S)
    if subject and all(part.startswith("builtin:tiny on vllm") for part in subject.split(" + ")):
        typical |= TYPICAL_BUILTIN_S
    measured = known.get(FLEET, {}) | known.get(subject, {})
    return {step: ExpectedTime(seconds=s, measured=False) for step, s in typical.items()} | {
        step: ExpectedTime(seconds=s, measured=True) for step, s in measured.items()
    }


def all_ready(settled: Mapping[str, DeploymentStatus]) -> bool:
    """True if every deployment came up at its first rung: only then the durations are saved."""
    return bool(settled) and all(one.state == "ready" and not any(one.passed) for one in settled.values())


class StepTimer:
    """Passes events on, measures the durations of their steps, and adds the expected ones. Use as a context manager.

    Args:
        on_event: receives every event, and a `StepEnded` for every step.
        expected: by step, see `expected_times`.
        clock: seconds of any clock that only goes forward.
    """

    def __init__(
        self,
        on_event: OnEvent,
        expected: Mapping[FleetStep, ExpectedTime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_event = on_event
        self._expected = expected
        self._clock = clock
        self._step: FleetStep | None = None
        self._began = clock()
        self.times: dict[FleetStep, float] = {}
        """Seconds by step, in the order in which they began; a step that occurs twice is summed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, Exception):  # after Ctrl-C the step goes on in the fleet
            self.end(failed=error is not None)

    def __call__(self, event: UseCaseEvent) -> None:
        """Pass an event on. The first event of another step ends the step before, and so does a failed start."""
        match event:
            case StepRunning():
                self._enter(event.step)
                event = event.model_copy(update={"expected": self._expected.get(event.step)})
            case BytesMoving() if event.progress.phase != "done":
                self._enter(FleetStep.STAGING)
            case FleetEvent() if event.event.kind == "failed":
                self.end(failed=True)
            case _:
                pass
        self._on_event(event)

    def end(self, *, failed: bool = False) -> None:
        """End the running step, if any."""
        if self._step is None:
            return
        seconds = self._clock() - self._began
        self.times[self._step] = self.times.get(self._step, 0.0) + seconds
        ended, self._step = self._step, None
        self._on_event(StepEnded(step=ended, seconds=seconds, failed=failed))

    def _enter(self, step: FleetStep) -> None:
        if step is self._step:
            return
        self.end()
        self._step, self._began = step, self._clock()
