import pytest

from sparkfleet.group.crash_backoff import Backoff
from sparkfleet.group.crash_pause import COUNTS_S
from sparkfleet.specs.timeouts import Timeouts

USUAL = Timeouts()


def test_each_start_waits_longer_than_the_one_before_and_the_first_for_nothing(tmp_path, clock):
    path = tmp_path / "rank" / "begun.0"
    # Each in a process of its own, as Serve makes them.
    assert [Backoff(path, USUAL, clock).begin() for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_what_ran_for_long_is_started_at_once(tmp_path, clock):
    backoff = Backoff(tmp_path / "begun.0", USUAL, clock)
    assert [backoff.begin(), backoff.begin()] == [0, 1]
    clock.now += COUNTS_S
    assert backoff.begin() == 0


def test_a_clock_that_was_set_back_makes_nobody_wait(tmp_path, clock):
    backoff = Backoff(tmp_path / "begun.0", USUAL, clock)
    backoff.begin()
    clock.now -= 500
    assert backoff.begin() == 0


def test_what_was_stopped_on_purpose_begins_anew(tmp_path, clock):
    backoff = Backoff(tmp_path / "begun.0", USUAL, clock)
    backoff.begin()
    backoff.forget()
    assert backoff.begin() == 0


@pytest.mark.parametrize("text", ["", "[1, [2]]", "{}", "\x00"])
def test_a_file_that_is_damaged_counts_nothing(tmp_path, clock, text):
    path = tmp_path / "begun.0"
    path.write_text(text)
    assert Backoff(path, USUAL, clock).begin() == 0
    assert Backoff(path, USUAL, clock).begin() == 1


def test_where_nothing_can_be_written_nothing_is_waited_for(tmp_path, clock):
    (tmp_path / "file").write_text("")
    backoff = Backoff(tmp_path / "file" / "begun.0", USUAL, clock)
    assert [backoff.begin(), backoff.begin()] == [0, 0]
    backoff.forget()


def test_the_pauses_are_those_that_it_is_given(tmp_path, clock):
    quick = Timeouts(pause_s=0.5, longest_pause_s=1.5)
    assert [Backoff(tmp_path / "begun.0", quick, clock).begin() for _ in range(4)] == [0, 0.5, 1, 1.5]
