"""Shows the events of a use-case: one live line per step on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from sparkfleet.cli.output import console, errors, event_line, progress_text
from sparkfleet.fleet.events import (
    BytesMoving,
    ExpectedTime,
    FactFound,
    FleetEvent,
    FleetStep,
    KeyCreated,
    StepEnded,
    StepRunning,
    TroubleFound,
    UseCaseEvent,
)
from sparkfleet.staging.progress import TransferProgress

QUIET_S = 3.0
"""Seconds of silence after which a step gets its first line elsewhere than on a terminal."""
LONGEST_QUIET_S = 30.0
"""Each further line of a step comes after twice the silence, up to this: a log of a long start had a line every 3 s."""
SHORT_S = 0.5
"""Shorter steps get no line."""


class ProgressLine:
    """Shows the events of a use-case. The running step is one line, with its time so far and its expected time.

    On a terminal the line is redrawn; elsewhere it is printed after 3 s, 6 s, 12 s and so on. Ended steps and
    facts stay. Use as a context manager.

    Args:
        quiet: show nothing, because standard output is for a program.
        screen: shows them; None: standard output.
    """

    def __init__(self, quiet: bool = False, screen: Console | None = None) -> None:
        self._quiet = quiet
        self._screen = screen or console
        self._live: Live | None = None
        self._printed_at = self._began = time.monotonic()
        self._quiet_s = QUIET_S
        self._step: FleetStep | None = None
        self._words = self._detail = ""
        self._expected: ExpectedTime | None = None
        self._moving: dict[str, str] = {}
        self._spinner = Spinner("dots")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done()

    def __call__(self, event: UseCaseEvent) -> None:
        """Show an event."""
        if self._quiet:
            return
        match event:
            case StepRunning():
                self._expected = event.expected
                self._go_on(event.step, *step_words(event))
            case StepEnded():
                self._end(event)
            case BytesMoving():
                self._move(event.progress)
            case FleetEvent():
                self._keep(event_line(event.event))
            case FactFound():
                self._keep(Text(event.line))
            case TroubleFound():
                errors.print(event.line, markup=False)
            case KeyCreated():
                self._keep(Text(f'API key "{event.name}", shown only this once; note it now: {event.key}'))

    def done(self) -> None:
        """Remove the line of the running step."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _go_on(self, step: FleetStep, words: str, detail: str) -> None:
        if step is not self._step:
            self._step, self._began, self._quiet_s = step, time.monotonic(), QUIET_S
        self._words, self._detail = words, detail
        if self._screen.is_terminal:
            self._redraw()
        elif time.monotonic() - self._printed_at >= self._quiet_s:
            self._keep(Text(self._line()))
            self._quiet_s = min(2 * self._quiet_s, LONGEST_QUIET_S)

    def _redraw(self) -> None:
        if self._live is None:
            self._live = Live(get_renderable=self._renderable, console=self._screen, transient=True)
            self._live.start()
        self._live.refresh()

    def _renderable(self) -> Spinner:
        text = self._line()
        self._spinner.update(text=Text(text, no_wrap=True, overflow="ellipsis"))
        return self._spinner

    def _line(self) -> str:
        taken = time_words(time.monotonic() - self._began, self._expected)
        return " · ".join(filter(None, (self._words, taken, self._detail)))

    def _move(self, progress: TransferProgress) -> None:
        if progress.phase == "done":
            return
        if progress.phase in ("note", "waiting"):
            self._keep(Text(progress_text(progress)))
            return
        self._moving[progress.node] = progress_text(progress)
        self._expected = None
        self._go_on(FleetStep.STAGING, FleetStep.STAGING.value, " · ".join(self._moving.values()))
        if progress.total_bytes <= progress.done_bytes:
            self._moving.pop(progress.node)

    def _end(self, event: StepEnded) -> None:
        if self._step is event.step:
            self._step = None
        self.done()
        if event.seconds >= SHORT_S and event.step is not FleetStep.WAITING:
            mark = ("✗ ", "red") if event.failed else ("✓ ", "green")
            self._keep(Text.assemble(mark, f"{event.step.value}  {event.seconds:.1f} s"))

    def _keep(self, line: Text) -> None:
        self._screen.print(line)
        self._printed_at = time.monotonic()


def step_words(event: StepRunning) -> tuple[str, str]:
    """`loading (tiny)` and `40%`: the step with its subjects, and its progress."""
    of = f" ({', '.join(event.subjects)})" if event.subjects else ""
    return f"{event.step.value}{of}", event.detail


def time_words(seconds: float, expected: ExpectedTime | None) -> str:
    """`12 s of about 20 s (typical)`."""
    if expected is None:
        return f"{seconds:.0f} s"
    source = "last time" if expected.measured else "typical"
    return f"{seconds:.0f} s of about {expected.seconds:.0f} s ({source})"


def times_line(times: Mapping[FleetStep, float]) -> str:
    """Time by step: `Time: 71 s: starting Ray 9 s, training the small model 38 s, …`."""
    total = sum(times.values())
    long = [f"{step.value} {seconds:.0f} s" for step, seconds in times.items() if seconds >= SHORT_S]
    return f"Time: {total:.0f} s" + (f" = {' + '.join(long)}" if long else "")
