"""A start that takes its node down is counted when the node is back, even if other nodes went down with it."""

from dataclasses import replace

import pytest
from control_values import deployment, plan
from controller_world import diagnosed, report

from sparkfleet.controlplane.policy import pending_starts as module
from sparkfleet.controlplane.policy.actions import BeginAttempt, EndAttempt
from sparkfleet.controlplane.policy.pending_starts import is_uncertain, learnt_boots, lost
from sparkfleet.controlplane.policy.state import FleetState, Now, Pending, SeenNodes
from sparkfleet.controlplane.policy.state_after import after
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.group.report import GroupPhase
from sparkfleet.runtime.boot_id import this_boot
from sparkfleet.units import GIB

TINY = ("tiny", 1, 0)
HEAD = NodeReport(name="head", joined=True, boot="h1")


def power_cycle(world, boot):
    """The head, with the controller, Serve and everything: only what is on the disk is left."""
    world.apps.apps.clear()
    world.nodes.boots["this"] = boot
    world.restarted()


async def back(world, boot):
    power_cycle(world, boot)
    await world.look()
    await world.controller.reconcile()


async def test_a_start_that_takes_the_head_down_ends_at_the_end_of_its_ladder(world):
    await world.look()
    await world.put(rungs=2)
    rungs = []
    for boot in range(10):
        rungs.append(world.apps.launches[-1].rung)
        count = len(world.apps.launches)
        await back(world, f"boot {boot}")
        if len(world.apps.launches) == count:
            break
    assert rungs == [0, 0, 1, 1], "each rung twice"
    assert world.state == "failed"
    (last,) = await world.messages("failed")
    assert "this went away while it was starting" in last
    assert "none of 2 rungs started" in last
    assert "`sparkfleet apply` tries once more" in last
    assert world.store.failures.all(), "the next plan does not try it first"
    assert await world.put(rungs=2) == 2, "an explicit wish is tried again"
    assert world.apps.launches[-1].generation == 2


async def starting_on(world, *lies_on):
    """A group of two rungs, which starts on these nodes."""
    world.inventory_nodes = ("this", "that")
    world.nodes.available["that"] = 100 * GIB
    world.nodes.boots["that"] = "first"
    made = plan()
    choice = made.groups[0].choice
    shape = choice.candidate.shape.model_copy(update={"nodes": lies_on})
    choice = choice.model_copy(update={"candidate": choice.candidate.model_copy(update={"shape": shape})})
    group = made.groups[0].model_copy(update={"ladder": (choice, choice)})
    await world.look()
    await world.controller.commands.put(deployment(), made.model_copy(update={"groups": (group,)}), "me")
    await world.controller.reconcile()
    assert world.store.groups.starts() == {TINY: dict.fromkeys(lies_on, "first")}
    return world


@pytest.fixture
async def elsewhere(world):
    """A group that starts on another node than the head."""
    return await starting_on(world, "that")


@pytest.fixture
async def both(world):
    """A group that starts on the head and on another node."""
    return await starting_on(world, "this", "that")


async def comes_back(world, boot):
    """The other node, after its power was cut; the controller on the head has seen it all."""
    world.nodes.boots["that"] = boot
    await world.look()
    await world.controller.reconcile()


async def test_nothing_is_started_before_its_node_has_said_which_boot_it_is(elsewhere):
    power_cycle(elsewhere, "second")
    await elsewhere.controller.reconcile()
    await comes_back(elsewhere, "")
    assert len(elsewhere.apps.launches) == 1
    await comes_back(elsewhere, "second")
    assert len(elsewhere.apps.launches) == 2
    assert elsewhere.store.groups.standings()["tiny", 1, 0].tries == 1


async def test_a_node_that_does_not_say_which_boot_it_is_is_not_waited_for_for_ever(elsewhere, clock):
    elsewhere.apps.apps.clear()
    elsewhere.restarted(clocks=lambda: Now.at(clock.now))
    await comes_back(elsewhere, "")
    clock.now += module.ASK_S - 1.0
    await comes_back(elsewhere, "")
    assert len(elsewhere.apps.launches) == 1
    clock.now += 1.0
    await comes_back(elsewhere, "")
    assert len(elsewhere.apps.launches) == 2


