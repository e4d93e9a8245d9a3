"""Durations of the parts of a start, from the phases that its ranks' logs show. Pure."""

from __future__ import annotations

from sparkfleet.engines.startup_phases import StartupPhase

ENGINE, WEIGHTS, KERNELS, WARM_UP, CHECKS = "engine", "weights", "kernels", "warm-up", "checks"
PARTS = (ENGINE, WEIGHTS, KERNELS, WARM_UP, CHECKS)
"""Parts of a start, in their order.

- engine: from its process, or its container, to the first line about weights;
- weights: until the last checkpoint is loaded;
- kernels: until graphs are captured; what is compiled, tuned and profiled;
- warm-up: until the server is up; graphs and first runs;
- checks: until it serves; the first token, the canary, the measurement.
"""


class StartTimes:
    """Notes when the slowest rank of a start reaches a phase. An engine that shows none has no times.

    Args:
        began: seconds of any clock that only goes forward, at which the ranks were started.
    """

    def __init__(self, began: float) -> None:
        self._ends: dict[str, float] = {}
        self._began = began

    def note(self, now: float, step: StartupPhase | None) -> None:
        """Takes the phase of the slowest rank."""
        if step is None:
            return
        self._ends.setdefault(ENGINE, now)
        if step.phase == "loading":
            self._note_load(now, step)
            return
        self._ends.setdefault(WEIGHTS, now)
        if step.phase in ("warming", "up"):
            self._ends.setdefault(KERNELS, now)

    def note_up(self, now: float) -> None:
        """Takes the moment at which the engine has generated its first token."""
        if self._ends:
            for part in (WEIGHTS, KERNELS, WARM_UP):
                self._ends.setdefault(part, now)

    def seconds(self, now: float) -> dict[str, float]:
        """Seconds of each part of a start that has ended now, in their order; {} if no phase was seen."""
        if not self._ends:
            return {}
        found, before = {}, self._began
        for part, end in ((part, self._ends.get(part, now)) for part in PARTS):
            found[part] = round(max(0.0, end - before), 1)
            before = max(before, end)
        return found

    def _note_load(self, now: float, step: StartupPhase) -> None:
        if step.share == 1.0:
            self._ends.setdefault(WEIGHTS, now)
        else:
            self._ends.pop(WEIGHTS, None)  # a draft of its own is loaded after the model
