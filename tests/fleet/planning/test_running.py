"""Order in which old engines end and new ones start, by the memory that is free now."""

import pytest
from control_values import plan as plan_of
from statuses import fleet

from sparkfleet.controlplane.state.status import DeploymentStatus, NodeReport
from sparkfleet.fleet.planning.running import handover, running_groups
from sparkfleet.planner.report.carry_over import RunningGroup
from sparkfleet.units import GIB


def status(free, nodes=1):
    names = [f"spark{n + 1}" for n in range(nodes)]
    return fleet(nodes=tuple(NodeReport(name=name, joined=True, memory_available=free) for name in names))


@pytest.mark.parametrize(
    ("reported", "order"),
    [(status(110 * GIB), "beside"), (status(8 * GIB), "first"), (status(None), None), (None, None)],
)
def test_the_order_of_a_new_engine_and_the_old_one(sparks, plan, ask, reported, order):
    before, after = ask(context=4096), ask(context=8192)
    old, new = (plan(sparks(1), spec).of("m") for spec in (before, after))
    running = [RunningGroup(member=(1, 0), plan=old.groups[0])]
    assert handover(after, new, running, reported) == order


@pytest.mark.parametrize(
    ("free", "retry", "order"), [(110, False, "beside"), (8, False, "in turn"), (8, True, "in turn")]
)
def test_two_replicas_end_in_turn_if_memory_does_not_hold_both(sparks, plan, ask, free, retry, order):
    before = ask(context=4096, replicas=2)
    after = before if retry else ask(context=8192, replicas=2)
    old, new = (plan(sparks(2), spec).of("m") for spec in (before, after))
    running = [RunningGroup(member=(1, at), plan=group) for at, group in enumerate(old.groups)]
    assert handover(after, new, running, status(free * GIB, nodes=2), retry=retry) == order


def test_an_engine_that_goes_on_needs_no_memory(sparks, plan, ask):
    spec = ask(keys=("ux",))
    found = plan(sparks(1), spec).of("m")
    running = [RunningGroup(member=(1, 0), plan=found.groups[0])]
    assert handover(spec, found, running, status(GIB)) == "beside"


def test_groups_of_the_present_generation_are_kept_before_those_that_they_replace():
    """An apply of the same file while `restart` ran kept the old engine, and ended the one that was starting."""
    now = plan_of("m")
    old, new = (RunningGroup(member=(generation, 0), plan=now.groups[0]) for generation in (5, 6))
    fields = {"state": "updating", "detail": "", "who": "me", "since": 0.0, "groups": ()}
    one = DeploymentStatus(name="m", generation=6, plan=now, members=((6, 0),), running=(old, new), **fields)
    assert running_groups("m", fleet(one)) == (new, old)
    assert running_groups("other", fleet(one)) == ()
