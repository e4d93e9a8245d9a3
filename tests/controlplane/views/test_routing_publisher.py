"""The table of the gateways, published by a whole controller."""

import asyncio

from controller_world import report

from sparkfleet.controlplane.state import report_cache
from sparkfleet.controlplane.views import routing_publisher
from sparkfleet.group.report import GroupPhase


async def test_a_restarted_controller_keeps_quiet_until_groups_have_reported(world):
    """A running model must not be published as not ready only because its group has not reported yet."""
    await world.put()
    await world.ready(1)
    world.restarted()
    await world.controller.reconcile()
    assert (await world.table()).version == 0
    await world.ready(1)
    assert (await world.table()).models["tiny"].state == "ready"


async def test_a_restarted_controller_publishes_nothing_until_ray_serve_has_listed_what_runs(world):
    """Groups reported before the first list, and a table in which none serves was published: requests got 503."""
    await world.put()
    await world.ready(1)
    world.restarted()
    await world.controller.intake.report(report(phase=GroupPhase.READY))
    await world.controller.keys.create("laptop")
    assert (await world.table()).version == 0
    await world.controller.reconcile()
    assert (await world.table()).models["tiny"].groups[0].ready


async def test_a_group_that_fell_silent_is_not_ready(world, monkeypatch):
    await world.put()
    await world.ready(1)
    monkeypatch.setattr(report_cache, "STALE_S", 0.0)
    monkeypatch.setattr(routing_publisher, "SETTLE_S", 0.0)
    await world.controller.reconcile()
    assert (await world.table()).models["tiny"].state == "starting"


async def test_a_newer_table_wakes_a_waiting_gateway(world):
    known = (await world.table()).version
    waiting = asyncio.create_task(world.controller.gateways.table(known, wait_s=30))
    await asyncio.sleep(0)
    await world.put()
    assert "tiny" in (await asyncio.wait_for(waiting, 5)).models


async def test_who_is_told_ready_finds_it_in_the_table(world):
    """No round is between the two: the next request after `apply` goes to the gateway at once."""
    await world.put()
    world.apps.become("tiny", 1, "running")
    await world.controller.reconcile()
    assert world.state == "starting"
    await world.controller.intake.report(report(phase=GroupPhase.READY))
    assert world.state == "ready"
    assert (await world.table()).models["tiny"].state == "ready"
