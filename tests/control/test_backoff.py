import pytest

from sparkfleet.control.backoff import Backoff
from sparkfleet.control.policy.crash_backoff import COUNTS_S


def test_each_start_waits_longer_than_the_one_before_and_the_first_for_nothing(tmp_path, clock):
    path = tmp_path / "rank" / "begun.0"
    # Each in a process of its own, as Serve makes them.
    assert [Backoff(path, clock).begin() for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_what_ran_for_long_is_started_at_once(tmp_path, clock):
    backoff = Backoff(tmp_path / "begun.0", clock)
    assert [backoff.begin(), backoff.begin()] == [0, 1]
    clock.now += COUNTS_S
    assert backoff.begin() == 0


def test_a_clock_that_was_set_back_makes_nobody_wait(tmp_path, clock):
    backoff = Backoff(tmp_path / "begun.0", clock)
    backoff.begin()
    clock.now -= 500
    assert backoff.begin() == 0


def test_what_was_stopped_on_purpose_begins_anew(tmp_path, clock):
    backoff = Backoff(tmp_path / "begun.0", clock)
    backoff.begin()
    backoff.forget()
    assert backoff.begin() == 0


@pytest.mark.parametrize("text", ["", "[1, [2]]", "{}", "\x00"])
def test_a_file_that_is_damaged_counts_nothing(tmp_path, clock, text):
    path = tmp_path / "begun.0"
    path.write_text(text)
    assert Backoff(path, clock).begin() == 0
    assert Backoff(path, clock).begin() == 1


def test_where_nothing_can_be_written_nothing_is_waited_for(tmp_path, clock):
    (tmp_path / "file").write_text("")
    backoff = Backoff(tmp_path / "file" / "begun.0", clock)
    assert [backoff.begin(), backoff.begin()] == [0, 0]
    backoff.forget()
