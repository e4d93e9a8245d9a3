"""Draining a node again, after a drain that was interrupted or failed."""

from types import SimpleNamespace

import pytest
from open_client import OpenClient
from statuses import deployment, fleet, report, rung

from sparkfleet.controlplane.state.drained import DrainedNode
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.errors import ControlError, Infeasible
from sparkfleet.fleet.deployments.apply import PreparedApply
from sparkfleet.fleet.events import FactFound
from sparkfleet.fleet.lifecycle.drain import (
    PreparedDrain,
    carry_out_drain,
    deployments_on,
    prepare_drain,
)
from sparkfleet.fleet.planning.fleet_decision import FleetDecision, PlannedDeployment
from sparkfleet.fleet.planning.plan import FleetPlan
from sparkfleet.group.report import GroupPhase
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.report.carry_over import RunningGroup
from sparkfleet.planner.report.diff import Change
from sparkfleet.planner.types.plan import GroupPlan, Plan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.load import parse_inventory

INVENTORY = parse_inventory(
    "fleet: home\nhead: a\nnodes:\n  a: {address: local}\n"
    '  spark1: {address: 10.0.0.2, user: u, host_key: "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}\n'
)
NODES = ("spark1", "spark2")
DRAINED = (DrainedNode(node="spark1", who="me", since=0.0),)


class Answers(OpenClient):
    """A controller that reports these statuses in turn, and a session with it."""

    inventory = INVENTORY

    def __init__(self, *statuses):
        self.left = list(statuses)

    async def drain(self, node, who):
        assert node == "spark1"

    async def fleet(self):
        return self.left.pop(0)

    def require_same_api(self):
        pass

    async def events(self, after, wait_s):
        return []


def moved(*groups, state):
    """The status after a drain has planned the deployment for another node, on which `groups` of the former one are."""
    one = deployment(*groups, state=state)
    plan = one.plan.model_copy(update={"groups": (GroupPlan(ladder=(rung(nodes=("spark2",)),)),)})
    return fleet(one.model_copy(update={"plan": plan}), drained=DRAINED)


def nothing_to_move(session):
    decision = FleetDecision(Plan(deployments=(), refused=()), [])
    planned = FleetPlan((), Fleet(name="home", nodes=()), None, decision, session, {})
    return PreparedDrain("spark1", PreparedApply(planned, renew=False, retry=False), drained=False)


async def test_it_waits_for_what_an_earlier_drain_is_still_moving():
    session = Answers(moved(report(), state="updating"), moved(report(), state="ready"), moved(state="ready"))
    steps = []
    assert await carry_out_drain(session, nothing_to_move(session), steps.append) is None
    assert [one.subjects for one in steps] == [("big",), ("big",)]
    assert session.left == []


async def test_the_wait_for_a_node_without_power_has_its_reason():
    """It waited 53 s for the engine of a node that is off, without a word."""
    off = (NodeReport(name="spark1", joined=True, silent_s=12.0),)
    waiting = moved(report(), state="ready").model_copy(update={"nodes": off})
    session, sent = Answers(waiting, waiting, moved(state="ready")), []
    await carry_out_drain(session, nothing_to_move(session), sent.append)
    (fact,) = [one.line for one in sent if isinstance(one, FactFound)]
    assert fact.startswith(
        "spark1 does not answer: what big ran there counts as ended once Ray counts the node as gone"
    )


async def test_what_did_not_start_elsewhere_is_an_error_and_not_called_gone():
    session = Answers(moved(report(), state="failed"))
    with pytest.raises(ControlError, match="big did not start on another node") as found:
        await carry_out_drain(session, nothing_to_move(session), lambda _: None)
    assert "what serves there goes on" in found.value.means


async def test_a_drained_node_with_a_deployment_that_ends_is_not_empty():
    ending = deployment(report(), state="stopping").model_copy(update={"plan": None})
    prepared = await prepare_drain(Answers(fleet(ending, drained=DRAINED)), "spark1")
    assert (prepared.apply, prepared.drained) == (None, False)
    assert (await prepare_drain(Answers(fleet(drained=DRAINED)), "spark1")).drained


async def test_what_would_move_to_a_node_that_the_running_fleet_lacks_is_refused_before_anything_is_drained(
    monkeypatch,
):
    """It was drained, its weights were copied, and the drain waited without end for the other node's memory."""
    spec = Deployment(name="big", model="builtin:tiny")
    one = deployment(report()).model_copy(update={"spec": spec.model_dump_json(exclude_unset=True)})
    moving = one.plan.model_copy(update={"groups": (GroupPlan(ladder=(rung(nodes=("a",)),)),)})
    status = fleet(one, nodes=(NodeReport(name="spark1", joined=True),))
    session = Answers(status)

    async def planned(session, specs, without):
        change = Change(verb="change", name=spec.name)
        decision = FleetDecision(
            Plan(deployments=(moving,)), [PlannedDeployment(spec=spec, plan=moving, change=change)]
        )
        return FleetPlan(tuple(specs), Fleet(name="home", nodes=()), status, decision, session, {})

    monkeypatch.setattr("sparkfleet.fleet.lifecycle.drain.plan_deployments", planned)
    with pytest.raises(ControlError, match="started with spark1; the inventory has a, spark1"):
        await prepare_drain(session, "spark1")


