"""Sizes in words: memory in binary units, disks and downloads in decimal ones."""

import pytest

from sparkfleet.units import GIB, duration_words, gb, gib, gib_of, rough_duration, three_digits


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2.53e9, "2.5 GB"), (51e9, "51 GB"), (3.7e12, "3.7 TB")],
)
def test_decimal_sizes(size, text):
    assert gb(size) == text


def test_memory_has_two_digits_or_no_decimal():
    assert [gib(number * GIB) for number in (0, 0.154, 2.5, 9.97, 45.3, 121.7)] == [
        *("0 GiB", "0.15 GiB", "2.5 GiB", "10 GiB", "45 GiB", "122 GiB"),
    ]
    assert gib_of(45.3 * GIB, 121.7 * GIB) == "45 of 122 GiB"


def test_close_sizes_are_compared_with_a_decimal():
    assert (gib(112.9 * GIB, exact=True), gb(12.34e9, exact=True)) == ("112.9 GiB", "12.3 GB")


def test_a_rate_has_three_digits_or_no_decimal_and_no_exponent():
    assert [three_digits(rate) for rate in (9.274, 48.52, 99.94, 123.4, 999.6, 1254.0)] == [
        *("9.27", "48.5", "99.9", "123", "1000", "1254"),
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0 s"), (59.4, "59 s"), (60, "1 min"), (125, "2 min 5 s"), (3600, "1 h"), (3725, "1 h 2 min")],
)
def test_durations(seconds, words):
    assert duration_words(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(3, "10 s"), (44, "40 s"), (94, "90 s"), (96, "2 min"), (500, "8 min")]
)
def test_only_the_size_of_a_time_is_shown(seconds, words):
    assert rough_duration(seconds) == words
