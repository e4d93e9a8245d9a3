"""Commands of a node: their output, and an end within the time limit."""

import subprocess
import time

import pytest

from sparkfleet.telemetry.local_command import run_here

LIMIT_S = 3.0


def test_a_command_has_its_exit_code_output_and_errors():
    assert run_here(("sh", "-c", "echo out; echo bad >&2; exit 3")) == (3, "out\n", "bad\n")


def test_a_command_that_is_missing_is_an_oserror():
    with pytest.raises(FileNotFoundError):
        run_here(("no-such-command-here",))


def test_a_slow_command_is_ended_and_started_again_the_next_time(tmp_path):
    starts = tmp_path / "starts"
    argv = ("sh", "-c", f"echo >> {starts}; exec sleep 60")
    with pytest.raises(subprocess.TimeoutExpired):
        run_here(argv, LIMIT_S)
    end = time.monotonic() + 30
    while (
        len(starts.read_text()) < 2 and time.monotonic() < end
    ):  # the first ends a moment after it was killed
        with pytest.raises(subprocess.TimeoutExpired):
            run_here(argv, LIMIT_S)
    assert len(starts.read_text()) == 2


def test_a_command_that_cannot_be_killed_is_not_waited_for_and_has_no_second_beside_it(monkeypatch, tmp_path):
    """As `nvidia-smi` while its driver is stuck: a signal ends it only when the driver returns."""
    starts = tmp_path / "starts"
    argv = ("sh", "-c", f"echo >> {starts}; exec sleep 20")
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: None)
    for _ in range(2):
        with pytest.raises(subprocess.TimeoutExpired):
            run_here(argv, LIMIT_S)
    assert len(starts.read_text()) == 1
