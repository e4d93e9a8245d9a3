"""`sparkfleet top` in tmux, on a fleet that serves: what is drawn, its keys, and a controller that stops."""

import contextlib
import os
import signal
import subprocess

import pytest
from lab_fleet import SPARKFLEET

from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.runtime import processes

pytestmark = [pytest.mark.integration, pytest.mark.full]


class Tmux:
    """A command in a terminal of 140 columns.

    Args:
        directory: for the server's socket; the command runs there.
        environment: further variables.
        argv: the command.
    """

    def __init__(self, directory, environment, argv):
        self._server = ("tmux", "-S", str(directory / "tmux"))
        settings = [f"{name}={value}" for name, value in environment.items()]
        self._run("new-session", "-d", "-x", "140", "-y", "40", "-c", str(directory), "env", *settings, *argv)

    def _run(self, *words):
        return subprocess.run([*self._server, *words], capture_output=True, text=True, check=True).stdout

    def shown(self):
        """Lines of the screen; "" once the command has ended."""
        done = subprocess.run(
            [*self._server, "capture-pane", "-p"], capture_output=True, text=True, check=False
        )
        return done.stdout

    def press(self, *keys):
        self._run("send-keys", *keys)

    def end(self):
        subprocess.run([*self._server, "kill-server"], capture_output=True, check=False)


@pytest.fixture
def top(fleet):
    fleet.apply(fleet.write("tiny.yaml", fleet.spec()))
    environment = {"SPARKFLEET_HOME": str(fleet.directory / "state"), "TERM": "xterm-256color"}
    terminal = Tmux(fleet.directory, environment, [SPARKFLEET, "top"])
    yield terminal
    terminal.end()


def test_it_draws_the_fleet_opens_its_pages_and_outlives_a_controller_that_stops(fleet, top):
    def drawn(*words):
        fleet.until(lambda: all(word in top.shown() for word in words), timeout=60)

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
