"""Groups whose node does not come back: they go on without it, or wait and name it."""

import pytest
from controller_world import report
from placed_ladders import ladder, put

from sparkfleet.controlplane.policy import state as seen
from sparkfleet.controlplane.policy.state import Now
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


class TestNewController:
    """A controller that has just begun, with a store that names a node which has not joined it: that node was the head, or
    boots more slowly than this one."""

    @pytest.fixture
    async def begins(self, world):
        """begins(rungs, starts): a new controller on `this` whose store has a group with these rungs; it is `at` a time."""
        world.inventory_nodes = ("this", "that")
        world.nodes.available["that"], world.nodes.boots["that"] = 100 * GIB, "first"

        async def begins(*rungs, served=True):
            await put(world, ladder(*rungs))
            if served:
                await world.ready(1)
            else:
                await world.look()
                world.store.groups.begin_start(("tiny", 1, 0), {"this": "first", "that": "first"})
            world.apps.apps.clear()  # Ray of the new head has none
            world.apps.launches.clear()
            world.nodes.away = {"that"}
            moment = [5000.0]
            world.restarted(clocks=lambda: Now.at(moment[0]))

            async def at(seconds):
                moment[0] = 5000.0 + seconds
                await world.look()
                for _ in range(3):
                    await world.controller.reconcile()

            await at(0.0)
            return at

        return begins

    async def test_a_node_that_never_joins_is_gone_after_as_long_as_any_other(self, world, begins):
        at = await begins((1.0, ("this", "that")), (2.0, "this"))
        await at(seen.GONE_S - 1.0)
        assert world.rungs == [0], "it is placed, and waits for its node"
        await at(seen.GONE_S)
        assert world.rungs == [0, 1]
        assert world.controller.queries.status().deployments[0].passed == (("that is gone",),)

    async def test_time_before_its_first_reading_does_not_count(self, world, begins):
        """The node was away for an hour before its owner moved the head."""
        at = await begins((1.0, ("this", "that")), (2.0, "this"))
        assert dict(world.controller.fleet.nodes.away_since) == {"that": 5000.0}
        await at(1.0)
        assert world.rungs == [0]

    async def test_a_node_that_joins_before_that_keeps_its_group(self, world, begins):
        at = await begins((1.0, ("this", "that")), (2.0, "this"))
        await at(seen.GONE_S - 1.0)
        world.nodes.away = set()
        await at(seen.GONE_S)
        await at(10 * seen.GONE_S)
        assert world.rungs == [0]
        assert not world.controller.fleet.pending.waiting

    async def test_one_without_a_rung_names_the_node_that_it_waits_for(self, world, begins):
        at = await begins((1.0, "that"))
        await at(seen.GONE_S)
        detail = world.controller.queries.status().deployments[0].detail
        assert detail.startswith("that is gone, and no rung of its ladder does without")

    async def test_a_start_that_the_store_has_as_unfinished_is_taken_to_no_other_node(self, world, begins):
        """It may have taken the former head down. Its owner moves it with the command."""
        at = await begins((1.0, ("this", "that")), (2.0, "this"), served=False)
        await at(seen.GONE_S)
        assert world.rungs == [0]
        detail = world.controller.queries.status().deployments[0].detail
        assert "a node went away while it was starting" in detail
        assert "`sparkfleet drain that` moves it" in detail