async def test_a_controller_that_comes_back_alone_counts_nothing(world):
    await world.look()
    await world.put()
    await back(world, "first")
    assert world.store.groups.standings() == {}
    assert len(world.apps.launches) == 2


async def test_a_reboot_of_a_node_whose_group_is_ready_is_no_start_that_failed(world):
    await world.look()
    await world.put()
    await world.ready(1)
    await back(world, "second")
    assert world.store.groups.standings() == {}


async def test_what_becomes_ready_begins_to_count_anew(world):
    await world.look()
    await world.put()
    await back(world, "second")
    assert world.store.groups.standings()["tiny", 1, 0].tries == 1
    await world.ready(1)
    assert world.store.groups.standings()["tiny", 1, 0].tries == 0
    await world.controller.intake.report(report())
    await back(world, "third")
    assert world.apps.apps["tiny", 1, 0].status == "starting"


async def test_what_serve_starts_again_is_counted_while_the_controller_lives_on(elsewhere):
    """Serve goes on starting a group that was ready before."""
    await elsewhere.ready(1)
    elsewhere.apps.become("tiny", 1, "starting")
    for boot in ("second", "third"):
        await elsewhere.controller.intake.report(report(node="that"))
        assert elsewhere.apps.launches[-1].rung == 0
        await comes_back(elsewhere, boot)
    assert elsewhere.rungs == [0, 1]
    assert "that went away while it was starting" in (await elsewhere.messages("fallback"))[-1]


async def test_what_takes_its_node_down_at_every_rung_is_stopped(elsewhere):
    for boot in range(4):
        assert elsewhere.apps.apps[TINY].status == "starting"
        await comes_back(elsewhere, f"boot {boot}")
    assert elsewhere.apps.apps[TINY].status == "retiring"
    assert elsewhere.store.groups.starts() == {}
    elsewhere.apps.finish()
    await comes_back(elsewhere, "and again")
    assert elsewhere.apps.apps == {}


async def test_a_last_word_of_what_is_given_up_does_not_bring_it_back(elsewhere):
    """Serve may be starting it again in the moment in which it is given up."""
    elsewhere.store.groups.set_standing(*TINY, Standing(given_up=True))
    await elsewhere.controller.intake.report(report(node="that", detail="loading"))
    await comes_back(elsewhere, "second")
    assert elsewhere.store.groups.standings() == {("tiny", 1, 0): Standing(given_up=True)}
    assert elsewhere.store.groups.starts() == {}
    assert len(elsewhere.apps.launches) == 1


async def test_what_serve_has_ended_because_its_node_went_down_is_counted_once(elsewhere):
    elsewhere.apps.become("tiny", 1, "failed", "its actor is dead")
    await comes_back(elsewhere, "second")
    await comes_back(elsewhere, "second")
    assert elsewhere.store.groups.standings()["tiny", 1, 0].tries == 1
    assert elsewhere.rungs == [0, 0]


async def fails(world, cause="unknown"):
    """Rank 0 reports that it failed, then Serve does."""
    await world.controller.intake.report(diagnosed(cause))
    await world.controller.reconcile()
    world.apps.become("tiny", 1, "failed", "its constructor raised")
    await world.controller.reconcile()


def rungs(world):
    return world.rungs


@pytest.mark.parametrize("cause", ["unknown", "transient"])
async def test_a_start_whose_other_node_goes_away_is_started_again_at_the_same_rung(both, cause):
    await fails(both, cause)
    await both.controller.reconcile()
    assert rungs(both) == [0], "its nodes are looked at first"
    both.nodes.away = {"that"}
    await both.look()
    await both.controller.reconcile()
    assert rungs(both) == [0, 0]
    (why,) = await both.messages("fallback")
    assert "that went away while it was starting" in why
    assert both.store.failures.all() == (), "the candidate is not to blame"
    both.nodes.away = set()
    await comes_back(both, "second")
    await both.controller.intake.report(report())
    await both.controller.reconcile()
    assert both.store.groups.standings()["tiny", 1, 0].tries == 1, "once"
    await both.ready(1)
    assert rungs(both) == [0, 0]


