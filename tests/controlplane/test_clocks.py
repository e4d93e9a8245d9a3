"""A wall clock that was set back, seen by one controller or the next."""

import pytest

from sparkfleet.controlplane.clocks import WallClock
from sparkfleet.controlplane.policy.state import Now


@pytest.fixture
def machine():
    """The clocks of a machine: [wall, steady]."""
    return [1e9, 1000.0]


def opened(machine, file=None):
    return WallClock(lambda: Now(unix=machine[0], steady=machine[1]), file)


def test_it_counts_from_the_latest_moment_until_it_is_accepted(machine):
    clock = opened(machine)
    for wall, steady, back in [
        (0, 0, 0),
        (60, 60, 0),
        (3600, 0, 0),
        (0, 3, 0),
        (-7200, 1, 7204),
        (5, 5, 7204),
    ]:
        machine[0], machine[1] = machine[0] + wall, machine[1] + steady
        assert clock.set_back_s() == pytest.approx(back)
    clock.accept()
    assert clock.set_back_s() == 0.0
    machine[0] -= 6
    assert clock.set_back_s() == pytest.approx(6)


def test_the_next_controller_knows_the_clock_of_the_one_before(machine, tmp_path):
    file = tmp_path / "clock"
    assert opened(machine, file).set_back_s() == 0.0
    machine[0] -= 60
    assert opened(machine).set_back_s() == 0.0
    clock = opened(machine, file)
    assert clock.set_back_s() == pytest.approx(60)
    clock.accept()
    assert opened(machine, file).set_back_s() == 0.0


@pytest.mark.parametrize("content", [b"", b"x", b"\xff", b"nan", b"-inf", b"inf", None])
def test_a_file_that_cannot_be_read_is_written_again(machine, tmp_path, content):
    file = tmp_path / "clock"
    file.mkdir() if content is None else file.write_bytes(content)
    clock = opened(machine, file)
    assert clock.set_back_s() == 0.0
    machine[0] -= 60
    assert clock.set_back_s() == pytest.approx(60)
