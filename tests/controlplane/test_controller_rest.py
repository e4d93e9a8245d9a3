"""A controller of a fleet at rest: its rounds end after observing, and any change ends the rest."""

import pytest
from control_values import deployment, plan
from controller_world import World, report

from sparkfleet.controlplane import controller
from sparkfleet.controlplane.policy.decide import decide
from sparkfleet.controlplane.state import report_cache
from sparkfleet.controlplane.views import routing_publisher
from sparkfleet.group.report import GroupPhase
from sparkfleet.units import GIB


@pytest.fixture
async def resting(tmp_path, monkeypatch):
    """A controller whose one group serves; `decided` counts what its rounds decide."""
    world = World(tmp_path)
    world.decided = 0

    def counted(state, now):
        world.decided += 1
        return decide(state, now)

    monkeypatch.setattr(controller, "decide", counted)
    await world.put()
    await world.ready(1)
    await world.look()
    for _ in range(3):
        await world.controller.reconcile()
    world.decided = 0
    yield world
    world.store.close()


async def test_rounds_of_a_fleet_at_rest_decide_and_publish_nothing(resting):
    known = await resting.table()
    for _ in range(5):
        await resting.look()
        await resting.controller.intake.report(report(phase=GroupPhase.READY, running=3, tokens=100.0))
        await resting.controller.reconcile()
    assert resting.decided == 0
    assert await resting.table() is known
    assert known.models["tiny"].state == "ready"


async def test_a_rest_ends_after_a_minute(resting, monkeypatch):
    monkeypatch.setattr(controller, "LONGEST_REST_S", 0.0)
    await resting.controller.reconcile()
    assert resting.decided == 1


async def test_other_load_of_a_node_is_no_change(resting):
    resting.nodes.available["this"] = 5 * GIB
    await resting.look()
    await resting.controller.reconcile()
    assert resting.decided == 0


async def applied(world):
    await world.controller.commands.put(deployment().model_copy(update={"concurrency": 128}), plan(), "me")


async def deleted(world):
    await world.controller.commands.remove("tiny", "me")


async def failed_by_serve(world):
    world.apps.become("tiny", 1, "failed")


async def gone_from_serve(world):
    world.apps.apps.clear()


async def reported_again(world):
    await world.controller.intake.report(report(phase=GroupPhase.FAILED, detail="it died"))


async def drained(world):
    await world.controller.commands.drain("this", "me")


async def key_created(world):
    await world.controller.keys.create("laptop")


async def paused(world):
    world.controller.commands.pause()


CHANGES = (applied, deleted, failed_by_serve, gone_from_serve, reported_again, drained, key_created, paused)


@pytest.mark.parametrize("change", CHANGES)
async def test_any_change_ends_the_rest(change, resting):
    await change(resting)
    await resting.controller.reconcile()
    assert resting.decided > 0


async def test_silence_of_a_group_ends_the_rest(resting, monkeypatch):
    monkeypatch.setattr(report_cache, "STALE_S", 0.0)
    monkeypatch.setattr(routing_publisher, "SETTLE_S", 0.0)
    await resting.controller.reconcile()
    assert resting.decided > 0
    assert (await resting.table()).models["tiny"].state == "starting"
