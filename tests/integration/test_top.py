"""`sparkfleet top` in tmux, on a fleet that serves: what is drawn, its keys, and a controller that stops."""

import contextlib
import os
import signal

import pytest
from lab_fleet import SPARKFLEET
from tmux import Tmux

from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.runtime import processes

pytestmark = [pytest.mark.integration, pytest.mark.full]


@pytest.fixture
def top(fleet):
    fleet.apply(fleet.write("tiny.yaml", fleet.spec()))
    environment = {"SPARKFLEET_HOME": str(fleet.directory / "state"), "TERM": "xterm-256color"}
    terminal = Tmux(fleet.directory, environment, [SPARKFLEET, "top"])
    yield terminal
    terminal.end()


def test_it_draws_the_fleet_opens_its_pages_and_outlives_a_controller_that_stops(fleet, top):
    def drawn(*words):
        try:
            fleet.until(lambda: all(word in top.shown() for word in words), timeout=30)
        except AssertionError:
            raise AssertionError(f"{words} are not on the screen:\n{top.shown()}") from None

    drawn("fleet test", "tiny/g", "ready", "GiB", "Reasons")
    fleet.chat("Hello")
    top.press("l")
    drawn("log of tiny/g")
    top.press("Escape")
    drawn("Reasons")
    top.press("e")
    drawn("events of tiny", "ready")
    top.press("Escape")
    drawn("Reasons")
    top.press("r")
    drawn("plan of tiny", "choice")
    top.press("Escape")
    drawn("Reasons")
    labelled = processes.labelled({LABEL: fleet.paths.label})
    (controller,) = (one.pid for one in labelled if "ray::ControllerActor" in one.command)
    os.kill(controller, signal.SIGSTOP)
    try:
        drawn("figures are", "tiny/g")
    finally:
        with contextlib.suppress(ProcessLookupError):  # its guard has ended it
            os.kill(controller, signal.SIGCONT)
    fleet.until(lambda: "figures are" not in top.shown(), timeout=60)
    top.press("q")
    fleet.until(lambda: "fleet test" not in top.shown(), timeout=20)
