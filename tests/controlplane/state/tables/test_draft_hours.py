"""Draft tokens by hour: a window, of which no hour weighs more than its part, and no setup another one's."""

from __future__ import annotations

from pathlib import Path

import pytest
from clocks import Clock

from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.tables import draft_hours
from sparkfleet.controlplane.state.tables.draft_hours import HOUR_S, HOUR_STEPS, KEEP_HOURS
from sparkfleet.controlplane.state.tables.draft_traffic import DraftCounts, DraftSetup
from sparkfleet.perf.prediction import Speculation

NOON = 1_800_000_000.0
MTP = DraftSetup(model="m", engine="vllm", speculation=Speculation(method="mtp", tokens=3))
EAGLE = DraftSetup(model="m", engine="vllm", speculation=Speculation(method="eagle3", tokens=3, draft="o/d"))


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Store:
    return Store(tmp_path / "sparkfleet.db", clock=clock)


def counts(steps: float, mean: float = 2.0, positions: bool = True) -> DraftCounts:
    accepted = steps * (mean - 1)
    by_position = (accepted * 0.6, accepted * 0.3, accepted * 0.1) if positions else ()
    return DraftCounts(steps=steps, proposed=3 * steps, accepted=accepted, by_position=by_position)


def mean(one) -> float:
    return 1 + one.counts.accepted / one.counts.steps


def test_counts_of_an_hour_are_added_and_survive_a_restart(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    store.drafts.add({("m", MTP): counts(100), ("m", EAGLE): counts(300, 1.5)})
    store.drafts.add({("m", MTP): counts(60)})
    store.close()
    again = Store(tmp_path / "sparkfleet.db", clock=clock)
    eagle, mtp = again.drafts.traffic()["m"]
    assert (mtp.setup, mtp.steps) == (MTP, 160)
    assert mtp.counts.steps == pytest.approx(160)
    assert mtp.counts.by_position == pytest.approx((96.0, 48.0, 16.0))
    assert (eagle.setup, mean(eagle)) == (EAGLE, pytest.approx(1.5))
    again.close()


def test_a_benchmark_of_random_tokens_is_one_hour_of_the_days(store: Store, clock: Clock) -> None:
    """A hundred working hours of 2,000 steps, and one of a million: uncapped its share would be five sixths."""
    for _ in range(100):
        store.drafts.add({("m", MTP): counts(2_000, mean=2.6)})
        clock.now += HOUR_S
    store.drafts.add({("m", MTP): counts(1_000_000, mean=1.1)})
    (one,) = store.drafts.traffic()["m"]
    assert one.steps == 1_200_000
    assert one.counts.steps == pytest.approx(200_000 + HOUR_STEPS)
    assert mean(one) == pytest.approx(2.6, abs=0.05)


def test_two_weeks_count(store: Store, clock: Clock) -> None:
    store.drafts.add({("m", MTP): counts(5_000, mean=3.5)})
    clock.now += 8 * 24 * HOUR_S
    store.drafts.add({("m", MTP): counts(1_000, mean=1.2)})
    assert store.drafts.traffic()["m"][0].steps == 6_000
    clock.now = NOON + KEEP_HOURS * HOUR_S
    (one,) = store.drafts.traffic()["m"]
    assert (one.steps, mean(one)) == (1_000, pytest.approx(1.2))
    store.drafts.add({("m", MTP): counts(10)})
    assert store.drafts._db.execute("SELECT count(*) FROM draft_hours").fetchone() == (2,)


def test_hours_of_a_clock_that_was_ahead_do_not_stay(store: Store, clock: Clock) -> None:
    clock.now += 400 * 24 * HOUR_S
    store.drafts.add({("m", MTP): counts(9_000, mean=1.0)})
    clock.now = NOON
    assert store.drafts.traffic() == {}
    store.drafts.add({("m", MTP): counts(10)})
    assert store.drafts.traffic()["m"][0].steps == 10


def test_the_number_of_rows_is_limited(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_hours, "MOST_ROWS", 5)
    for _ in range(9):
        store.drafts.add({("m", MTP): counts(10)})
        clock.now += HOUR_S
    assert store.drafts.traffic()["m"][0].steps == 50


def test_a_setup_of_a_newer_release_is_left_out(store: Store) -> None:
    store.drafts.add({("m", MTP): counts(10)})
    store.drafts._db.execute("UPDATE draft_hours SET setup = json_set(setup, '$.newer', 1)")
    assert store.drafts.traffic() == {}


def test_positions_are_kept_as_far_as_all_counts_have_them(store: Store) -> None:
    store.drafts.add({("m", MTP): counts(10)})
    store.drafts.add({("m", MTP): counts(10, positions=False)})
    (one,) = store.drafts.traffic()["m"]
    assert (one.counts.accepted, one.counts.by_position) == (pytest.approx(20.0), ())
