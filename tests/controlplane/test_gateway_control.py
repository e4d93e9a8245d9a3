"""The address of the endpoint."""

import sqlite3

import pytest
from controller_world import ADDRESS, report

from sparkfleet.controlplane.gateway_control import MISSED_S
from sparkfleet.controlplane.state import report_cache
from sparkfleet.controlplane.views import routing_publisher
from sparkfleet.controlplane.views.routing_publisher import RoutingPublisher
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.group.report import GroupPhase


async def test_an_address_whose_change_fails_is_not_used(world, monkeypatch):
    """The command failed and took its files back, while the gateways listened at the new one until the next restart."""

    async def full(*event):
        raise sqlite3.OperationalError("database or disk is full")

    gateways = world.controller.gateways
    await world.put()
    await world.ready(1)
    monkeypatch.setattr(world.controller.event_log, "record", full)
    with pytest.raises(sqlite3.OperationalError):
        await gateways.listen(ADDRESS.model_copy(update={"gateway_port": 8001}), "me")
    assert gateways.address == ADDRESS
    assert (await world.table()).listening == ADDRESS.listening


async def test_a_fleet_without_a_gateway_has_a_warning_until_one_reports(world, monkeypatch):
    """Another program had its port: `status` showed the endpoint, and nothing was wrong with it."""
    controller = world.controller
    assert controller.queries.status().warnings == ()
    monkeypatch.setattr(controller.fleet.reports, "_began", controller.fleet.reports._began - MISSED_S)
    (words,) = controller.queries.status().warnings
    assert words.startswith("No gateway has reported for 20 s, so requests to http://127.0.0.1:8000/v1 fail.")
    assert "port 8000" in words
    await controller.intake.register_gateway(
        GatewayReport(replica="r", url="http://127.0.0.1:8000", metrics_url="", at=1.0)
    )
    assert controller.queries.status().warnings == ()


def tables_at_ends(world, monkeypatch):
    """The models of the gateways' table at each end of a group."""
    seen = []
    retire = world.apps.retire

    async def watched(*group):
        seen.append((await world.table()).models)
        await retire(*group)

    monkeypatch.setattr(world.apps, "retire", watched)
    return seen


async def test_a_group_leaves_the_table_before_it_ends_although_another_one_has_just_been_started(
    world, monkeypatch
):
    """For ten seconds after its start a controller kept its own table, too, and requests of the ended group were cut."""
    seen = tables_at_ends(world, monkeypatch)
    await world.put()
    await world.ready(1)
    await world.put(concurrency=8)
    world.apps.become("tiny", 2, "running")  # its report is late
    await world.controller.commands.remove("tiny", "me")
    await world.controller.reconcile()
    assert seen == [{}, {}]


async def test_a_group_leaves_the_table_although_another_one_reports_meanwhile(world, monkeypatch):
    """Its report published the table with both while the first publication still woke the gateways."""
    seen, gateways = tables_at_ends(world, monkeypatch), world.controller.gateways
    publish = RoutingPublisher.publish

    async def interrupted(self, view, keys, without=None, listening=None):
        current = await publish(self, view, keys, without, listening)
        if without is not None:
            await gateways.publish()
        return current

    await world.put(groups=2)
    for replica in (0, 1):
        world.apps.become("tiny", 1, "running", replica=replica)
        await world.controller.intake.report(report(replica=replica, phase=GroupPhase.READY))
    await world.controller.reconcile()
    monkeypatch.setattr(RoutingPublisher, "publish", interrupted)
    await world.put(groups=1)
    (models,) = seen
    assert [group.app for group in models["tiny"].groups if group.ready] == ["tiny--g1-0"]


async def test_nothing_is_retired_while_the_gateways_have_the_table_of_the_controller_before(
    world, monkeypatch
):
    """It may name the group as ready; the groups report within seconds, and the end is decided again."""
    monkeypatch.setattr(routing_publisher, "SETTLE_S", 3600.0)  # a busy machine may take ten seconds for this
    await world.put()
    await world.ready(1)
    await world.put(concurrency=8)
    world.restarted()
    world.apps.become("tiny", 2, "failed")
    await world.controller.commands.remove("tiny", "me")
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 1, 0].status == "running"
    assert world.apps.apps["tiny", 2, 0].status == "retiring", "it does not serve"
    seen = tables_at_ends(world, monkeypatch)
    await world.ready(1)
    assert world.apps.apps["tiny", 1, 0].status == "retiring"
    assert seen == [{}]


async def test_a_group_whose_actor_is_just_replaced_is_not_retired_either(world, monkeypatch):
    """Its engine serves on, and the table names it (simulation, seed 1018, four nodes: it was ended at once)."""
    monkeypatch.setattr(routing_publisher, "SETTLE_S", 3600.0)
    await world.put()
    await world.ready(1)
    await world.put(concurrency=8)
    world.apps.become("tiny", 2, "running")  # it has not reported: the table is kept
    world.restarted()
    world.apps.become("tiny", 1, "starting")
    await world.controller.commands.remove("tiny", "me")
    await world.controller.reconcile()
    assert world.apps.apps["tiny", 1, 0].status == "starting"
    seen = tables_at_ends(world, monkeypatch)
    await world.ready(2)
    assert {app.status for app in world.apps.apps.values()} == {"retiring"}
    assert seen == [{}, {}]


@pytest.fixture
async def unanswered(world, monkeypatch):
    """The same with a ready group, while Ray Serve does not answer."""

    async def fails():
        raise TimeoutError("Serve")

    await world.put()
    await world.ready(1)
    assert (await world.table()).models["tiny"].state == "ready"
    monkeypatch.setattr(world.apps, "list", fails)
    return world


async def test_a_group_that_fails_leaves_the_table_although_ray_serve_does_not_answer(unanswered):
    await unanswered.controller.intake.report(report(phase=GroupPhase.FAILED))
    assert (await unanswered.table()).models["tiny"].state != "ready"


async def test_a_group_that_falls_silent_leaves_the_table_although_ray_serve_does_not_answer(
    unanswered, monkeypatch
):
    monkeypatch.setattr(report_cache, "STALE_S", 0.0)
    await unanswered.controller.round()
    assert (await unanswered.table()).models["tiny"].state != "ready"
