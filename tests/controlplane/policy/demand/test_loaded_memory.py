"""Memory that deployments on demand give back: of a group that ends, until its engines have ended."""

import pytest
from demand_world import on_demand
from policy_world import application

from sparkfleet.controlplane.policy.demand.loaded_memory import given_back
from sparkfleet.controlplane.policy.state import FleetState, Pending
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.units import GIB


def ends(phase, generation=1, **fields):
    """`a` is unloaded, and a group of it ends."""
    report = GroupReport(
        deployment="a", generation=generation, replica=0, phase=phase, node="this", since=0.0
    )
    given = {"desired": {"a": on_demand("a", 80)}, "pending": Pending(unloaded={"a": "it made room for b"})}
    return FleetState(
        apps=(application(("a", generation, 0), "retiring"),), reports=(report,), **{**given, **fields}
    )


@pytest.mark.parametrize(("phase", "back"), [(GroupPhase.DRAINING, 80), (GroupPhase.STOPPED, 0)])
def test_it_counts_until_the_engines_have_ended_and_is_free_then(phase, back):
    """It counted twice, and another deployment was ended for one that did not fit."""
    assert given_back(ends(phase), {"this": 90 * GIB}) == ({"this": back * GIB} if back else {})


@pytest.mark.parametrize(("phase", "back"), [(GroupPhase.DRAINING, 60), (GroupPhase.STOPPED, 0)])
def test_that_of_the_generation_which_served_instead_counts_once(phase, back):
    before = on_demand("a", 60)
    edited = ends(
        phase,
        desired={"a": on_demand("a", 80, generation=2)},
        last_served={"a": before},
        ending={("a", 1, 0): before.plan.groups[0].choice},
        standings={("a", 2, 0): Standing(given_up=True)},
    )
    assert given_back(edited, {"this": 90 * GIB}) == ({"this": back * GIB} if back else {})
