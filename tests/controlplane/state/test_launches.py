"""Launches of a deployment: a node and an address for each rank, the rung, the time limits."""

import pytest
from address_values import inventory
from launches import FLEET, desired, launches_for

from sparkfleet.group.token_patience import PATIENCE_S
from sparkfleet.perf.prediction import Band
from sparkfleet.planner.types.plan import GroupPlan, GroupShape
from sparkfleet.specs.timeouts import Timeouts


def test_replicas_get_an_order_each_on_their_own_node():
    first, second = launches_for(FLEET, desired(GroupShape(nodes=("a",)), GroupShape(nodes=("b",))))
    assert (first.replica, first.placements[0].node, first.placements[0].address) == (
        0,
        "a",
        "192.168.100.10",
    )
    assert (second.replica, second.placements[0].node, second.placements[0].address) == (
        1,
        "b",
        "192.168.100.11",
    )
    assert second.name == "tiny/g3/1"


def test_on_one_node_the_engine_listens_on_loopback():
    alone = inventory({"a": {"address": "local"}})
    (launch,) = launches_for(alone, desired(GroupShape(nodes=("a",))))
    assert launch.placements[0].address == "127.0.0.1"


def test_a_ladder_is_gone_down_and_not_beyond_its_end():
    wanted = desired(GroupShape(nodes=("a",)))
    ladder = (*wanted.plan.groups[0].ladder, *desired(GroupShape(nodes=("b",))).plan.groups[0].ladder)
    wanted = wanted.model_copy(
        update={"plan": wanted.plan.model_copy(update={"groups": (GroupPlan(ladder=ladder),)})}
    )
    assert launches_for(FLEET, wanted)[0].placements[0].node == "a"
    assert launches_for(FLEET, wanted, {0: 1})[0].placements[0].node == "b"
    assert launches_for(FLEET, wanted, {0: 9})[0].rung == 1


@pytest.mark.parametrize(
    ("engine", "health", "probed"),
    [("custom", "/well", True), ("custom", None, False), ("vllm", "/well", False)],
)
def test_the_health_of_a_custom_workload_is_asked_while_it_serves_where_it_is_said_how(
    engine, health, probed
):
    """A deployment of several variants may have another engine beside the one that `health` is for."""
    wanted = desired(GroupShape(nodes=("a",)), engine=engine)
    spec = wanted.spec.model_copy(update={"health": health})
    (found,) = launches_for(FLEET, wanted.model_copy(update={"spec": spec}))
    assert found.probed == probed


def test_an_engine_may_owe_a_token_for_as_long_as_its_longest_silence():
    """TensorRT-LLM reports nothing before an answer is over."""
    wanted = desired(GroupShape(nodes=("a",)))
    candidate = wanted.plan.groups[0].choice.candidate.model_copy(update={"context": 100_000})
    slow = Band(low=1000.0, mid=1100.0, high=1200.0)

    def patience(engine):
        changed = candidate.model_copy(update={"engine": engine})
        prediction = wanted.plan.groups[0].choice.prediction.model_copy(update={"prefill_tps": slow})
        rung = wanted.plan.groups[0].choice.model_copy(
            update={"candidate": changed, "prediction": prediction}
        )
        groups = (GroupPlan(ladder=(rung,)),)
        plan_ = wanted.plan.model_copy(update={"groups": groups})
        return launches_for(FLEET, wanted.model_copy(update={"plan": plan_}))[0].patience_s

    assert patience("vllm") == patience("sglang") == 200
    assert patience("trtllm") == PATIENCE_S, "and an hour is the most"


def test_the_waits_are_those_of_the_inventory():
    quick = Timeouts(stuck_s=3, proof_s=4)
    (launch,) = launches_for(FLEET.model_copy(update={"timeouts": quick}), desired(GroupShape(nodes=("a",))))
    assert launch.timeouts == quick
    assert launch.patience_s >= 4
    assert launches_for(FLEET, desired(GroupShape(nodes=("a",))))[0].timeouts == Timeouts()
