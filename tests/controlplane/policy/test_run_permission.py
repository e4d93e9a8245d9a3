"""A group's actor that is being stopped asks if its engine is to run on."""

from dataclasses import replace

import pytest
from policy_world import application, desired

from sparkfleet.controlplane.policy.run_permission import is_wanted
from sparkfleet.controlplane.policy.state import FleetState
from sparkfleet.controlplane.state.desired import Standing

OLD, NEW = ("tiny", 1, 0), ("tiny", 2, 0)
STATE = FleetState(
    desired={"tiny": desired("tiny", generation=2, rungs=2)},
    apps=(application(OLD, "running"), application(NEW, "starting")),
)


def test_the_group_of_the_desired_generation_at_its_rung_is_wanted():
    assert is_wanted(STATE, NEW, 0)


@pytest.mark.parametrize(
    "state",
    [
        replace(STATE, desired={}),
        replace(STATE, paused=True),
        replace(STATE, apps=(application(NEW, "retiring"),)),
        replace(STATE, standings={NEW: Standing(rung=1)}),
        replace(STATE, standings={NEW: Standing(given_up=True)}),
        replace(STATE, desired={"tiny": desired("tiny", generation=3)}, apps=(application(OLD, "running"),)),
    ],
    ids=("deleted", "down", "retired", "next rung", "given up", "replaced and gone"),
)
def test_one_that_the_policy_has_ended_is_not(state):
    assert not is_wanted(state, NEW, 0)


def test_a_group_that_the_plan_no_longer_has_is_not_wanted():
    assert not is_wanted(STATE, ("tiny", 2, 1), 0)


def test_an_older_generation_is_wanted_as_long_as_it_serves():
    assert is_wanted(STATE, OLD, 0)
    retired = replace(STATE, apps=(application(OLD, "retiring"), application(NEW, "running")))
    assert not is_wanted(retired, OLD, 0)


def test_a_controller_that_has_not_seen_the_applications_yet_keeps_what_may_serve():
    unseen = replace(STATE, apps=())
    assert is_wanted(unseen, NEW, 0)
    assert is_wanted(unseen, OLD, 0)
    assert not is_wanted(unseen, ("tiny", 3, 0), 0), "no such generation exists"
