"""Groups that have served: they take a smaller rung, or serve in place of a newer generation."""

import pytest
from controller_world import report
from placed_ladders import ladder, put

from sparkfleet.controlplane.policy import fallback as module
from sparkfleet.controlplane.policy import state as seen
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.engines.failure_signatures import Cause, Diagnosis
from sparkfleet.group.report import GroupPhase
from sparkfleet.units import GIB


async def falls(world, cause, rung=0):
    """The group was ready, and failed while it served."""
    await world.ready(1)
    diagnosis = Diagnosis(cause=Cause(cause), summary="so it was")
    await world.controller.intake.report(report(phase=GroupPhase.FAILED, diagnosis=diagnosis, rung=rung))
    await world.controller.reconcile()


async def starved_while_that_is_away(world):
    """Memory ran out twice while a group served, and the node of its smaller rung is away."""
    world.inventory_nodes = ("this", "that")
    world.nodes.available["that"], world.nodes.boots["that"] = 100 * GIB, "first"
    world.nodes.away = {"that"}
    await world.look()
    await put(world, ladder((9.0, "this"), (5.0, "that")))
    for _ in range(2):
        await falls(world, "memory")


# --- memory that runs out while it serves


async def test_memory_that_runs_out_twice_while_it_serves_takes_a_rung_that_needs_less(world):
    await put(world, ladder((9.0, "this"), (9.0, "this"), (5.0, "this")))
    await falls(world, "memory")
    assert world.rungs == [0], "once is an accident"
    await falls(world, "memory")
    assert world.rungs == [0, 2]
    (why,) = await world.messages("fallback")
    assert "memory ran out 2 times within 60 minutes while it served" in why
    assert len(world.controller.queries.status().deployments[0].passed[0]) == 2
    assert world.store.failures.all() == (), "it did start"
    await falls(world, "memory", rung=2)
    await falls(world, "memory", rung=2)
    assert world.rungs == [0, 2], "none needs less"


async def test_a_rung_that_is_left_is_told_beside_those_of_which_an_earlier_release_wrote_nothing_down(world):
    await put(world, ladder((9.0, "this"), (9.0, "this"), (5.0, "this")))
    world.store.groups.set_standing("tiny", 1, 0, Standing(rung=1))
    await falls(world, "memory", rung=1)
    await falls(world, "memory", rung=1)
    (passed,) = world.controller.queries.status().deployments[0].passed
    assert [words.partition(" times")[0] for words in passed] == ["not known", "memory ran out 2"]


@pytest.mark.parametrize(("cause", "window"), [("unknown", 3600.0), ("memory", 0.0)])
async def test_other_falls_and_those_of_long_ago_leave_it_at_its_rung(world, monkeypatch, cause, window):
    monkeypatch.setattr(module, "STARVED_S", window)
    await put(world, ladder((9.0, "this"), (5.0, "this")))
    for _ in range(3):
        await falls(world, cause)
    assert world.rungs == [0]


async def test_memory_that_ran_out_long_ago_moves_nothing_when_a_node_with_a_smaller_rung_is_back(
    world, monkeypatch
):
    await starved_while_that_is_away(world)
    assert world.rungs == [0], "the smaller one waits for its node"
    world.nodes.away = set()
    await world.look()
    with monkeypatch.context() as later:
        later.setattr(module, "STARVED_S", 0.0)
        await world.controller.reconcile()
    assert world.rungs == [0]
    await world.controller.event_log.record(
        "", 0, "", "note", "a fleet at rest is only observed until something changes"
    )
    await world.controller.reconcile()
    assert world.rungs == [0, 1]


async def test_one_that_serves_again_is_not_ended_because_a_smaller_rung_has_become_possible(world):
    """Found by the simulation (seed 76204): another plan of the same engine brought the smaller rung."""
    await starved_while_that_is_away(world)
    await world.ready(1)
    world.nodes.away = set()
    await world.look()
    await world.controller.reconcile()
    assert world.rungs == [0]
    await falls(world, "memory")
    assert world.rungs == [0, 1]


async def test_memory_that_runs_out_takes_no_rung_on_a_drained_node(world):
    world.inventory_nodes = ("this", "that")
    world.nodes.available["that"] = 100 * GIB
    world.nodes.boots["that"] = "first"
    await world.look()
    await put(world, ladder((9.0, "this"), (5.0, "that"), (3.0, "this")))
    await world.controller.commands.drain("that", "me")
    await falls(world, "memory")
    await falls(world, "memory")
    assert world.rungs == [0, 2]


# --- a newer generation that waits


async def test_a_node_that_does_not_say_how_much_is_free_costs_no_generation_that_serves(world):
    """It answers late, or its Ray is being started again."""
    await world.put()
    await world.ready(1)
    world.nodes.away = {"this"}
    await world.put(concurrency=8)
    await world.controller.reconcile()
    assert {key: app.status for key, app in world.apps.apps.items()} == {("tiny", 1, 0): "running"}
    (why,) = await world.messages("waits")
    assert "free memory of this is not known" in why
    world.nodes.away = set()
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 2, 0].status == "starting"


async def test_each_generation_that_waits_for_a_node_says_so(world):
    await world.put()
    await world.ready(1)
    world.nodes.away = {"this"}
    for concurrency in (8, 16):
        await world.put(concurrency=concurrency)
        await world.controller.reconcile()
    waits = [
        event for event in await world.controller.event_log.events(0, "tiny", 0) if event.kind == "waits"
    ]
    assert [event.generation for event in waits] == [2, 3]


@pytest.mark.parametrize("serves", [True, False])
async def test_a_node_that_is_gone_holds_up_a_new_generation_only_as_long_as_the_old_one_serves(
    world, monkeypatch, serves
):
    """It goes to the rung that does without, as it would if it were the first."""
    monkeypatch.setattr(seen, "GONE_S", 0.0)
    world.inventory_nodes = ("this", "that")
    world.nodes.available["that"], world.nodes.boots["that"] = 100 * GIB, "first"
    await put(world, ladder((1.0, "that")))
    await world.ready(1)
    if not serves:
        world.apps.become("tiny", 1, "starting")
        world.controller.fleet.reports.forget(())
    world.nodes.away = {"that"}
    await world.look()
    await put(world, ladder((1.0, "that"), (1.0, "this"), context=1024))
    world.apps.finish()
    for _ in range(2):
        await world.controller.reconcile()
    placed = [(launch.generation, launch.placements[0].node) for launch in world.apps.launches]
    assert placed == [(1, "that")] + ([] if serves else [(2, "that"), (2, "this")])


async def test_what_was_stopped_in_a_round_is_not_published_at_its_end(world):
    await world.put()
    await world.ready(1)
    world.nodes.available["this"] = 1 * GIB
    await world.put(concurrency=8, high=2.0 * GIB)
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    assert not any(group.ready for group in (await world.table()).models["tiny"].groups)
