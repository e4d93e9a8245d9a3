"""Memory of starts that are about to happen: it is granted to no other group, and a group that does not fit keeps none."""

from dataclasses import replace

import pytest
from demand_states import BETWEEN_REQUESTS, IDLE, fleet, report, waits, wanted
from policy_world import application

from sparkfleet.controlplane.policy.actions import (
    FailAttempt,
    GiveUp,
    LoadDeployment,
    NextRung,
    RestartGroup,
    RetireGroup,
    StartGroup,
    UnloadDeployment,
    WaitForMemory,
)
from sparkfleet.controlplane.policy.decide import decide
from sparkfleet.controlplane.policy.state import Now, Pending
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.group.report import GroupPhase
from sparkfleet.units import GIB

NOW = Now.at(1000.0)
BROKEN = Diagnosis(cause=Cause.FLAG, summary="a flag is unknown")
BOTH = {"this": 100, "that": 100}


def failed(a, *others, diagnosis=BROKEN, loaded=("a",), **fields):
    """A state in which the only group of `a` has just failed to start: its engine holds nothing."""
    state = fleet(a, *others, **{"free": BOTH, **fields})
    one = report("a", GroupPhase.FAILED, diagnosis=diagnosis, was_starting=True)
    reports = (*state.reports, one)
    return replace(
        state,
        apps=(application(("a", 1, 0), "failed"), *state.apps),
        reports=reports,
        fresh=frozenset(each.name for each in reports),
        pending=Pending(loaded=state.pending.loaded | set(loaded)),
    )


def kinds(state, *kinds):
    """Groups or deployments of the actions of these kinds."""
    return [
        one.deployment if hasattr(one, "deployment") else one.group
        for one in decide(state, NOW)
        if isinstance(one, kinds)
    ]


def edited(name, gib, is_replaced):
    """A deployment that is to start on `this`: after the group that an edit has replaced, which still ends, or alone."""
    older = (application((name, 1, 0), "retiring"),) if is_replaced else ()
    return wanted(name, gib, generation=2), older


@pytest.mark.parametrize("is_replaced", [True, False])
@pytest.mark.parametrize(
    ("rungs", "free", "starts"),
    [
        ((("this",), ("that", "this")), 100, []),
        ((("that",), ("this",)), 100, []),
        ((("that",), ("this",)), 130, [("b", 2, 0)]),
        ((("this",), ("that",)), 100, [("b", 2, 0)]),
        ((("this",),), 100, [("b", 2, 0)]),
    ],
    ids=["it stays", "it comes", "both fit", "it goes", "it is given up"],
)
def test_memory_that_a_failed_start_needs_at_its_next_rung_is_not_granted_in_the_same_round(
    rungs, free, starts, is_replaced
):
    """Found by the simulation (seed 460006): both started, and the one that was granted its memory was refused it."""
    a = wanted("a", 50, nodes=rungs[0], lower=rungs[1:])
    b, apps = edited("b", 70, is_replaced)
    older = {("b", 1, 0): b.plan.groups[0].choice.candidate} if is_replaced else {}
    state = failed(a, b, free={"this": free, "that": 100}, apps=apps, older=older, loaded=("a", "b"))
    assert kinds(state, NextRung, GiveUp) == [("a", 1, 0)]
    assert kinds(state, StartGroup) == starts
    assert kinds(state, UnloadDeployment) == []


@pytest.mark.parametrize("is_replaced", [True, False])
def test_memory_of_a_failed_start_whose_nodes_have_to_answer_first_is_not_granted(is_replaced):
    b, apps = edited("b", 70, is_replaced)
    older = {("b", 1, 0): b.plan.groups[0].choice.candidate} if is_replaced else {}
    a = wanted("a", 50, nodes=("that", "this"))
    state = failed(a, b, diagnosis=None, apps=apps, older=older, loaded=("a", "b"))
    state = replace(state, nodes=replace(state.nodes, looked_at=None))
    assert kinds(state, FailAttempt) == [("a", 1, 0)]
    assert kinds(state, StartGroup) == []


