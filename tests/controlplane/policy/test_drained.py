"""Nothing new is started on a drained node: neither a fallback, nor a restart; what runs there goes on."""

from dataclasses import replace

import pytest
from controller_world import report
from policy_world import application, desired, seen

from sparkfleet.controlplane.policy.actions import (
    EndAttempt,
    MoveGroup,
    NextRung,
    RestartGroup,
    StopWaiting,
    TryAgain,
    WaitForNodes,
)
from sparkfleet.controlplane.policy.decide import decide
from sparkfleet.controlplane.policy.run_permission import barred_by
from sparkfleet.controlplane.policy.state import GONE_S, FleetState, Now, Pending
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.group.report import GroupPhase

NOW = Now.at(10_000.0)
TINY = ("tiny", 1, 0)
THIS_THEN_THAT = (("this",), ("that",))


def state(status="starting", phase=GroupPhase.BARRED, nodes=THIS_THEN_THAT, **fields):
    """`tiny` at its first rung, on `this`, which is drained."""
    told = report(phase=phase, **fields.pop("told", {}))
    fields = {"drained": frozenset({"this"}), "nodes": seen(NOW.steady, this="first", that="first"), **fields}
    return FleetState(
        desired={"tiny": desired("tiny", rungs=len(nodes), nodes=nodes)},
        apps=(application(TINY, status),),
        reports=(told,),
        fresh=frozenset({told.name}),
        **fields,
    )


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (("this",), "this is drained: it starts after `sparkfleet undrain this`"),
        (("that", "this"), "that and this are drained: it starts after `sparkfleet undrain that`"),
        (("other",), ""),
    ],
)
def test_an_engine_is_held_by_the_drained_ones_of_its_nodes(nodes, words):
    assert barred_by(FleetState(drained=frozenset({"this", "that"})), nodes) == words


def test_a_group_that_may_not_start_takes_the_first_rung_without_the_drained_node():
    move, restart = decide(state(), NOW)
    assert (type(move), move.standing.rung, move.standing.passed) == (MoveGroup, 1, ("this is drained",))
    assert (type(restart), restart.nodes) == (RestartGroup, ("that",))


@pytest.mark.parametrize(
    ("status", "phase"),
    [("running", GroupPhase.READY), ("starting", GroupPhase.STARTING), ("starting", GroupPhase.PROBING)],
)
def test_one_that_serves_or_started_before_is_left_alone(status, phase):
    assert decide(state(status, phase), NOW) == []


def test_without_another_rung_it_waits_says_so_once_and_goes_on_when_the_node_may_be_used():
    alone = state(nodes=(("this",),))
    (wait,) = decide(alone, NOW)
    why = "this is drained, and no rung of its ladder does without; it starts after `sparkfleet undrain this`"
    assert wait == WaitForNodes(group=TINY, reason=why)
    waiting = replace(alone, pending=Pending(waiting={TINY: why}))
    assert decide(waiting, NOW) == []
    (ended,) = decide(replace(waiting, drained=frozenset()), NOW)
    assert (type(ended), ended.group) == (StopWaiting, TINY)


def test_a_gone_node_is_not_left_for_a_drained_one():
    nodes = replace(seen(NOW.steady, this=None, that="first"), away_since={"this": NOW.steady - GONE_S})
    served = replace(state(phase=GroupPhase.READY), nodes=nodes, drained=frozenset({"that"}))
    (wait,) = decide(served, NOW)
    assert isinstance(wait, WaitForNodes)
    assert wait.reason.startswith("this is gone, and each rung that does without needs a drained node (that)")


def test_a_failed_start_takes_no_drained_rung():
    three = (("this",), ("that",), ("this",))
    failed = Diagnosis(cause=Cause.KNOWN, summary="so it was")
    told = {"diagnosis": failed, "was_starting": True}
    before = state("failed", GroupPhase.FAILED, three, told=told, drained=frozenset({"that"}))
    taken, restart = (one for one in decide(before, NOW) if isinstance(one, NextRung | RestartGroup))
    assert (type(taken), taken.standing.rung, restart.nodes) == (NextRung, 2, ("this",))


def test_a_start_at_the_next_rung_is_kept_with_the_nodes_of_that_rung():
    told = {"diagnosis": Diagnosis(cause=Cause.KNOWN, summary="so it was"), "was_starting": True}
    *_, taken, restart = decide(state("failed", GroupPhase.FAILED, told=told, drained=frozenset()), NOW)
    assert (type(taken), taken.nodes, restart.nodes) == (NextRung, ("that",), ("that",))


def test_a_node_that_is_switched_off_while_a_group_waits_for_it_is_no_failed_start():
    """That is what nodes are drained for."""
    alone = state(nodes=(("this",),), starts={TINY: {"this": "first"}})
    ended, _ = decide(alone, NOW)
    assert (type(ended), ended.group) == (EndAttempt, TINY)
    restart, _ = decide(state("failed", nodes=(("this",),), starts={}), NOW)
    assert (type(restart), restart.answers) == (RestartGroup, True)


def test_a_start_that_took_its_node_down_before_that_was_drained_is_counted():
    """The group reports that it waits before the controller has read the node's new boot."""
    alone = state(nodes=(("this",),), starts={TINY: {"this": "earlier"}})
    actions = decide(alone, NOW)
    assert isinstance(actions[0], TryAgain)
    assert actions[0].standing.tries == 1
    unread = replace(alone, starts={TINY: {"that": "first"}}, nodes=seen(NOW.steady, this="first", that=""))
    assert not any(isinstance(one, EndAttempt) for one in decide(unread, NOW))


async def test_the_controller_answers_by_its_store_and_status_has_the_command(world):
    await world.look()
    generation = await world.put()
    assert world.controller.queries.bars(["this"]) == ""
    await world.controller.commands.drain("this", "me")
    words = world.controller.queries.bars(["that", "this"])
    assert words == "this is drained: it starts after `sparkfleet undrain this`"
    await world.controller.intake.report(report(generation, phase=GroupPhase.BARRED, detail=words))
    await world.controller.reconcile()
    assert world.store.groups.starts() == {}
    (status,) = world.controller.queries.status().deployments
    assert status.state == "failed"
    assert status.detail.endswith("it starts after `sparkfleet undrain this`")
    await world.controller.commands.undrain("this", "me")
    await world.controller.intake.report(report(generation))
    await world.controller.reconcile()
    assert list(world.store.groups.starts()) == [("tiny", generation, 0)]
    assert world.state == "starting"
