from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.staging.progress import RateMeter, eta_s


def test_a_rate_is_the_mean_of_the_window():
    meter = RateMeter(window_s=10)
    assert meter.rate(0, 0) == 0
    assert meter.rate(1, 100) == 100
    assert meter.rate(2, 300) == 150
    assert meter.rate(12, 300) == 0  # nothing has moved for as long as the window


def test_bytes_of_former_runs_are_no_rate():
    meter = RateMeter()
    meter.rate(0, 5_000_000)
    assert meter.rate(1, 5_000_100) == 100


def test_a_falling_count_restarts_the_rate():
    meter = RateMeter()
    meter.rate(0, 1000)
    meter.rate(1, 10)
    assert meter.rate(2, 30) == 20


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 1 << 50))))
def test_a_rate_is_never_negative(samples):
    meter, now = RateMeter(), 0.0
    for step, done in samples:
        now += step
        assert meter.rate(now, done) >= 0


@pytest.mark.parametrize(("rate", "left", "seconds"), [(10, 100, 10), (0, 100, None), (0, 0, 0), (5, -3, 0)])
def test_time_left(rate, left, seconds):
    assert eta_s(rate, left) == seconds
