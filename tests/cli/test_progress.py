"""The line that shows what a use-case does: on a terminal, elsewhere, and where standard output is for a program."""

import io

import pytest
from rich.console import Console

from sparkfleet.cli import progress as module
from sparkfleet.cli.progress import ProgressLine, step_words, times_line
from sparkfleet.controlplane.state.event import Event
from sparkfleet.fleet.events import ExpectedTime, FleetEvent, FleetStep, StepEnded, StepRunning

STEP = StepRunning(
    step=FleetStep.LOADING,
    detail="40%",
    subjects=("tiny",),
    expected=ExpectedTime(seconds=20, measured=False),
)
READY = FleetEvent(
    event=Event(id=1, at=0.0, deployment="a", generation=1, subject="", kind="ready", message="well")
)


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_shows_nothing_however_long_it_takes(monkeypatch, capsys, quiet):
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    with ProgressLine(quiet=quiet) as progress:
        for event in (STEP, READY, StepEnded(step=FleetStep.LOADING, seconds=12.34)):
            progress(event)
    step, *kept = capsys.readouterr().out.splitlines() or ["", "", ""]
    assert step == ("" if quiet else "loading (tiny) · 0 s of about 20 s (typical) · 40%")
    assert [line[-11:] for line in kept] == (["", ""] if quiet else ["ready  well", "ding  12.3 s"[-11:]])


def test_elsewhere_than_on_a_terminal_a_short_step_prints_nothing(capsys):
    with ProgressLine() as progress:
        progress(STEP)
        progress(StepEnded(step=FleetStep.LOADING, seconds=0.2))
    assert capsys.readouterr().out == ""


def test_on_a_terminal_the_step_is_one_live_line_that_goes_when_it_ends(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(module, "console", Console(file=screen, force_terminal=True, width=60))
    with ProgressLine() as progress:
        progress(STEP)
        progress(STEP.model_copy(update={"detail": "80%"}))
        progress(StepEnded(step=FleetStep.LOADING, seconds=12.0))
    shown = screen.getvalue()
    assert "loading (tiny) · 0 s of about 20 s (typical) · 40%" in shown
    assert shown.rstrip().endswith("loading  12.0 s")
    assert "\x1b[2K" in shown, "the live line is erased"


def test_a_step_that_failed_has_another_mark(capsys):
    with ProgressLine() as progress:
        progress(StepEnded(step=FleetStep.LOADING, seconds=12.0))
        progress(StepEnded(step=FleetStep.WARMING_UP, seconds=1.2, failed=True))
    assert capsys.readouterr().out.split("\n")[:2] == ["✓ loading  12.0 s", "✗ warming up  1.2 s"]


def test_a_step_is_shown_with_what_it_waits_for():
    training = StepRunning(step=FleetStep.TRAINING, detail="step 7 of 400", subjects=("a", "b"))
    assert step_words(training) == ("training the small model (a, b)", "step 7 of 400")
    assert step_words(StepRunning(step=FleetStep.STARTING_RAY)) == ("starting Ray", "")


def test_at_the_end_a_line_says_where_the_time_went():
    times = {FleetStep.STARTING_RAY: 9.2, FleetStep.WAITING: 0.1, FleetStep.LOADING: 20.9}
    assert times_line(times) == "Time: 30 s = starting Ray 9 s + loading 21 s"


def test_elsewhere_than_on_a_terminal_a_long_step_has_fewer_and_fewer_lines(monkeypatch, capsys):
    """A start of a minute had twenty lines."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with ProgressLine() as progress:
        for second in range(200):
            now[0] = float(second)
            progress(STEP)
        assert [line.split(" · ")[1].split()[0] for line in capsys.readouterr().out.splitlines()] == [
            "3", "9", "21", "45", "75", "105", "135", "165", "195",
        ]  # fmt: skip
        progress(StepRunning(step=FleetStep.WARMING_UP))
        now[0] += 3.0
        progress(StepRunning(step=FleetStep.WARMING_UP))
        assert capsys.readouterr().out == "warming up · 0 s\n", "the next one comes after 6 s"
