"""Results of `sparkfleet bench`: the newest of each setup and load, which survive a restart."""

import pytest
from clocks import Clock
from control_values import plan
from pydantic import ValidationError

from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.tables import bench_table
from sparkfleet.controlplane.state.tables.bench_table import (
    BenchLoad,
    BenchResult,
    bench_setup_of,
)

SETUP = bench_setup_of(plan().groups[0].choice.candidate)
ALONE = BenchLoad(content="mixed", prompt=2048, answer=256, concurrency=1)
RESULT = BenchResult(setup=SETUP, load=ALONE, ttft_ms=412.4, request_tps=48.23, group_tps=48.23)


@pytest.fixture
def clock():
    return Clock(1_800_000_000.0)


@pytest.fixture
def store(tmp_path, clock):
    store = Store(tmp_path / "sparkfleet.db", clock=clock)
    yield store
    store.close()


def test_a_newer_one_replaces_that_of_the_same_setup_and_load(store, clock, tmp_path):
    store.bench.keep(RESULT)
    clock.now += 60
    faster = RESULT.model_copy(update={"request_tps": 50.0})
    four = RESULT.model_copy(update={"load": ALONE.model_copy(update={"concurrency": 4})})
    store.bench.keep(faster)
    clock.now += 60
    store.bench.keep(four)
    store.close()
    again = Store(tmp_path / "sparkfleet.db", clock=clock)
    assert again.bench.all() == (
        four.model_copy(update={"at": clock.now}),
        faster.model_copy(update={"at": clock.now - 60}),
    )
    again.close()


def test_the_oldest_are_dropped(store, clock, monkeypatch):
    monkeypatch.setattr(bench_table, "MOST_RESULTS", 3)
    for requests in range(1, 6):
        clock.now += 1
        store.bench.keep(
            RESULT.model_copy(update={"load": ALONE.model_copy(update={"concurrency": requests})})
        )
    assert [one.load.concurrency for one in store.bench.all()] == [5, 4, 3]


def test_those_of_a_newer_release_are_left_out(store):
    store.bench.keep(RESULT)
    store.bench._db.execute("INSERT INTO bench_results VALUES ('a', 'b', '{\"from\": 2030}', 1.0)")
    assert [one.load for one in store.bench.all()] == [ALONE]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_no_rate_is_kept_that_is_none(rate):
    with pytest.raises(ValidationError):
        BenchResult(setup=SETUP, load=ALONE, ttft_ms=1.0, request_tps=rate, group_tps=1.0)
