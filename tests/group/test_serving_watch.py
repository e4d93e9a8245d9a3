import asyncio
import itertools
import os
import signal
import subprocess
import time
from functools import partial

import pytest

from sparkfleet.errors import EngineError
from sparkfleet.group import serving_watch
from sparkfleet.group.engine_load import Load
from sparkfleet.group.exposed_sockets import Listening
from sparkfleet.group.hang_detector import HangDetector
from sparkfleet.group.serving_watch import (
    generates,
    health_failure,
    send_heartbeats,
    stopped_process,
    watch_health,
    watch_progress,
)
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket
from sparkfleet.runtime.processes import is_stopped
from sparkfleet.specs.timeouts import Timeouts

QUICK = Timeouts(stuck_s=0.05, idle_s=0.1, health_every_s=0.01)
STILL = Load(running=1, waiting=0, figures=(7.0,))
ENOUGH_S = 1.0
"""Many times what an engine may be still for here."""


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(serving_watch, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(serving_watch, "AGAIN_S", 0.01)


class Engine:
    """An engine whose load and whose answers to probes the test sets."""

    def __init__(self, load, answers, moves_every_s=None):
        self.load = load
        self.moves_every_s = moves_every_s
        self.answers = list(answers)
        self.asked = []
        self.left = 0

    async def read(self):
        if self.moves_every_s is None:
            return self.load
        return self.load._replace(figures=(time.monotonic() // self.moves_every_s,))

    async def ask(self, limit_s):
        """Take the next answer, the last for ever: None, an error, or so many seconds of silence."""
        self.asked.append(limit_s)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, EngineError):
            raise answer
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.sleep(answer or 0)
        except TimeoutError:
            raise EngineError("no token in time") from None
        except asyncio.CancelledError:
            self.left += 1
            raise


async def lives(engine, patience_s=30.0):
    """True if it is left alone for a while."""
    try:
        async with asyncio.timeout(ENOUGH_S):
            await watch_progress(engine.read, engine.ask, patience_s, HangDetector(QUICK))
    except TimeoutError:
        return True


async def test_one_that_answers_is_asked_again_each_time_it_is_still_for_long():
    engine = Engine(STILL, [None])
    assert await lives(engine)
    assert 2 <= len(engine.asked) <= 24


async def test_one_that_moves_is_asked_nothing():
    engine = Engine(STILL, [None], moves_every_s=0.001)  # between any two readings
    assert await lives(engine)
    assert engine.asked == []


async def test_one_that_owes_the_token_too_long_is_stuck():
    engine = Engine(STILL, [60])
    with pytest.raises(EngineError, match="generates no tokens: no token in time"):
        await asyncio.wait_for(watch_progress(engine.read, engine.ask, 0.1, HangDetector(QUICK)), 5)
    assert engine.asked == [0.1]


async def test_what_moves_while_it_is_asked_is_as_good_as_the_token():
    """A prefill goes on in chunks, slower than what makes it suspect; the question waits behind it and is taken back."""
    engine = Engine(STILL, [60], moves_every_s=0.3)
    assert await lives(engine)
    assert engine.asked
    assert engine.left == len(engine.asked)


async def test_one_whose_figures_move_at_the_end_of_a_request_is_waited_for():
    """TensorRT-LLM, one slot: the token comes when the long answer before it is done."""
    engine = Engine(STILL, [0.3])
    assert await lives(engine)
    with pytest.raises(EngineError, match="generates no tokens"):
        await asyncio.wait_for(watch_progress(engine.read, engine.ask, 0.1, HangDetector(QUICK)), 5)


async def test_a_connection_that_breaks_is_no_engine_that_died():
    engine = Engine(STILL, [EngineError("ServerDisconnectedError()"), None])
    assert await lives(engine)
    refusing = Engine(STILL, [EngineError("HTTP 500")])
    with pytest.raises(EngineError, match="HTTP 500"):
        await asyncio.wait_for(watch_progress(refusing.read, refusing.ask, 30, HangDetector(QUICK)), 5)
    assert len(refusing.asked) == 2


async def test_a_hang_that_began_while_it_was_idle_is_seen():
    engine = Engine(Load(running=0, waiting=0, figures=(7.0,)), [60])
    with pytest.raises(EngineError, match="generates no tokens"):
        await asyncio.wait_for(watch_progress(engine.read, engine.ask, 0.1, HangDetector(QUICK)), 5)


async def test_requests_that_only_wait_are_work():
    patient = QUICK.model_copy(update={"idle_s": 60.0})
    engine = Engine(Load(running=0, waiting=1, figures=(7.0,)), [60])
    with pytest.raises(EngineError, match="generates no tokens"):
        await asyncio.wait_for(watch_progress(engine.read, engine.ask, 0.1, HangDetector(patient)), 5)


async def test_nothing_is_left_asked_when_nobody_follows_any_more():
    engine = Engine(STILL, [60])
    following = asyncio.create_task(watch_progress(engine.read, engine.ask, 30, HangDetector(QUICK)))
    while not engine.asked:
        await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert engine.left == 1


async def unwell_after(answers, unwell_s, show=lambda words: None):
    """The error of a custom workload with these answers, the last for ever; and the number of checks."""
    left, asked = list(answers), []

    async def is_well():
        asked.append(time.monotonic())
        return left.pop(0) if len(left) > 1 else left[0]

    check = partial(health_failure, is_well, "/well")
    try:
        async with asyncio.timeout(ENOUGH_S):
            await watch_health(check, QUICK.model_copy(update={"unwell_s": unwell_s}), show)
    except EngineError as error:
        return str(error), asked
    except TimeoutError:
        return "", asked


async def test_a_custom_workload_that_is_not_well_for_long_is_told():
    words, asked = await unwell_after([True, False], unwell_s=0.1)
    assert "/well did not return 200 for 0 s" in words
    assert f"{len(asked) - 1} times in a row" in words
    assert asked[-1] - asked[1] >= 0.1


async def test_it_is_not_replaced_for_what_passes():
    shown = []
    words, asked = await unwell_after([False] * 5 + [True], unwell_s=0.8, show=shown.append)
    assert words == ""
    assert len(asked) > 6
    assert shown[0] == "/well did not return 200: it is restarted if that lasts for 1 s"
    assert "5 times in a row" in shown[4]
    assert not any(shown[5:])


async def test_it_is_not_replaced_before_it_has_failed_some_times_in_a_row():
    """However long one question took: this process may have slept."""
    words, _ = await unwell_after([False, False, True, False, False, True], unwell_s=0)
    assert words == ""
    words, asked = await unwell_after([False], unwell_s=0)
    assert "3 times in a row" in words
    assert len(asked) == serving_watch.UNWELL


async def test_a_beat_is_never_late():
    said = []
    beating = asyncio.create_task(send_heartbeats(lambda: said.append(1)))
    async with asyncio.timeout(5):
        while len(said) < 5:
            await asyncio.sleep(0.01)
    beating.cancel()


async def test_the_time_in_which_nobody_checked_does_not_count(monkeypatch):
    """The group's actor was stopped (SIGSTOP) between two failed checks of a workload that was busy for a moment."""
    monkeypatch.setattr(serving_watch, "LONGEST_CHECK_S", 0.01)
    asked = []

    async def check():
        asked.append(time.monotonic())
        if len(asked) == 2:
            time.sleep(0.4)  # noqa: ASYNC251  # the whole process stands still
        return "/well did not return 200"

    with pytest.raises(EngineError, match="is not healthy"):
        await watch_health(check, QUICK.model_copy(update={"unwell_s": 0.2}), lambda words: None)
    assert len(asked) > 8


@pytest.fixture
def sleeping():
    """A process that does nothing."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


async def until_stopped(process, number, stopped):
    process.send_signal(number)
    async with asyncio.timeout(5):
        while is_stopped(process.pid) is not stopped:
            await asyncio.sleep(0.01)


async def test_a_workload_is_stopped_if_each_process_at_its_port_is(sleeping):
    """The kernel accepts connections for it, and its clients waited for ever."""

    def listening(*pids, port=5005):
        socket = ListeningSocket(address="127.0.0.1", port=port, pids=pids)

        async def read():
            return Listening(address="127.0.0.1", port=5005, sockets=(socket,))

        return read

    async def unreadable():
        return None

    assert await stopped_process(listening(sleeping.pid)) == ""
    await until_stopped(sleeping, signal.SIGSTOP, True)
    words = f"process {sleeping.pid}, which listens on port 5005, was stopped by a signal"
    assert await stopped_process(listening(sleeping.pid)) == words
    assert await stopped_process(listening(sleeping.pid, os.getpid())) == ""  # a worker serves
    assert await stopped_process(listening(sleeping.pid, port=5006)) == ""
    assert await stopped_process(listening()) == ""  # of another user
    assert await stopped_process(unreadable) == ""
    await until_stopped(sleeping, signal.SIGCONT, False)
    assert await stopped_process(listening(sleeping.pid)) == ""


async def test_a_workload_in_a_container_in_which_nothing_runs_is_stopped():
    async def read():
        return Listening(address="127.0.0.1", port=5005, sockets=(), halted="its container is paused")

    assert await stopped_process(read) == "its container is paused"


FULL = 30.0
"""Seconds for which a requested token waits behind those of others: longer than a proof may take."""


@pytest.mark.parametrize(
    ("answer", "tokens", "blocks", "alive"),
    [
        (None, 0, 0, True),
        (FULL, 1, 0, True),
        (FULL, 0, 1, False),
        (FULL, 0, 0, False),
        (EngineError("HTTP 500"), 0, 0, False),
    ],
)
async def test_only_a_token_proves_that_all_ranks_compute(monkeypatch, answer, tokens, blocks, alive):
    monkeypatch.setattr(serving_watch, "ALIVE_S", 0.3)
    monkeypatch.setattr(serving_watch, "ALIVE_LOOK_S", 0.01)
    engine, times = Engine(STILL, [answer]), itertools.count()

    async def read():
        now = next(times)
        return Load(running=4, waiting=1, figures=(7.0 + tokens * now, 3.0 + blocks * now))

    assert await generates(read, engine.ask) is alive
    assert not tokens or engine.left, "a probe that is not needed any more is cancelled"


async def test_metrics_that_do_not_answer_delay_no_proof(monkeypatch):
    monkeypatch.setattr(serving_watch, "ALIVE_S", 0.1)

    async def read():
        await asyncio.Event().wait()

    assert not await generates(read, Engine(STILL, [FULL]).ask)