def test_what_has_no_room_elsewhere_is_named_with_the_command_that_ends_it():
    refused = tuple(SimpleNamespace(name=name) for name in ("wide", "pair"))
    planned = SimpleNamespace(decision=SimpleNamespace(plan=SimpleNamespace(refused=refused)))
    prepared = PreparedDrain("spark3", SimpleNamespace(planned=planned), drained=False)
    with pytest.raises(
        Infeasible, match="spark3 was not drained: the other nodes cannot serve wide, pair"
    ) as caught:
        prepared.require_movable()
    assert (
        caught.value.do
        == "`sparkfleet delete wide`, `sparkfleet delete pair`, then `sparkfleet drain spark3` again."
    )
    PreparedDrain("spark3", None, drained=False).require_movable()
    with pytest.raises(Infeasible) as caught:
        prepared._replace(loaded=("wide",)).require_movable()
    assert caught.value.do.startswith("`sparkfleet unload wide`, `sparkfleet delete pair`, then")


async def test_one_on_demand_that_did_not_start_is_in_no_drains_way():
    """The only node could not be drained, and `unload` had nothing to end."""
    one = deployment(report(phase=GroupPhase.FAILED), state="failed").model_copy(update={"on_demand": True})
    alone = (DrainedNode(node="a", who="me", since=0.0),)
    prepared = await prepare_drain(Answers(fleet(one, drained=alone)), "spark1")
    assert (prepared.apply, prepared.stays) == (None, ("big",))
    serves = one.model_copy(update={"groups": (report(),)})
    with pytest.raises(Infeasible, match="No other node is left for big"):
        await prepare_drain(Answers(fleet(serves, drained=alone)), "spark1")


def test_a_group_that_has_left_the_node_of_its_first_rung_by_itself_is_not_on_that_node():
    """The drain of a node without power, whose group had fallen back to another node, never ended."""
    ladder = (rung(nodes=("spark1",)), rung(nodes=("spark2",)))
    plan = deployment().plan.model_copy(update={"groups": (GroupPlan(ladder=ladder),)})
    fallen = report(rung=1).model_copy(update={"node": "spark2", "ranks": ()})
    on = fleet(deployment(fallen).model_copy(update={"plan": plan}))
    assert deployments_on(on, "spark1") == ()
    assert [one.name for one in deployments_on(on, "spark2")] == ["big"]
    first = fleet(deployment().model_copy(update={"plan": plan}))
    assert [one.name for one in deployments_on(first, "spark1")] == ["big"]


@pytest.mark.parametrize(("there", "reported"), [("spark2", None), ("spark2", 0), ("spark1", 1)])
def test_a_group_is_on_its_rung_and_not_on_the_one_that_it_reported_last(there, reported):
    """One that takes its next rung may not report from there before its node is back."""
    ladder = (rung(nodes=("spark1",)), rung(nodes=("spark2",)))
    plan = deployment().plan.model_copy(update={"groups": (GroupPlan(ladder=ladder),)})
    running = (RunningGroup(member=(3, 0), plan=plan.groups[0], rung=NODES.index(there)).at_its_rung(),)
    groups = () if reported is None else (report(phase=GroupPhase.FAILED, rung=reported, ranks=()),)
    on = fleet(deployment(*groups).model_copy(update={"plan": plan, "running": running}))
    assert [node for node in NODES if deployments_on(on, node)] == [there]


# Deployments on demand that are not loaded


def unloaded(name):
    spec = Deployment(name=name, model="builtin:tiny", on_demand=True).model_dump_json(exclude_unset=True)
    return deployment(state="unloaded").model_copy(update={"name": name, "on_demand": True, "spec": spec})


class OneNode(Answers):
    """The same of a fleet of one node."""

    inventory = parse_inventory("fleet: home\nhead: spark1\nnodes:\n  spark1: {address: local}\n")


async def test_a_node_on_which_nothing_is_loaded_is_drained_although_there_is_no_other():
    prepared = await prepare_drain(OneNode(fleet(unloaded("eyes"), unloaded("coder"))), "spark1")
    assert (prepared.apply, prepared.drained, prepared.stays) == (None, False, ("coder", "eyes"))
    status = fleet(unloaded("eyes"), drained=DRAINED)
    assert (await prepare_drain(OneNode(status), "spark1")).drained
    assert await carry_out_drain(OneNode(status), prepared, lambda _: None) is None, (
        "it does not wait for them"
    )


async def test_of_what_is_loaded_on_the_only_node_the_command_that_ends_it_is_named():
    running = deployment(report(), state="ready").model_copy(update={"on_demand": True})
    with pytest.raises(Infeasible, match=f"No other node is left for {running.name}") as caught:
        await prepare_drain(OneNode(fleet(running, unloaded("eyes"))), "spark1")
    assert f"`sparkfleet unload {running.name}`" in caught.value.do


async def test_what_is_not_loaded_and_fits_nowhere_else_does_not_hold_up_the_drain(monkeypatch):
    asked = []

    async def planned(session, specs, without):
        asked.append([spec.name for spec in specs])
        refused = [SimpleNamespace(name=name) for name in asked[-1] if name == "eyes"]
        plan = SimpleNamespace(refused=refused)
        return SimpleNamespace(decision=SimpleNamespace(plan=plan, pending=()), client=session, status=status)

    monkeypatch.setattr("sparkfleet.fleet.lifecycle.drain.plan_deployments", planned)
    status = fleet(unloaded("eyes"), unloaded("coder"))
    prepared = await prepare_drain(Answers(status), "spark1")
    assert asked == [["eyes", "coder"], ["coder"]]
    assert (prepared.stays, prepared.apply is not None) == (("eyes",), True)
    asked.clear()
    prepared = await prepare_drain(Answers(fleet(unloaded("eyes"))), "spark1")
    assert (prepared.stays, prepared.apply, asked) == (("eyes",), None, [["eyes"]])