async def test_a_start_that_takes_its_other_node_down_again_goes_down_the_ladder(both):
    for boot in ("second", "third"):
        assert rungs(both)[-1] == 0
        await fails(both)
        both.nodes.away = {"that"}
        await both.look()
        await both.controller.reconcile()
        both.nodes.away = set()
        await comes_back(both, boot)
        await both.controller.intake.report(report())
        await both.controller.reconcile()
    assert rungs(both) == [0, 0, 1]
    assert "that went away" in both.store.failures.all()[0].words


async def test_a_start_that_fails_while_its_nodes_are_there_is_the_candidates_fault(both):
    await fails(both)
    await both.look()
    await both.controller.reconcile()
    assert rungs(both) == [0, 1]
    assert "too little memory" in both.store.failures.all()[0].words


async def test_a_start_whose_cause_is_known_waits_for_no_node(both):
    await fails(both, "memory")
    assert rungs(both) == [0, 1]


async def test_a_node_that_answers_nothing_after_a_start_has_failed_is_waited_for_and_then_away(
    both, monkeypatch
):
    await fails(both)
    await comes_back(both, "")
    assert rungs(both) == [0]
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    await both.controller.reconcile()
    assert rungs(both) == [0, 0]
    assert "that went away" in (await both.messages("fallback"))[-1]


@pytest.mark.parametrize("first", ["its group", "its node"])
async def test_a_node_that_is_back_before_its_absence_was_seen_is_counted_once(both, first):
    if first == "its node":
        await comes_back(both, "second")
        await fails(both)
    else:
        await fails(both)
        await comes_back(both, "second")
    await comes_back(both, "second")
    assert both.store.groups.standings()["tiny", 1, 0].tries == 1
    assert rungs(both) == [0, 0]
    assert both.apps.apps[TINY].status == "starting"


async def test_what_serve_starts_again_after_its_node_was_away_is_counted_once(both):
    await both.ready(1)
    both.apps.become("tiny", 1, "starting")
    await both.controller.intake.report(report())
    await both.controller.intake.report(diagnosed("unknown"))
    await comes_back(both, "second")
    assert both.store.groups.standings()["tiny", 1, 0].tries == 0, (
        "it has told of it itself, and nothing new has begun"
    )
    await both.controller.intake.report(report())
    await both.controller.reconcile()
    await both.controller.reconcile()
    assert both.store.groups.standings()["tiny", 1, 0].tries == 1
    assert rungs(both) == [0]


async def test_a_start_that_fails_in_the_ordinary_way_is_not_counted_twice(world):
    await world.look()
    await world.put()
    await world.controller.intake.report(report(phase=GroupPhase.FAILED, detail="no such flag"))
    assert world.store.groups.starts() == {}


async def test_what_was_stopped_while_it_started_is_not_held_against_it(world):
    await world.look()
    await world.put()
    world.controller.commands.pause()
    await world.controller.reconcile()
    world.apps.finish()
    await back(world, "second")
    assert world.store.groups.standings() == {}


async def test_what_is_stopped_and_goes_on_talking_is_not_held_against_it(world):
    await world.look()
    await world.put()
    world.controller.commands.pause()
    await world.controller.reconcile()
    await world.controller.intake.report(report(phase=GroupPhase.PREPARING))
    await world.controller.intake.report(report())
    assert world.store.groups.starts() == {}


