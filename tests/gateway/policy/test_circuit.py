"""Circuit of a group, without any engine."""

from __future__ import annotations

import pytest

from sparkfleet.gateway.policy.circuit import LONGEST_OPEN_S, OPEN_S, Circuit, opened


def half_open(number: int = 7, now: float = 100.0) -> Circuit:
    return opened(None, now - OPEN_S).probed_by(number, now)


def test_a_failure_opens_it_for_the_pause() -> None:
    circuit = opened(None, 100.0)
    assert circuit.is_open(100.0 + OPEN_S - 0.1)
    assert not circuit.is_open(100.0 + OPEN_S)
    assert circuit.probed_by(7, 101.0) == circuit  # a request that found no other group is no probe
    assert not circuit.is_closed_by(7)


def test_failures_together_count_once_and_those_of_probes_double_the_pause() -> None:
    circuit = opened(opened(None, 100.0), 100.5)
    assert (circuit.failures, circuit.until) == (1, 100.5 + OPEN_S)
    pauses, now = [], circuit.until
    for number in range(1, 30):
        circuit = opened(circuit.probed_by(number, now), now + 1)
        pauses.append(circuit.until - now - 1)
        now = circuit.until
    assert pauses[:3] == pytest.approx([2 * OPEN_S, 4 * OPEN_S, 8 * OPEN_S])
    assert max(pauses) == pytest.approx(LONGEST_OPEN_S)


def test_a_failure_after_the_pause_counts_without_a_probe_too() -> None:
    assert opened(opened(None, 100.0), 100.0 + OPEN_S).failures == 2


def test_one_request_is_the_probe_until_it_answers() -> None:
    circuit = half_open(7)
    assert circuit.is_open(100.0 + OPEN_S - 0.1)
    assert circuit.probed_by(8, 101.0) == circuit
    assert circuit.is_closed_by(7)
    assert circuit.is_closed_by(8)
    assert not circuit.is_closed_by(
        6
    )  # sent before: its answer may have been on its way when the group failed


def test_a_probe_that_takes_long_is_joined_by_another_and_still_closes_it() -> None:
    """An answer that is no stream comes after minutes, and the group must not do nothing meanwhile."""
    circuit = half_open(7)
    joined = circuit.probed_by(9, 100.0 + OPEN_S)
    assert joined.is_open(100.0 + OPEN_S)
    assert joined.is_closed_by(7)
    assert joined.failures == 1


def test_a_probe_that_leaves_makes_room_and_another_request_does_not() -> None:
    circuit = half_open(7)
    assert not circuit.after_end_of(7, 101.0).is_open(101.0)
    assert circuit.after_end_of(8, 101.0) == circuit
    fresh = opened(None, 100.0)
    assert fresh.after_end_of(0, 101.0) == fresh


def test_it_is_explained() -> None:
    circuit = opened(None, 100.0)
    assert circuit.line(101.0) == f"open: failed, tried again in {OPEN_S - 1:.1f} s"
    assert circuit.line(100.0 + OPEN_S) == "half-open: failed, the next request tries it"
    again = opened(half_open(), 101.0)
    assert again.line(101.0) == f"open: failed 2 times in a row, tried again in {2 * OPEN_S:.1f} s"
    assert half_open().line(101.0) == "half-open: failed, a request tries it"