def test_no_older_group_ends_for_memory_that_a_failed_start_may_need_again():
    """Once that is known, it starts beside the older group, or that ends."""
    b, older = wanted("b", 40, generation=2), application(("b", 1, 0), "running")
    candidate = {("b", 1, 0): b.plan.groups[0].choice.candidate}
    a = wanted("a", 50, lower=(("this",),))
    state = failed(a, b, free={"this": 80}, apps=(older,), older=candidate, loaded=("a", "b"))
    assert kinds(state, StartGroup, RetireGroup) == []
    given_up = failed(
        wanted("a", 50), b, free={"this": 80}, apps=(older,), older=candidate, loaded=("a", "b")
    )
    assert kinds(given_up, StartGroup, RetireGroup) == [("b", 2, 0)]
    without = failed(a, b, free={"this": 30}, apps=(older,), older=candidate, loaded=("a", "b"))
    assert kinds(without, StartGroup, RetireGroup) == [("b", 1, 0)]


@pytest.mark.parametrize("on_demand", [True, False])
def test_nothing_is_loaded_or_ended_for_memory_that_a_failed_start_may_need_again(on_demand):
    a = wanted("a", 50, on_demand=on_demand, lower=(("this",),))
    demand = {"b": waits(), "c": IDLE}
    state = failed(a, wanted("b", 70), wanted("c", 40), free={"this": 100}, running=["c"], demand=demand)
    assert kinds(state, LoadDeployment, UnloadDeployment) == []
    assert kinds(replace(state, available={"this": 130 * GIB}), LoadDeployment) == ["b"]


def test_nothing_is_loaded_for_memory_that_the_generation_which_serves_again_takes_once_its_tool_is_back():
    """Found by the simulation (seed 480108): two others were loaded in the round in which it was deployed again."""
    served, b = wanted("a", 50), wanted("b", 70)
    newest = wanted("a", 50, generation=2)
    tool = Diagnosis(cause=Cause.TOOL, summary="docker does not answer", began=False)
    state = failed(newest, b, diagnosis=tool, free={"this": 100}, demand={"a": waits(900.0), "b": waits()})
    state = replace(state, standings={newest.groups[0]: Standing(given_up=True)}, last_served={"a": served})
    assert kinds(state, RestartGroup, LoadDeployment) == [("a", 1, 0)]
    assert kinds(replace(state, available={"this": 130 * GIB}), LoadDeployment) == ["b"]


def with_more_groups(gib, more=1, **fields):
    """`a`, of which one group runs and an edit has added others of 60 GiB, and `b`, which needs so many and is requested."""
    a = wanted("a", 60, generation=2)
    a = a.model_copy(
        update={
            "plan": a.plan.model_copy(update={"groups": a.plan.groups * (1 + more)}),
            "members": ((1, 0), *((2, at) for at in range(1, 1 + more))),
        }
    )
    demand = {"a": BETWEEN_REQUESTS, "b": waits()}
    return fleet(a, wanted("b", gib), **{"running": ["a"], "demand": demand, **fields})


def test_a_group_that_does_not_fit_keeps_no_memory_from_others():
    """Requests for another deployment waited as long as this one was used (seed 460006, after the mending)."""
    assert kinds(with_more_groups(80, free=50), UnloadDeployment) == ["a"]
    beside = with_more_groups(30, free=50)
    assert kinds(beside, LoadDeployment) == ["b"]
    assert kinds(beside, StartGroup) == [("b", 1, 0)]
    used = {"a": BETWEEN_REQUESTS._replace(ready_since=NOW.steady - 50.0), "b": waits()}
    before = with_more_groups(30, free=70, demand=used)
    assert kinds(before, LoadDeployment, StartGroup) == [("a", 2, 1)], "it takes it, and may not end yet"
    assert kinds(with_more_groups(30, more=2, free=70), LoadDeployment, StartGroup) == ["b", ("b", 1, 0)]


