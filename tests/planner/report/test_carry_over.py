import pytest
from control_values import plan

from sparkfleet.planner.report.carry_over import RunningGroup, carried_over, shared_port
from sparkfleet.planner.types.plan import GroupShape


def running(made, member=(1, 0), rung=0):
    return RunningGroup(member=member, plan=made.groups[0], rung=rung)


def test_a_group_with_the_same_command_goes_on():
    assert carried_over(plan(), [running(plan())]).kept == ((1, 0),)


def test_a_group_with_another_command_starts_anew():
    assert carried_over(plan(context=1024), [running(plan())]).kept == (None,)


def test_a_further_replica_starts_beside_the_running_one():
    found = carried_over(plan(groups=2), [running(plan())])
    assert found.kept == ((1, 0), None)


def test_of_two_running_groups_one_is_ended_when_one_is_wanted():
    both = [running(plan(), (1, 0)), running(plan(), (2, 1))]
    found = carried_over(plan(), both)
    assert found.kept == ((1, 0),)
    assert [one.member for one in found.ended(both)] == [(2, 1)]


def test_a_better_prediction_of_the_memory_share_restarts_nothing():
    assert carried_over(plan(memory_fraction=0.5), [running(plan(memory_fraction=0.6))]).kept == ((1, 0),)


def test_a_quicker_start_restarts_nothing():
    assert carried_over(plan(mmap=False), [running(plan(mmap=True))]).kept == ((1, 0),)


@pytest.mark.parametrize(
    ("running_with", "planned_with", "goes_on"),
    [
        (("a.org", "b.org"), ("a.org",), True),
        (("a.org", "b.org"), ("b.org", "a.org"), True),
        (("a.org",), (), True),
        (("a.org",), ("a.org", "b.org"), False),
        ((), ("a.org",), False),
    ],
)
def test_a_host_of_media_less_restarts_nothing_and_one_more_does(running_with, planned_with, goes_on):
    """The gateway refuses the host that was taken out; a new one the engine itself would refuse."""
    found = carried_over(plan(media_domains=planned_with), [running(plan(media_domains=running_with))])
    assert found.kept == (((1, 0) if goes_on else None),)
    # the running engine keeps the command that it was started with
    assert found.plan.groups[0].choice.candidate.media_domains == (running_with if goes_on else planned_with)


def test_a_group_at_a_lower_rung_keeps_it_and_takes_the_new_rungs_below():
    first, second, third = plan(context=3), plan(context=2), plan(context=1)
    ladder = (first.groups[0].choice, second.groups[0].choice)
    fallen = RunningGroup(member=(1, 0), plan=first.groups[0].model_copy(update={"ladder": ladder}), rung=1)
    new = second.groups[0].model_copy(
        update={"ladder": (second.groups[0].choice, third.groups[0].choice), "variant": 3}
    )
    found = carried_over(second.model_copy(update={"groups": (new,)}), [fallen])
    assert found.kept == ((1, 0),)
    (group,) = found.plan.groups
    assert [rung.candidate.context for rung in group.ladder] == [3, 2, 1]
    assert group.variant == 3


@pytest.mark.parametrize(
    ("new", "old", "both"),
    [
        ({"port": 8000}, {"port": 8000}, 8000),
        ({"port": 8000}, {"port": 8001}, None),
        ({"port": 8000, "shape": GroupShape(nodes=("that",))}, {"port": 8000}, None),
        ({}, {}, None),
    ],
)
def test_a_declared_port_is_shared_on_one_node_only(new, old, both):
    candidate = plan().groups[0].choice.candidate
    assert shared_port([candidate.model_copy(update=new)], [candidate.model_copy(update=old)]) == both
