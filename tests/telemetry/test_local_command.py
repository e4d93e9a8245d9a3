"""Commands of a node: their output, and an end within the time limit."""

import subprocess
import threading
import time
from pathlib import Path

import pytest

from sparkfleet.telemetry.local_command import run_here

LIMIT_S = 0.5


def started_processes(monkeypatch, *, killable):
    """A list that each started process is added to."""
    started = []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **options):
            started.append(self)
            super().__init__(*args, **options)

        def kill(self):
            if killable:
                super().kill()

    monkeypatch.setattr(subprocess, "Popen", Noted)
    return started


def test_a_command_has_its_exit_code_output_and_errors():
    assert run_here(("sh", "-c", "echo out; echo bad >&2; exit 3"), 60) == (3, "out\n", "bad\n")


def test_a_command_that_is_missing_is_an_oserror():
    with pytest.raises(FileNotFoundError):
        run_here(("no-such-command-here",))


def test_a_slow_command_is_ended_and_started_again_the_next_time(monkeypatch):
    started = started_processes(monkeypatch, killable=True)
    for _ in range(2):
        with pytest.raises(subprocess.TimeoutExpired):
            run_here(("sleep", "600"), LIMIT_S)
        started[-1].wait()  # it ends a moment after it was killed
    assert len(started) == 2


def test_a_command_that_cannot_be_killed_is_not_waited_for_and_has_no_second_beside_it(monkeypatch):
    """As `nvidia-smi` while its driver is stuck: a signal ends it only when the driver returns."""
    started = started_processes(monkeypatch, killable=False)
    for _ in range(2):
        with pytest.raises(subprocess.TimeoutExpired):
            run_here(("sleep", "60"), LIMIT_S)
    (process,) = started
    assert process.poll() is None
    process.terminate()
    process.wait()


def test_one_that_was_ended_leaves_no_zombie_behind_if_others_are_run():
    """`docker inspect NAME` of a docker that hangs is never run again with the same name once its group is replaced."""
    before = _children()
    with pytest.raises(subprocess.TimeoutExpired):
        run_here(("sleep", "60"), 0.2)
    end = time.monotonic() + 30
    while _children() != before and time.monotonic() < end:
        run_here(("true",))
    assert _children() == before


def _children():
    """Of this thread, with those that have ended and that nobody has waited for."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
