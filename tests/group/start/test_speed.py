import asyncio
import subprocess
import sys

import pytest

from sparkfleet.group.measured_rate import unknown_rate_words
from sparkfleet.group.probe import StreamMeasurement
from sparkfleet.group.start import speed
from sparkfleet.group.start.speed import RUNS, MeasuringTurns, measure_speed, of_streams


def stream(rate, ttft=10.0):
    return StreamMeasurement(ttft_ms=ttft, decode_tps=rate, tokens=64)


def test_one_disturbed_stream_does_not_move_the_median():
    found = of_streams([stream(100, 8), stream(20, 400), stream(104, 9)])
    assert (found.decode_tps, found.ttft_ms, found.runs) == (100, 9, 3)
    assert found.spread == pytest.approx(0.84)
    assert of_streams([stream(100)]).spread == 0


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((616, 758, 100_000), "tok/s not known: its 3 streams are 13111% apart"),
        ((20, 41, 62), "tok/s not known: its 3 streams are 102% apart"),
        ((20, 40, 60), ""),
        ((95, 100, 104), ""),
        ((100,), ""),
    ],
)
def test_streams_that_are_further_apart_than_their_median_give_no_rate(rates, words):
    found = of_streams([stream(rate) for rate in rates]).values()
    assert unknown_rate_words(found) == words
    assert ("decode_tps" in found) is (words == "")
    assert (found["ttft_ms"], found["measured_runs"]) == (10.0, len(rates))
    assert unknown_rate_words({}) == ""


async def test_a_slow_engine_is_measured_once(monkeypatch):
    calls = []

    async def measure():
        calls.append(1)
        return stream(8)

    assert (await measure_speed(measure)).runs == RUNS == len(calls)
    monkeypatch.setattr(speed, "BUDGET_S", 0.0)
    assert (await measure_speed(measure)).runs == 1


@pytest.fixture
def turns(tmp_path):
    return MeasuringTurns(tmp_path / "run" / "measuring")


async def test_a_run_directory_that_was_removed_comes_back_for_this_user_alone(tmp_path):
    """It came back open to all, and the next `up` refused to use it."""
    async with MeasuringTurns(tmp_path / "user" / "run" / "measuring").alone(0.0) as mine:
        assert mine
    for path in (tmp_path / "user", tmp_path / "user" / "run"):
        assert path.stat().st_mode & 0o777 == 0o700


async def alone(turns, wait_s=0.0):
    async with turns.alone(wait_s) as mine:
        return mine


async def test_none_is_measured_while_another_starts_and_many_start_at_once(turns):
    async with turns.starting(), turns.starting():
        await asyncio.sleep(0)
        assert not await alone(turns)
    assert await alone(turns)


async def test_two_are_measured_one_after_the_other(turns):
    async with turns.alone(0) as first:
        assert first
        assert not await alone(turns)
        waiting = asyncio.create_task(alone(turns, 10))
        await asyncio.sleep(0.3)
        assert not waiting.done()
    assert await waiting


async def test_a_start_does_not_wait_for_a_measurement_and_keeps_the_next_from_beginning(turns):
    async with turns.alone(0):
        starting = turns.starting()
        async with asyncio.timeout(1):
            await starting.__aenter__()
    await asyncio.sleep(3 * speed.LOOK_S)
    assert not await alone(turns)
    await starting.__aexit__(None, None, None)
    assert await alone(turns)


def test_a_killed_process_ends_its_turn(turns, tmp_path):
    program = (
        "import asyncio, pathlib, sys\n"
        "from sparkfleet.group.start.speed import MeasuringTurns\n"
        "async def main():\n"
        "    async with MeasuringTurns(pathlib.Path(sys.argv[1])).alone(5) as mine:\n"
        "        print(mine, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    path = str(tmp_path / "run" / "measuring")
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "True\n"
        assert not asyncio.run(alone(turns))
        other.kill()
        other.wait()
    assert asyncio.run(alone(turns))
