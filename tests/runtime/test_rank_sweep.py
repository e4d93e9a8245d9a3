"""Sweeps that go on while ranks start: their callers have given up, or have more to do."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from rank_processes import IDLE, supervisor_of

from sparkfleet.runtime.base import RankId
from sparkfleet.runtime.files.rankfiles import RankFiles
from sparkfleet.runtime.processes import process
from sparkfleet.runtime.rank_sweep import PastRuns

UNTIL_ALLOWED = """
def stop(*_):
    tell("stopping")
    open({fifo!r}).read()
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
tell(os.getpid())
while True: signal.pause()
"""
"""Ends after SIGTERM once somebody has opened a pipe for writing."""


@pytest.fixture
def gate(tmp_path):
    """Lets every engine of `UNTIL_ALLOWED` end."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


@pytest.fixture
def named(make_spec, rank_id, tmp_path):
    """A spec of a rank of this deployment."""

    def make(deployment, argv, **fields):
        id_ = rank_id.model_copy(update={"deployment": deployment})
        return make_spec(argv, id=id_, log_path=str(tmp_path / "logs" / deployment), **fields)

    return make


async def test_what_starts_while_another_rank_ends_is_spared(runtime, herald, named, gate):
    """A deployment on demand was loaded again under its generation: its engine was killed with its supervisor."""
    slow = named("slow", herald.script(UNTIL_ALLOWED.format(fifo=str(gate))), grace_s=60)
    await runtime.start(slow)
    await herald.hear_pid()
    sweep = asyncio.create_task(runtime.sweep(frozenset()))
    assert await herald.hear() == ["stopping"]
    again = await runtime.start(named("again", herald.script(IDLE)))
    pid = await herald.hear_pid()
    await asyncio.to_thread(gate.write_text, "")
    assert await sweep == (f"rank {slow.id}",)
    assert process(pid)
    assert process(supervisor_of(again.pid))
    assert [one.id for one in await runtime.list()] == [again.id]


async def test_the_next_run_of_a_rank_that_the_sweep_ends_is_spared(runtime, herald, named, gate):
    first = named("same", herald.script(UNTIL_ALLOWED.format(fifo=str(gate))), grace_s=60)
    begun = await runtime.start(first)
    await herald.hear_pid()
    sweep = asyncio.create_task(runtime.sweep(frozenset()))
    assert await herald.hear() == ["stopping"]
    start = asyncio.create_task(runtime.start(first))
    await asyncio.to_thread(gate.write_text, "")
    assert await sweep == (f"rank {first.id}",)
    second = await start
    await herald.hear_pid()
    assert process(begun.pid) is None
    assert second.started_at > begun.started_at
    assert process(second.pid)
    assert [one.started_at for one in await runtime.list()] == [second.started_at]
    kill = asyncio.create_task(runtime.sweep(frozenset()))
    assert await herald.hear() == ["stopping"]
    await asyncio.to_thread(gate.write_text, "")
    await kill


async def test_the_post_mortem_of_a_later_run_stays(runtime, running, herald, named):
    before = await running(named("before", herald.script(IDLE)))
    last = await before.stop()
    after = await running(named("after", herald.script(IDLE)))
    moment = (await after.status()).started_at
    ended = await after.stop()
    await runtime.sweep(frozenset(), moment)
    assert await runtime.post_mortem(last.id) is None
    assert await runtime.post_mortem(ended.id) == ended
    await runtime.sweep(frozenset())
    assert await runtime.post_mortem(ended.id) is None


async def test_children_of_a_killed_supervisor_are_of_its_run(runtime, herald, named, ended):
    """They began after the moment, and so would be spared by their own age; their run began before."""
    forks = (
        "import subprocess\nsignal.signal(signal.SIGUSR1, lambda *_: orphan(stubborn))\ntell(os.getpid())\n"
    )
    started = await runtime.start(named("before", herald.script(forks + "while True: signal.pause()")))
    await herald.hear_pid()
    later = await runtime.start(named("after", herald.script(IDLE)))
    await herald.hear_pid()
    os.kill(started.pid, signal.SIGUSR1)
    child = await herald.hear_pid()
    supervisor = supervisor_of(started.pid)
    os.kill(supervisor, signal.SIGKILL)
    await ended(supervisor)
    swept = await runtime.sweep(frozenset(), later.started_at)
    assert any(f"pid {child} " in words for words in swept)
    assert process(child) is None
    assert [one.id for one in await runtime.list()] == [later.id]


async def test_a_supervisor_that_does_not_answer_is_ended_by_its_label(runtime, herald, named, monkeypatch):
    monkeypatch.setattr("sparkfleet.runtime.supervisor_client._ANSWER_S", 0.1)
    hung = await runtime.start(named("hung", herald.script(IDLE)))
    later = await runtime.start(named("later", herald.script(IDLE)))
    supervisor = supervisor_of(hung.pid)
    os.kill(supervisor, signal.SIGSTOP)
    swept = await runtime.sweep(frozenset(), later.started_at)
    assert any(f"pid {supervisor} " in words for words in swept)
    assert process(hung.pid) is None
    assert process(later.pid)
    assert {one.stem for one in runtime._run_dir.glob("*.lock")} == {
        RankFiles.of(runtime._run_dir, str(later.id)).name
    }


def rank(deployment):
    return RankId(fleet="home", deployment=deployment, generation=1, replica=0, rank=0)


def test_runs_that_began_before_the_moment_end_unless_their_rank_is_kept():
    now = time.monotonic()
    past = PastRuns(frozenset({rank("kept")}), before=now - 5)
    assert past.has(rank("a"), now - 6)
    assert not past.has(rank("a"), now - 4)
    assert not past.has(rank("kept"), now - 6)


def test_a_run_whose_start_is_not_known_or_is_of_another_boot_is_a_past_one():
    """Earlier releases note no start in the environment, and their first builds the wall clock's in a status."""
    now = time.monotonic()
    past = PastRuns(frozenset({rank("kept")}), before=now)
    assert past.has(rank("a"), None)
    assert past.has(rank("a"), now + 1e9)
    assert past.has(None, None), "an id that cannot be read is of no rank that is kept"
    assert not past.has(rank("kept"), None)
