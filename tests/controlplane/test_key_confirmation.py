"""A key that was created is known, and one that was revoked is refused, by every gateway that answers."""

import asyncio
import time

import pytest
from control_values import deployment, plan
from controller_world import World

from sparkfleet.controlplane import gateway_control as module
from sparkfleet.controlplane.views import routing_publisher
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.gateway.routing_table import KeyLimits


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CONFIRM_S", 0.3)
    world = World(tmp_path)
    yield world
    world.store.close()


async def gateway(world, replica="gw-1", keys_used=None):
    report = GatewayReport(
        replica=replica, url="http://here", metrics_url="http://here", at=0.0, keys_used=keys_used or {}
    )
    await world.controller.intake.register_gateway(report)


async def follow(world, replica="gw-1"):
    """Polls like a gateway."""
    version = 0
    while True:
        version = (await world.controller.gateways.table(version, 5.0, replica)).version


async def test_a_gateway_that_polls_confirms_at_once(world):
    await gateway(world)
    await world.controller.reconcile()
    poll = asyncio.create_task(follow(world))
    _, key, late = await world.controller.keys.create("laptop")
    assert late == frozenset()
    assert (await world.controller.keys.revoke("laptop")) == (key.name, frozenset())
    poll.cancel()


async def test_a_gateway_that_does_not_answer_is_named(world):
    await gateway(world, "gw-1")
    await gateway(world, "gw-2")
    await world.controller.reconcile()
    poll = asyncio.create_task(follow(world, "gw-1"))
    _, _, late = await world.controller.keys.create("laptop")
    assert late == {"gw-2"}
    poll.cancel()


async def test_a_gateway_with_the_table_of_the_controller_before_has_not_confirmed(world):
    """Right after a restart a revoked key was called refused by every gateway; they accepted it for ten seconds more."""
    await world.put()
    await world.ready(1)
    world.restarted()
    await world.controller.reconcile()
    await gateway(world)
    assert (await world.controller.keys.create("laptop"))[2] == {"gw-1"}
    poll = asyncio.create_task(follow(world))
    revoked = asyncio.create_task(world.controller.keys.revoke("laptop"))
    await asyncio.sleep(0)
    await world.ready(1)
    assert (await revoked)[1] == frozenset()
    poll.cancel()


async def test_a_gateway_that_a_new_controller_does_not_know_yet_has_not_confirmed(world, monkeypatch):
    """A gateway reports every five seconds: meanwhile a revoked key was called refused, and was accepted."""
    monkeypatch.setattr(routing_publisher, "UNREPORTED_GATEWAY_S", 60.0)
    assert (await world.controller.keys.create("laptop"))[2] == {"the gateway"}
    await world.controller.reconcile()
    poll = asyncio.create_task(follow(world))
    assert (await world.controller.keys.revoke("laptop"))[1] == frozenset()
    poll.cancel()


async def test_a_gateway_with_a_table_of_before_the_clock_was_set_back_has_not_confirmed(world):
    await gateway(world)
    await world.controller.reconcile()
    known = time.time_ns() + 3600 * 10**9
    assert (await world.controller.gateways.table(known, 0.0, "gw-1")).version < known
    assert (await world.controller.keys.create("laptop"))[2] == {"gw-1"}


async def test_without_gateways_nobody_has_to_confirm(world):
    assert (await world.controller.keys.create("laptop"))[2] == frozenset()


async def test_the_last_use_is_kept_to_the_minute_and_survives_the_controller(world):
    _, key, _ = await world.controller.keys.create("laptop")
    await world.controller.commands.put(deployment(), plan(), "me")
    await world.controller.commands.put(deployment("private", keys=("other",)), plan("private"), "me")
    await gateway(world, keys_used={key.id: 1000.0})
    await gateway(world, keys_used={key.id: 1030.0})
    assert world.store.keys.used() == {key.id: 1000.0}
    (row,) = world.controller.keys.rows()
    assert (row.used, row.may_use) == (1030.0, ("tiny",))
    world.restarted()
    (row,) = world.controller.keys.rows()
    assert row.used == 1000.0


async def test_a_key_for_administration_only_may_use_no_model(world):
    await world.controller.keys.create("page", KeyLimits(admin=True, inference=False))
    await world.controller.commands.put(deployment(), plan(), "me")
    (row,) = world.controller.keys.rows()
    assert (row.limits.admin, row.may_use) == (True, ())


async def test_an_expired_key_may_use_no_model(world):
    """`keys revoke` of the last valid one did not warn: the expired one counted."""
    await world.controller.keys.create("guest", KeyLimits(expires=1.0))
    await world.controller.commands.put(deployment(), plan(), "me")
    (row,) = world.controller.keys.rows()
    assert row.may_use == ()
