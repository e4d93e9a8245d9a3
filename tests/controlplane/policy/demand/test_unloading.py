"""Ends of deployments on demand whose nodes are away: nothing starts on them without a request when they are back."""

from dataclasses import replace

import pytest
from demand_world import on_demand
from policy_world import application, seen

from sparkfleet.controlplane.policy.actions import LoadDeployment, StartGroup, UnloadDeployment, WaitForMemory
from sparkfleet.controlplane.policy.decide import decide
from sparkfleet.controlplane.policy.state import GONE_S, FleetState, Now, Pending
from sparkfleet.controlplane.state.demand import RequestDemand
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.units import GIB

GROUP = ("a", 1, 0)
GONE = (
    "that is gone, and no rung of its ladder does without; it starts when that is back;"
    " `sparkfleet drain that` moves it if other nodes have room"
)


def on_that(generation=1, node="that"):
    """A deployment on the other node."""
    one = on_demand("a", generation=generation)
    (rung,) = one.plan.groups[0].ladder
    shape = rung.candidate.shape.model_copy(update={"nodes": (node,)})
    rung = rung.model_copy(update={"candidate": rung.candidate.model_copy(update={"shape": shape})})
    group = one.plan.groups[0].model_copy(update={"ladder": (rung,)})
    return one.model_copy(update={"plan": one.plan.model_copy(update={"groups": (group,)})})


def state(since=0.0, **fields):
    """The other node has been away for long; a request has waited since that time, unless that is None."""
    away = seen(this="first", that=None)
    given = {
        "desired": {"a": on_that()},
        "apps": (application(GROUP, "starting"),),
        "nodes": replace(away, looked_at=GONE_S + 300),
        "available": {"this": 100 * GIB},
        "pending": Pending(loaded=frozenset({"a"}), waiting={GROUP: GONE}),
        "demand": {"a": RequestDemand(1, since, 0.0, 0.0, None)},
    }
    return FleetState(**{**given, **fields})


def decided(found, kind):
    return [one for one in decide(found, Now.at(GONE_S + 300)) if isinstance(one, kind)]


def test_one_whose_node_does_not_come_back_is_unloaded():
    (found,) = decided(state(), UnloadDeployment)
    assert (found.deployment, found.kind, found.reason) == ("a", "no_node", "that is gone")
    unloaded = state(apps=(), pending=Pending(unloaded={"a": GONE}))
    (wait,) = decided(unloaded, WaitForMemory)
    assert wait.reason == "that does not answer; it starts when that is back"
    assert decided(unloaded, StartGroup) == []


def test_also_the_generation_that_served_before():
    served = state(
        desired={"a": on_that(2)},
        apps=(application(GROUP, "starting"),),
        standings={("a", 2, 0): Standing(given_up=True)},
        last_served={"a": on_that()},
        pending=Pending(loaded=frozenset({"a"})),
    )
    (found,) = decided(served, UnloadDeployment)
    assert (found.kind, found.reason) == ("no_node", "that is gone")


@pytest.mark.parametrize(
    "fields",
    [
        {"nodes": seen(GONE_S + 300, this="first", that="first")},
        {"pending": Pending(loaded=frozenset({"a"}))},
        {"apps": ()},
        {
            "reports": (
                GroupReport(
                    deployment="a", generation=1, replica=0, phase=GroupPhase.READY, node="that", since=0.0
                ),
            ),
            "fresh": frozenset({"a/g1/0"}),
        },
    ],
    ids=["its node is back", "it may have another rung", "it was not deployed", "it serves"],
)
def test_one_is_not_if(fields):
    assert [one for one in decided(state(**fields), UnloadDeployment) if one.kind == "no_node"] == []


@pytest.mark.parametrize(("waited_s", "loaded"), [(GONE_S - 1, []), (GONE_S + 1, [("a", 1)])])
def test_its_requests_go_to_the_generation_that_served_on_another_node(waited_s, loaded):
    moved = state(
        GONE_S + 300 - waited_s,
        desired={"a": on_that(2)},
        apps=(),
        last_served={"a": on_that(1, "this")},
        pending=Pending(unloaded={"a": GONE}),
    )
    assert [(one.deployment, one.generation) for one in decided(moved, LoadDeployment)] == loaded
    drained = replace(moved, drained=frozenset({"that"}))
    assert decided(drained, LoadDeployment) == [], "somebody wants that node to be empty"
