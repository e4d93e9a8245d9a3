"""The guard of a process: real processes, which are stopped, end, or work on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sparkfleet
from sparkfleet.runtime import hang_guard
from sparkfleet.runtime.hang_guard import take_note

GUARDED = """
import asyncio, sys, time
from pathlib import Path
from sparkfleet.runtime.hang_guard import HangGuard

async def main():
    guard = HangGuard(2.0, Path(sys.argv[1]))
    guard.start()
    print("up", flush=True)
    await asyncio.sleep(float(sys.argv[2]))
    if sys.argv[3:] == ["block"]:
        time.sleep(30)
    guard.stop()
    await asyncio.sleep(0.1)

asyncio.run(main())
"""


@pytest.fixture
def started(tmp_path):
    """Starts a guarded process; ended with the test."""
    processes = []

    def start(*args):
        env = {**os.environ, "PYTHONPATH": str(Path(sparkfleet.__file__).parent.parent)}
        argv = [sys.executable, "-c", GUARDED, str(tmp_path / "note"), *args]
        process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def guards(pid):
    found = subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in found.splitlines() if "hang_guard.py" in line and f" {pid} 2.0 " in line]


def until(condition):
    deadline = time.monotonic() + 5
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


def test_a_stopped_process_is_killed_within_seconds_and_leaves_the_reason(started, tmp_path):
    process = started("60")
    os.kill(process.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert process.wait(10) == -signal.SIGKILL
    assert 1.5 < time.monotonic() - began < 6
    assert take_note(tmp_path / "note") == "it did not run for 2 s and was ended"
    assert take_note(tmp_path / "note") == "", "once"


def test_a_loop_that_is_blocked_counts_as_hung(started):
    assert started("0", "block").wait(10) == -signal.SIGKILL


def test_a_short_stop_costs_nothing(started, tmp_path):
    process = started("3")
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(0.8)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(10) == 0
    assert not (tmp_path / "note").exists()


def test_no_guard_outlives_its_process(started):
    process = started("60")
    assert until(lambda: guards(process.pid))
    process.kill()
    process.wait()
    assert until(lambda: not guards(process.pid))


def test_a_process_whose_guard_was_killed_works_on(started):
    process = started("4")
    found = until(lambda: guards(process.pid))
    assert found
    for line in found:
        os.kill(int(line.split()[0]), signal.SIGKILL)
    assert process.wait(10) == 0


def test_an_old_or_unreadable_note_is_no_reason(tmp_path, monkeypatch):
    note = tmp_path / "note"
    note.write_text('{"at": 1, "reason": "long ago"}')
    assert take_note(note) == ""
    note.write_text("garbage")
    assert take_note(note) == ""
    assert take_note(tmp_path / "missing") == ""
    assert hang_guard.FRESH_S > 60
