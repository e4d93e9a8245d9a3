"""The simulation: what has to hold under random faults holds, a seed replays, and a broken rule is found."""

import pytest

from sparkfleet.controlplane.policy import decide as policy
from sparkfleet.lab.simulation.faults import FAULTS
from sparkfleet.lab.simulation.run import simulate


@pytest.mark.parametrize(("seed", "nodes"), [(1, 2), (2, 3), (3, 4)])
def test_the_invariants_hold(seed, nodes):
    report = simulate(seed, hours=1.0, nodes=nodes)
    assert report.violations == []
    assert report.hours == pytest.approx(4.0, abs=0.1)
    assert len(report.faults) > len(FAULTS) / 2
    assert report.ends.total() > 3


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_the_invariants_hold_for_hundreds_of_hours(nodes):
    failed = {seed: found for seed in range(1000, 1025) if (found := simulate(seed, 3.0, nodes).violations)}
    assert failed == {}


def test_a_seed_replays_exactly():
    one, two = simulate(7, hours=0.5), simulate(7, hours=0.5)
    assert (one.log, one.rounds, one.ends) == (two.log, two.rounds, two.ends)
    assert simulate(8, hours=0.5).log != one.log


@pytest.mark.parametrize("rule", ["retire_unwanted", "start_missing", "keep_groups_up", "retire_replaced"])
def test_a_policy_without_one_of_its_rules_is_found(rule, monkeypatch):
    """Without this nobody would know that the invariants can fail."""
    rest = tuple(one for one in policy.RULES if one.__name__ != rule)
    assert len(rest) == len(policy.RULES) - 1
    monkeypatch.setattr(policy, "RULES", rest)
    assert any(simulate(seed, hours=1.0).violations for seed in range(6))
