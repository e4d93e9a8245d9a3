"""If the old engine serves until the new one is ready, or goes first: what `plan` says of memory that is free now."""

import pytest
from control_values import plan as plan_of
from statuses import fleet

from sparkfleet.controlplane.state.status import DeploymentStatus, NodeReport
from sparkfleet.fleet.planning.running import memory_holds_both, running_groups
from sparkfleet.planner.report.carry_over import RunningGroup
from sparkfleet.units import GIB


def status(free):
    return fleet(nodes=(NodeReport(name="spark1", joined=True, memory_available=free),))


@pytest.mark.parametrize(
    ("reported", "both"),
    [(status(110 * GIB), True), (status(8 * GIB), False), (status(None), None), (None, None)],
)
def test_a_new_engine_fits_beside_the_old_one_or_does_not_or_nobody_knows(sparks, plan, ask, reported, both):
    before, after = ask(context=4096), ask(context=8192)
    old, new = (plan(sparks(1), spec).of("m") for spec in (before, after))
    running = [RunningGroup(member=(1, 0), plan=old.groups[0])]
    assert memory_holds_both(after, new, running, reported) is both


def test_an_engine_that_goes_on_needs_no_memory(sparks, plan, ask):
    spec = ask(keys=("ux",))
    found = plan(sparks(1), spec).of("m")
    running = [RunningGroup(member=(1, 0), plan=found.groups[0])]
    assert memory_holds_both(spec, found, running, status(GIB)) is True


def test_groups_of_the_present_generation_are_kept_before_those_that_they_replace():
    """An apply of the same file while `restart` ran kept the old engine, and ended the one that was starting."""
    now = plan_of("m")
    old, new = (RunningGroup(member=(generation, 0), plan=now.groups[0]) for generation in (5, 6))
    fields = {"state": "updating", "detail": "", "who": "me", "since": 0.0, "groups": ()}
    one = DeploymentStatus(name="m", generation=6, plan=now, members=((6, 0),), running=(old, new), **fields)
    assert running_groups("m", fleet(one)) == (new, old)
    assert running_groups("other", fleet(one)) == ()
