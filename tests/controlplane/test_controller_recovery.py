"""Rungs, failures that are remembered and falls that are counted, by the whole controller, also one that was restarted."""

import pytest
from control_values import deployment, plan
from controller_world import diagnosed, report

from sparkfleet.controlplane.policy import fallback as recovery
from sparkfleet.controlplane.policy import state as seen
from sparkfleet.engines.failure_signatures import Cause, Diagnosis
from sparkfleet.group.report import GroupPhase
from sparkfleet.units import GIB


async def test_a_rung_that_does_not_start_is_followed_by_the_next(world):
    await world.put(rungs=2)
    await world.fails()
    assert world.rungs == [0, 1]
    assert any("too little memory" in message for message in await world.messages("fallback"))
    assert "out of memory" in world.store.failures.all()[0].words
    await world.ready(1)
    assert world.state == "ready"


async def test_a_start_that_fails_again_before_the_next_look_is_answered(world):
    """A round may take long: Serve then shows the group as failed both before and after its next start."""
    await world.put(rungs=3)
    for rung in range(2):
        await world.controller.intake.report(report(rung=rung))
        await world.fails(rung=rung)
    assert world.rungs == [0, 1, 2]


async def test_what_is_known_of_a_generation_is_kept_while_a_newer_one_comes_up(world):
    await world.put()
    await world.ready(1)
    await world.controller.intake.report(report(phase=GroupPhase.FAILED))
    await world.put(concurrency=8)
    await world.starts_and_fails()
    (standing,) = world.store.groups.standings().values()
    assert (len(standing.falls), standing.restarts) == (1, 1)


async def test_a_restarted_controller_knows_the_rung(world):
    await world.put(rungs=2)
    await world.fails()
    world.apps.apps.clear()
    await world.restarted().reconcile()
    assert world.apps.launches[-1].rung == 1


async def test_after_the_last_rung_it_has_failed_and_applying_again_tries_again(world):
    await world.put()
    await world.fails()
    await world.controller.reconcile()
    status = world.controller.queries.status().deployments[0]
    assert status.state == "failed"
    assert len(world.apps.launches) == 1
    assert await world.put() == 2


async def test_what_starts_after_all_is_not_held_against_it(world):
    await world.put()
    await world.fails()
    assert world.store.failures.all()
    await world.put()
    await world.ready(2)
    assert world.store.failures.all() == ()


@pytest.mark.parametrize("cause", ["transient", "port"])
async def test_what_may_pass_is_not_held_against_it(world, cause):
    await world.put(rungs=2)
    await world.look()
    for _ in range(2):
        await world.controller.intake.report(report())
        await world.fails(cause)
        await world.controller.reconcile()
    assert world.rungs == [0, 0, 1]
    assert world.store.failures.all() == ()


async def test_what_was_not_started_is_not_held_against_it(world):
    """Somebody else had the memory that it needs, for now."""
    await world.put(rungs=2)
    refused = Diagnosis(cause=Cause.MEMORY, summary="each rank needs 90 GiB", began=False)
    await world.controller.intake.report(diagnosed().model_copy(update={"diagnosis": refused}))
    world.apps.become("tiny", 1, "failed")
    await world.controller.reconcile()
    assert world.rungs == [0, 1]
    assert world.store.failures.all() == ()


@pytest.mark.parametrize(
    ("cause", "ends"), [("known", False), ("flag", False), ("memory", True), ("unknown", True)]
)
async def test_what_hangs_on_more_than_the_candidate_is_held_against_it_for_a_day(world, cause, ends):
    await world.put(rungs=2)
    await world.fails(cause)
    (failure,) = world.store.failures.all()
    assert (failure.until is not None) == ends


async def test_why_each_rung_was_left_is_told(world):
    await world.put(rungs=3)
    for cause in ("known", "memory"):
        await world.fails(cause)
        await world.controller.reconcile()
    await world.ready(1)
    (passed,) = world.controller.queries.status().deployments[0].passed
    assert passed == ("known issue: too little memory", "out of memory: too little memory")


async def test_a_restarted_controller_goes_on_counting_how_often_it_fell(world):
    await world.put()
    for number in range(recovery.BREAKER_FAILURES):
        await world.ready(1)
        await world.controller.intake.report(report(phase=GroupPhase.FAILED))
        if number == 1:
            world.restarted()
            await world.look()
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 1, 0].status == "retiring"


async def test_falls_of_long_ago_do_not_count(world, monkeypatch):
    monkeypatch.setattr(recovery, "BREAKER_S", 0.0)
    await world.put()
    await world.falls(recovery.BREAKER_FAILURES)
    assert world.apps.apps["tiny", 1, 0].status == "running"


