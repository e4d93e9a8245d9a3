"""Groups whose node does not come back: they go on without it, or wait and name it."""

import pytest
from controller_world import report
from placed_ladders import ladder, put

from sparkfleet.controlplane.policy import state as seen
from sparkfleet.group.report import GroupPhase
from sparkfleet.units import GIB


@pytest.fixture
async def two(world, monkeypatch):
    """Two nodes, of which one that is away is gone at once."""
    monkeypatch.setattr(seen, "GONE_S", 0.0)
    world.inventory_nodes = ("this", "that")
    world.nodes.available["that"], world.nodes.boots["that"] = 100 * GIB, "first"
    await world.look()
    return world


@pytest.fixture
async def stranded(two):
    """A group on a node without power, with no rung that works without it."""
    await put(two, ladder((1.0, "that")))
    await two.ready(1)
    await loses_that(two)
    return two


@pytest.fixture
async def on_two(two):
    """A group on two nodes, with a rung on one of them: it starts."""
    await put(two, ladder((1.0, ("this", "that")), (2.0, "this")))
    await two.controller.intake.report(report(phase=GroupPhase.STARTING))
    return two


async def loses_that(world):
    world.apps.become("tiny", 1, "starting")
    world.controller.fleet.reports.forget(())
    world.nodes.away = {"that"}
    await world.look()
    for _ in range(3):
        await world.controller.reconcile()


async def test_what_waits_for_a_node_that_may_never_come_has_failed_and_says_so(stranded):
    status = stranded.controller.queries.status().deployments[0]
    assert (status.state, status.detail) == (
        "failed",
        "that is gone, and no rung of its ladder does without; it starts when that is back;"
        " `sparkfleet drain that` moves it if other nodes have room",
    )
    entry = (await stranded.table()).models["tiny"]
    assert (entry.state, entry.detail) == ("failed", status.detail)
    assert await stranded.messages("waits") == [status.detail], "once"
    assert len(stranded.apps.launches) == 1


async def test_when_its_node_is_back_it_starts(stranded):
    stranded.nodes.away = set()
    await stranded.look()
    await stranded.controller.reconcile()
    assert stranded.state == "starting"
    await stranded.ready(1)
    assert stranded.state == "ready"


async def test_a_group_that_served_goes_on_with_the_node_that_is_left(on_two):
    await on_two.ready(1)
    await loses_that(on_two)
    assert on_two.rungs[-1] == 1
    status = on_two.controller.queries.status().deployments[0]
    assert status.passed == (("that is gone",),)


async def test_a_group_that_was_starting_takes_no_other_node_down(on_two):
    """A start that runs out of memory freezes its node, and would freeze the next one."""
    await loses_that(on_two)
    assert on_two.rungs == [0]
    status = on_two.controller.queries.status().deployments[0]
    assert (status.state, status.detail) == (
        "failed",
        "that is gone, and it is not moved: a node went away while it was starting, and no other one is to go down with it;"
        " it starts when that is back; `sparkfleet drain that` moves it if other nodes have room",
    )
