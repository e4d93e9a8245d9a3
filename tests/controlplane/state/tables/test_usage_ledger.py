"""Usage is counted once, even if the gateway or the controller restarts."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from clocks import Clock
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkfleet.cli.clients.usage import sums
from sparkfleet.controlplane.state import schema
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.tables.usage_ledger import (
    KEEP_DAYS,
    MARK_DAYS,
    MARK_REPLICAS,
    UsageRow,
    day_of,
)
from sparkfleet.gateway.accounting.usage_journal import OLDEST_DAYS
from sparkfleet.gateway.report import KeyUsage

DAY = 86400.0
NOON = 1_800_000_000.0


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Store:
    return Store(tmp_path / "sparkfleet.db", clock=clock)


def total(requests: int, key: str = "ci", model: str = "tiny") -> KeyUsage:
    return KeyUsage(
        key=key, model=model, requests=requests, uncounted=0, input=10 * requests, output=2 * requests
    )


def test_totals_are_added_once_over_restarts_of_either_side(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    store.usage.add("g1", [total(3)])
    store.usage.add("g1", [total(3)])
    store.usage.add("g1", [total(5)])
    store.close()
    again = Store(tmp_path / "sparkfleet.db", clock=clock)  # a restarted controller
    again.usage.add("g1", [total(7)])
    again.usage.add("g2", [total(2), total(1, key="laptop")])  # a restarted gateway
    rows = {(row.key, row.model): row for row in again.usage.last_days(1)}
    assert rows["ci", "tiny"].requests == 9
    assert (rows["ci", "tiny"].input, rows["ci", "tiny"].output) == (90, 18)
    assert rows["laptop", "tiny"].requests == 1


def test_late_reports_of_a_replica_add_nothing(store: Store) -> None:
    """Of a killed gateway the controller may read the file before it adds the last report once more."""
    store.usage.add("g1", [total(12)])
    before = store.writes
    store.usage.add("g1", [total(10)])
    assert store.writes == before
    store.usage.add("g1", [total(13)])
    assert [row.requests for row in store.usage.last_days(1)] == [13]


def test_a_key_that_rests_for_longer_than_marks_are_kept_is_not_counted_again(
    store: Store, clock: Clock
) -> None:
    store.usage.add("g1", [total(1, key="ci"), total(1, key="laptop")])
    for day in range(2, 3 * MARK_DAYS):
        clock.now += DAY
        store.usage.add("g1", [total(1, key="ci"), total(day, key="laptop")])
    assert OLDEST_DAYS < MARK_DAYS
    assert sum(row.requests for row in store.usage.last_days(KEEP_DAYS) if row.key == "ci") == 1


def test_nothing_new_writes_nothing(store: Store) -> None:
    store.usage.add("g1", [total(3)])
    before = store.writes
    store.usage.add("g1", [total(3)])
    store.usage.add("g1", [])
    assert store.writes == before


def test_days_are_apart_and_old_ones_end(store: Store, clock: Clock) -> None:
    store.usage.add("g1", [total(1)])
    clock.now += DAY
    store.usage.add("g1", [total(4)])
    assert [(row.day, row.requests) for row in store.usage.last_days(2)] == [
        (day_of(NOON), 1),
        (day_of(NOON + DAY), 3),
    ]
    assert [row.requests for row in store.usage.last_days(1)] == [3]
    clock.now += (KEEP_DAYS + 2) * DAY
    between = [(day_of(clock.now - n * DAY), "ci", "tiny", 0, 0, 0, 0) for n in range(1, KEEP_DAYS)]
    store.executemany("INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?)", between)
    store.usage.add("g2", [total(1)])
    store.execute("DELETE FROM usage WHERE requests = 0")
    assert [row.requests for row in store.usage.last_days(10 * KEEP_DAYS)] == [1]


def test_an_older_store_gets_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as db:
        db.executescript("".join(schema.SCHEMAS[:8]))
        db.execute("PRAGMA user_version = 8")
    store = Store(path)
    assert store.usage.last_days(1) == ()
    store.usage.add("g1", [total(1)])
    assert len(store.usage.last_days(1)) == 1


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["g1", "g2"]), st.integers(1, 50)), max_size=20))
def test_the_sum_is_that_of_all_replicas(steps: list[tuple[str, int]]) -> None:
    store, counted = Store(Path(":memory:")), {"g1": 0, "g2": 0}
    for replica, more in steps:
        counted[replica] += more
        store.usage.add(replica, [total(counted[replica])])
    assert sum(row.requests for row in store.usage.last_days(1)) == sum(counted.values())
    store.close()


def test_sums() -> None:
    rows = [
        UsageRow(day="d", key=key, model=model, requests=1, uncounted=0, input=2, output=3)
        for key in "ab"
        for model in "xy"
    ]
    assert sums(rows, ("key",)) == {("a",): (2, 4, 6), ("b",): (2, 4, 6)}
    assert len(sums(rows, ("key", "model"))) == 4


def test_a_clock_that_is_years_ahead_for_one_request_ends_no_day(store: Store, clock: Clock) -> None:
    """A node that had started before its time was set deleted 300 days."""
    for day in range(3):
        store.usage.add("g1", [total(day + 1)])
        clock.now += DAY
    clock.now += 3 * 365 * DAY
    store.usage.add("g1", [total(4)])
    clock.now -= 3 * 365 * DAY
    store.usage.add("g1", [total(5)])
    assert sum(row.requests for row in store.usage.last_days(10)) == 5


def test_a_clock_that_is_months_ahead_for_one_request_adds_no_replica_again(
    store: Store, clock: Clock
) -> None:
    store.usage.add("g1", [total(100)])
    clock.now += (MARK_DAYS + 1) * DAY
    store.usage.add("g2", [total(1)])
    clock.now -= (MARK_DAYS + 1) * DAY
    store.usage.add("g1", [total(100)])
    store.usage.add("g2", [total(1)])
    assert sum(row.requests for row in store.usage.last_days(KEEP_DAYS)) == 101


def test_totals_of_replicas_that_ended_long_ago_are_forgotten(store: Store, clock: Clock) -> None:
    for replica in range(MARK_REPLICAS + 20):
        store.usage.add(f"g{replica}", [total(1)])
        clock.now += DAY
    store.usage.add("g0", [total(1)])
    assert sum(row.requests for row in store.usage.last_days(KEEP_DAYS)) == MARK_REPLICAS + 21, (
        "it is a new one"
    )