async def test_what_was_given_up_and_is_there_all_the_same_is_stopped(elsewhere):
    """The controller may die before it has stopped it."""
    elsewhere.store.groups.set_standing(*TINY, Standing(given_up=True))
    await back(elsewhere, "second")
    assert elsewhere.apps.apps == {}
    elsewhere.apps.become("tiny", 1, "starting")
    await elsewhere.controller.reconcile()
    assert elsewhere.apps.apps[TINY].status == "retiring"
    elsewhere.apps.become("tiny", 1, "failed", "Serve's words")
    await elsewhere.controller.reconcile()
    assert elsewhere.apps.apps[TINY].status == "failed", "what has ended keeps its last words"


async def test_what_was_given_up_and_serves_all_the_same_leaves_the_table_with_an_event(elsewhere):
    """Its end may be put off by a full disk of the head, and Serve has started it meanwhile."""
    elsewhere.store.groups.set_standing(*TINY, Standing(given_up=True))
    elsewhere.apps.become("tiny", 1, "running")
    await elsewhere.controller.reconcile()
    assert elsewhere.apps.apps[TINY].status == "retiring"
    events = elsewhere.store.events.since("tiny/g1/0", "retire", 0.0)
    assert [one.message for one in events] == ["it is given up"]


PAIR = BeginAttempt(group=TINY, nodes=("a", "b"), reason="")
"""A group on two nodes is started."""


def seen(state, **boots):
    """After a look at the nodes; None: it is away."""
    nodes = [NodeReport(name=name, joined=boot is not None, boot=boot or "") for name, boot in boots.items()]
    looked = state.nodes.seen(nodes, 0.0, Now.at(0.0))
    learnt = learnt_boots(state.starts, looked)
    starts = {group: {**begun, **learnt.get(group, {})} for group, begun in state.starts.items()}
    return replace(state, nodes=looked, starts=starts)


def began(state):
    return after(state, [PAIR], Now.at(0.0))


def down(state):
    return lost(state.starts, state.nodes)


EMPTY = FleetState(nodes=SeenNodes.only(HEAD))


def test_a_node_that_was_away_when_the_start_was_ordered_is_known_from_when_it_joins():
    state = seen(began(seen(EMPTY, a="a1", b=None)), a="a1", b="b2")
    assert down(state) == {}
    assert state.starts == {TINY: {"a": "a1", "b": "b2"}}
    state = seen(state, a="a1", b="b3")
    assert list(down(state)) == [TINY]
    assert "b went away" in down(state)[TINY].summary


def test_a_node_that_is_only_away_has_not_been_restarted():
    """Its cable may be out, and the engine on it may load on."""
    state = seen(began(seen(EMPTY, a="a1", b="b1")), a="a1", b=None)
    assert down(state) == {}
    assert not is_uncertain(state, TINY, Now.at(0.0)), "and nobody waits for it: the group may have to move"


def test_a_start_that_goes_on_keeps_the_boots_that_it_began_in():
    state = began(seen(began(seen(EMPTY, a="a1", b="b1")), a="a2", b="b1"))
    assert list(down(state)) == [TINY]
    anew = after(state, [EndAttempt(group=TINY, reason=""), PAIR], Now.at(0.0))
    assert down(anew) == {}


def test_the_time_that_nodes_have_to_answer_begins_when_it_matters():
    """Serve, which has to be up first, may take longer than that."""
    before = began(seen(EMPTY, a="a1", b="b1"))
    state = replace(before, nodes=SeenNodes.only(HEAD))
    late = Now.at(10 * module.ASK_S)
    assert is_uncertain(state, TINY, late)
    asked = after(state, module.hold_back(state, TINY), late)
    assert asked.pending == Pending(asked_at=late.steady)
    assert is_uncertain(asked, TINY, late)
    assert module.hold_back(asked, TINY) == []
    assert not is_uncertain(asked, TINY, Now.at(11 * module.ASK_S))


def test_what_is_deleted_is_forgotten(world):
    world.store.deployments.put(deployment(), plan(), "me")
    world.store.groups.begin_start(TINY, {"a": "a1"})
    world.store.deployments.remove("tiny")
    assert world.store.groups.starts() == {}


def test_of_this_machine_the_boot_is_one():
    assert this_boot() == this_boot()
    assert len(this_boot()) > 36