async def test_the_end_of_a_rung_that_was_left_is_not_counted_on_the_next(world):
    await world.put(rungs=2)
    await world.fails()
    assert world.store.groups.standings()["tiny", 1, 0].rung == 1
    await world.starts_and_fails()
    assert world.store.groups.standings()["tiny", 1, 0].restarts == 0
    await world.starts_and_fails(rung=1)
    assert world.store.groups.standings()["tiny", 1, 0].restarts == 1


async def test_a_restarted_controller_goes_on_counting_starts_that_fail(world):
    """Serve goes on with one that was ready."""
    await world.put(rungs=2)
    await world.ready(1)
    world.apps.become("tiny", 1, "starting")
    for _ in range(recovery.RESTARTS):
        world.restarted()
        await world.look()
        await world.starts_and_fails()
    await world.controller.reconcile()
    assert world.rungs == [0, 1]


async def test_what_comes_up_and_falls_again_and_again_is_stopped(world):
    await world.put()
    await world.falls(recovery.BREAKER_FAILURES)
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    assert world.state == "failed"
    world.apps.finish()
    await world.controller.reconcile()
    assert world.apps.apps == {}


async def test_a_restarted_controller_knows_what_did_not_start(world):
    await world.put()
    await world.fails()
    world.apps.apps.clear()
    world.restarted()
    await world.look()
    await world.controller.reconcile()
    assert len(world.apps.launches) == 1
    assert world.state == "failed"
    assert await world.put() == 2, "applying the same file again tries again"
    assert world.apps.apps["tiny", 2, 0].status == "starting"


async def test_a_restarted_controller_knows_what_came_up_and_fell_again_and_again(world):
    await world.put()
    await world.falls(recovery.BREAKER_FAILURES)
    world.apps.finish()
    world.restarted()
    await world.look()
    await world.controller.reconcile()
    assert world.apps.apps == {}
    assert world.state == "failed"
    assert await world.put(concurrency=8) == 2, "a changed file is another wish"
    assert world.apps.apps["tiny", 2, 0].status == "starting"


async def test_a_restarted_controller_does_not_let_a_group_fail_to_start_for_ever(world):
    """It has not seen the group ready; Serve, which has, goes on starting it."""
    await world.put(rungs=2)
    await world.ready(1)
    world.apps.become("tiny", 1, "starting")
    world.restarted()
    await world.look()
    for _ in range(recovery.RESTARTS):
        await world.controller.reconcile()
        await world.starts_and_fails()
    await world.controller.reconcile()
    assert world.rungs == [0, 1]


async def test_a_node_that_does_not_come_back_is_left(world, monkeypatch):
    """Its group goes to the first rung that can do without it; one that cannot waits."""
    monkeypatch.setattr(seen, "GONE_S", 0.0)
    two = plan(rungs=1)
    here = two.groups[0].ladder[0]
    shape = here.candidate.shape.model_copy(update={"nodes": ("that",)})
    there = here.model_copy(update={"candidate": here.candidate.model_copy(update={"shape": shape})})
    ladder = two.groups[0].model_copy(update={"ladder": (there, here)})
    world.inventory_nodes = ("this", "that")
    await world.controller.commands.put(deployment(), two.model_copy(update={"groups": (ladder,)}), "me")
    await world.controller.reconcile()
    world.nodes.available["that"] = 100 * GIB
    world.nodes.away = {"that"}
    await world.look()
    await world.controller.reconcile()
    await world.controller.reconcile()
    assert [launch.placements[0].node for launch in world.apps.launches] == ["that", "this"]
    events = await world.controller.event_log.events(0, "tiny", 0)
    assert any("that is gone; next: this" in event.message for event in events)


async def test_a_group_that_was_ready_and_no_longer_starts_goes_down_its_ladder(world):
    """Serve reports it as starting, for ever: it gives up only groups that have never started."""
    await world.put(rungs=2)
    await world.ready(1)
    world.apps.become("tiny", 1, "starting")
    for _ in range(recovery.RESTARTS):
        await world.controller.reconcile()
        assert world.rungs == [0]
        await world.starts_and_fails()
    await world.controller.reconcile()
    assert world.rungs == [0, 1]


async def test_a_group_that_was_ready_and_starts_at_no_rung_is_given_up(world):
    await world.put()
    await world.ready(1)
    world.apps.become("tiny", 1, "starting")
    for _ in range(recovery.RESTARTS):
        await world.starts_and_fails()
    await world.controller.reconcile()
    assert world.state == "failed"
    assert world.apps.apps["tiny", 1, 0].status == "retiring"


async def test_a_sibling_that_is_ready_does_not_hide_one_that_was_given_up(world):
    await world.put(groups=2)
    await world.ready(1, replica=0)
    await world.fails(replica=1)
    await world.ready(1, replica=0)
    assert world.state == "failed"
    assert await world.put(groups=2) == 2, "applying it again tries again"
