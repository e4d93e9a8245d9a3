"""A controller whose work fails repeatedly: its pauses, and the reasons that it reports."""

import asyncio
import os
import shutil
import subprocess
import time

import pytest

from sparkfleet.controlplane import controller_failures as module
from sparkfleet.controlplane.controller_failures import ControllerFailures
from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.store import Store
from sparkfleet.group.crash_pause import COUNTS_S
from sparkfleet.runtime import processes


@pytest.fixture
def store(tmp_path, clock):
    store = Store(tmp_path / "s.db", clock)
    yield store
    store.close()


def next_process(store, clock):
    """As Ray makes one after each end."""
    return ControllerFailures(store, EventLog(store), clock)


async def test_each_end_waits_longer_than_the_one_before_and_the_first_for_nothing(store, clock):
    waited = [await next_process(store, clock).begin(OSError("no Serve")) for _ in range(9)]
    assert waited == [0, 1, 2, 4, 8, 16, 32, 60, 60]


async def test_what_worked_for_long_is_started_at_once(store, clock):
    assert [await next_process(store, clock).begin(OSError()) for _ in range(2)] == [0, 1]
    clock.now += COUNTS_S
    after = next_process(store, clock)
    assert after.trouble == ""
    assert await after.begin(OSError()) == 0


async def test_why_is_an_event(store, clock):
    await next_process(store, clock).begin(OSError("no Serve"))
    await next_process(store, clock).begin(RuntimeError("a\ntraceback"))
    assert [(event.subject, event.kind, event.message) for event in store.events.read()] == [
        ("controller", "error", "its work failed: OSError('no Serve'); it restarts"),
        (
            "controller",
            "error",
            "its work failed: RuntimeError('a\\ntraceback'); it restarts in 1 s",
        ),
    ]


async def test_the_next_process_tells_why_until_its_own_work_has_begun(store, clock):
    first = next_process(store, clock)
    assert first.trouble == ""
    await first.begin(OSError("no Serve"))
    second = next_process(store, clock)
    assert second.trouble == first.trouble == "its work failed: OSError('no Serve'); it restarts"
    second.works()
    assert second.trouble == ""


async def test_what_cannot_be_written_down_waits_longest(store, clock):
    ends = next_process(store, clock)
    store.close()
    assert await ends.begin(OSError("no space")) == 60
    assert ends.trouble == "its work failed: OSError('no space'); it restarts in 60 s"


async def test_it_fails_after_the_pause_and_says_why_meanwhile(store, clock, monkeypatch):
    async def fails():
        raise OSError("no Serve")

    monkeypatch.setattr(module, "pause_s", lambda before, pauses: 0.3)
    ends = next_process(store, clock)
    work = asyncio.create_task(ends.slowed(fails()))
    done, _ = await asyncio.wait({work}, timeout=0.05)
    assert not done
    assert "no Serve" in ends.trouble
    with pytest.raises(OSError, match="no Serve"):
        await asyncio.wait_for(work, 5)


def test_work_that_does_not_end_is_named_until_it_ends(store, clock):
    steady = [100.0]
    failures = ControllerFailures(store, EventLog(store), clock, lambda: steady[0])
    with failures.working("a round of its work"), failures.working("the list", module.LIST_LATE_S):
        assert failures.reported() == ""
        steady[0] += module.LIST_LATE_S + 9
        assert failures.reported().startswith("the list has not ended for 20 s: Ray Serve or")
    with failures.working("the start of Ray Serve"):
        steady[0] += module.LATE_S - 1
        assert failures.reported() == ""
        steady[0] += 8
        assert failures.reported().startswith("the start of Ray Serve has not ended for 60 s: Ray Serve or")
    assert failures.reported() == ""


def test_work_that_does_not_end_has_the_command_for_this_clusters_serve_alone(store, clock, monkeypatch):
    """`pkill -f` hit the Serve of every cluster on the machine, and each process with these words in its command."""
    steady = [0.0]
    failures = ControllerFailures(store, EventLog(store), clock, lambda: steady[0])
    serve = subprocess.Popen(["ray::ServeController", "60"], executable=shutil.which("sleep"))
    try:
        # The kernel ends vfork's wait, and closes the pipe that Popen reads, before a new command line can be read.
        while not processes.process(serve.pid).command.startswith("ray::"):
            time.sleep(0.01)
        with failures.working("a round"):
            steady[0] += module.LATE_S
            others = failures.reported()
            monkeypatch.setattr(module.os, "getppid", os.getpid)  # its raylet
            own = failures.reported()
    finally:
        serve.kill()
        serve.wait()
    assert others.endswith("does not answer; Ray starts another Serve, and engines go on")
    assert f"`kill -9 {serve.pid}` there lets Ray start another Serve" in own


def test_work_that_failed_is_named_by_its_end(store, clock):
    failures = next_process(store, clock)
    with pytest.raises(OSError, match="gone"), failures.working("a round of its work"):
        raise OSError("gone")
    assert failures.reported() == ""


async def test_a_clock_that_was_set_back_makes_nobody_wait(store, clock):
    await next_process(store, clock).begin(OSError())
    clock.now -= 5000
    assert await next_process(store, clock).begin(OSError()) == 0
