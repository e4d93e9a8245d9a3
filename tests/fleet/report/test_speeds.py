"""Speeds from counters of tokens: the window, restarts of engines, groups that end."""

import pytest

from sparkfleet.fleet.report.speeds import KEPT, WINDOW_S, SpeedHistory, sparkline


def seen(*readings):
    speeds = SpeedHistory()
    for at, tokens in readings:
        speeds.see(at, tokens)
    return speeds


def test_a_speed_needs_two_readings():
    assert seen((0, {"a": 100.0})).now("a") is None
    assert seen((0, {"a": 100.0}), (2, {"a": 150.0})).now("a") == 25


def test_a_counter_that_is_reported_every_two_seconds_gives_a_steady_speed():
    """Read each second: 10 tok/s, never 0 and never 20."""
    speeds = seen(*((at, {"a": 20.0 * (at // 2)}) for at in range(30)))
    assert all(8 <= speed <= 12 for speed in speeds.of("a")[6:])


def test_it_falls_to_zero_once_the_window_has_no_token():
    speeds = seen((0, {"a": 0.0}), (1, {"a": 60.0}), *((1 + at, {"a": 60.0}) for at in range(1, 9)))
    assert speeds.now("a") == 0
    assert speeds.of("a")[0] == 60


def test_an_engine_that_restarted_has_no_negative_speed():
    speeds = seen((0, {"a": 1000.0}), (1, {"a": 1010.0}), (2, {"a": 5.0}), (3, {"a": 10.0}))
    assert speeds.of("a") == (10, 5)


def test_a_group_that_ended_counts_no_more():
    speeds = seen((0, {"a": 0.0, "b": 0.0}), (1, {"a": 10.0, "b": 20.0}), (2, {"b": 40.0}))
    assert speeds.now("a") is None
    assert speeds.total() == 20


def test_an_unknown_counter_changes_nothing():
    speeds = seen((0, {"a": 0.0}), (1, {"a": 10.0}), (2, {"a": None}))
    assert speeds.now("a") == 10


def test_only_the_last_speeds_are_kept():
    assert len(seen(*((at, {"a": 0.0}) for at in range(2 * KEPT))).of("a")) == KEPT
    assert WINDOW_S > 2 * 2.0, "two reports of a group"


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [((), 5, ""), ((0, 0), 5, "▁▁"), ((0, 5, 10), 5, "▁▅█"), ((9, 0, 5, 10), 3, "▁▅█"), ((1,), 0, "")],
)
def test_a_sparkline_is_as_high_as_its_highest(values, width, shown):
    assert sparkline(values, width) == shown