@pytest.mark.parametrize("demand", [BETWEEN_REQUESTS, IDLE])
def test_one_that_serves_is_not_ended_for_memory_that_is_free_and_reserved_for_its_own_next_group(demand):
    """Found by the simulation (seed 480201): with 50 GiB free the other one was loaded beside it; with 70, of which its
    second group was to have 60, it was ended."""
    state = with_more_groups(30, free=70, demand={"a": demand, "b": waits()})
    assert kinds(state, UnloadDeployment) == []
    assert kinds(state, LoadDeployment, StartGroup) == ["b", ("b", 1, 0)]
    (wait,) = [one for one in decide(state, NOW) if isinstance(one, WaitForMemory)]
    assert (wait.deployment, wait.reason) == (
        "a",
        "g2/1: 60 GiB on this are needed, which is more than is free",
    )
    full = with_more_groups(80, free=70, demand={"a": demand, "b": waits()})
    assert kinds(full, UnloadDeployment, LoadDeployment, StartGroup) == ["a"]


def test_nothing_else_is_ended_for_memory_that_a_further_group_leaves_by_waiting():
    a = with_more_groups(30, free=70).desired["a"]
    demand = {"a": IDLE, "b": waits(), "c": IDLE._replace(used_at=100.0)}
    state = fleet(a, wanted("b", 30), wanted("c", 40), free=70, running=["a", "c"], demand=demand)
    assert kinds(state, UnloadDeployment, LoadDeployment) == ["b"]


def test_what_was_reserved_for_a_group_that_waits_is_left_for_the_next_request():
    state = with_more_groups(30, free=70, demand={"a": IDLE, "b": waits(), "c": waits(960.0)})
    c = wanted("c", 30)
    assert kinds(replace(state, desired={**state.desired, "c": c}), LoadDeployment) == ["b", "c"]


def test_one_that_is_loaded_starts_before_a_further_group_of_one_that_serves():
    """Its first call of Serve failed."""
    state = with_more_groups(30, free=70, pending=Pending(loaded=frozenset({"a", "b"})))
    assert kinds(state, StartGroup, UnloadDeployment) == [("b", 1, 0)]


def test_a_group_that_does_not_fit_keeps_no_memory_from_one_that_is_loaded():
    """That had no group and was not unloaded, so it kept its requests waiting."""
    state = with_more_groups(30, free=50, pending=Pending(loaded=frozenset({"a", "b"})))
    assert kinds(state, StartGroup, UnloadDeployment) == [("b", 1, 0)]


def test_a_group_that_is_to_start_again_has_its_memory_while_it_ends():
    """A controller was replaced while it ended the first of two groups."""
    state = with_more_groups(30, free=10, apps=[application(("a", 2, 1), "retiring")])
    assert kinds(state, LoadDeployment, UnloadDeployment) == []


def restarted(a, *others, loaded=("a",), **fields):
    """A state in which Serve starts the only group of `a` again, which its last report still has as ready."""
    state = failed(a, *others, loaded=loaded, **fields)
    apps = (application(("a", 1, 0), "starting"), *state.apps[1:])
    return replace(state, apps=apps, reports=(*state.reports[:-1], report("a", GroupPhase.READY)))


@pytest.mark.parametrize("on_demand", [True, False])
@pytest.mark.parametrize("is_replaced", [True, False])
@pytest.mark.parametrize(("free", "starts"), [(100, []), (130, [("b", 2, 0)])], ids=["one fits", "both fit"])
def test_memory_of_a_group_that_serve_starts_again_is_not_granted(free, starts, is_replaced, on_demand):
    """Found by the simulation (seed 513507): its engine had died, two were granted its memory, and one was refused."""
    a = wanted("a", 50, on_demand=on_demand)
    b, apps = edited("b", 70, is_replaced)
    older = {("b", 1, 0): b.plan.groups[0].choice.candidate} if is_replaced else {}
    state = restarted(a, b, free={"this": free}, apps=apps, older=older, loaded=("a", "b"))
    assert kinds(state, StartGroup) == starts
    assert kinds(state, UnloadDeployment, RetireGroup) == []


def test_nothing_is_loaded_or_ended_for_memory_that_a_group_may_take_which_serve_starts_again():
    """It may also have become ready just now, so that its memory is taken already."""
    demand = {"a": IDLE, "b": waits(), "c": IDLE}
    state = restarted(
        wanted("a", 50), wanted("b", 70), wanted("c", 40), free={"this": 100}, running=["c"], demand=demand
    )
    assert kinds(state, LoadDeployment, UnloadDeployment) == []
    assert kinds(replace(state, available={"this": 130 * GIB}), LoadDeployment) == ["b"]
