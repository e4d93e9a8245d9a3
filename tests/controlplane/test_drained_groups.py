"""A drained group gets no new requests, keeps its engine, and stays drained over a restart of the controller."""

import pytest
from controller_world import report

from sparkfleet.errors import ControlError
from sparkfleet.group.report import GroupPhase

FIRST, SECOND = ("tiny", 1, 0), ("tiny", 1, 1)


async def serving(world, groups=2):
    generation = await world.put(groups=groups)
    for replica in range(groups):
        world.apps.become("tiny", generation, "running", replica=replica)
        await world.controller.intake.report(report(generation, replica=replica, phase=GroupPhase.READY))
    await world.controller.reconcile()


async def ready_groups(world):
    entry = (await world.table()).models["tiny"]
    return entry.state, {group.app: group.ready for group in entry.groups}


async def test_a_drained_group_leaves_the_table_and_its_engine_goes_on(world):
    await serving(world)
    launches, apps = list(world.apps.launches), dict(world.apps.apps)
    assert await world.controller.commands.drain_group(FIRST, "me") == frozenset()
    assert await ready_groups(world) == ("ready", {"tiny--g1-0": False, "tiny--g1-1": True})
    await world.controller.reconcile()
    assert (world.apps.launches, world.apps.apps) == (launches, apps), "nothing is started, moved or ended"
    status = world.controller.queries.status()
    assert [(one.name, one.who) for one in status.drained_groups] == [("tiny/g1/0", "me")]
    (shown,) = status.deployments
    assert shown.state == "ready"
    assert shown.detail == "tiny/g1/0 is drained; `sparkfleet undrain tiny/g1/0` brings it back"
    await world.controller.commands.undrain_group(FIRST, "me")
    assert await ready_groups(world) == ("ready", {"tiny--g1-0": True, "tiny--g1-1": True})
    words = [event.message for event in world.store.events.read() if event.kind == "drain"]
    assert words == ["no new requests go to it: it is drained by me", "it gets requests again, by me"]


async def test_without_another_group_requests_are_refused_with_the_command(world):
    await serving(world, groups=1)
    await world.controller.commands.drain_group(FIRST, "me")
    entry = (await world.table()).models["tiny"]
    assert (entry.state, entry.apps) == ("drained", ())
    assert entry.detail == "every group is drained; `sparkfleet undrain tiny/g1/0` brings it back"
    assert world.state == "ready", "its engine serves, nothing failed"


async def test_it_stays_drained_over_a_restart_of_the_controller_and_of_the_fleet(world):
    await serving(world)
    await world.controller.commands.drain_group(SECOND, "me")
    world.restarted()
    for replica in range(2):
        await world.controller.intake.report(report(1, replica=replica, phase=GroupPhase.READY))
    await world.controller.reconcile()
    assert await ready_groups(world) == ("ready", {"tiny--g1-0": True, "tiny--g1-1": False})
    world.controller.commands.pause()
    for _ in range(3):
        await world.controller.reconcile()
    assert [one.group for one in world.store.drains.groups()] == [SECOND]


async def test_it_is_drained_once_and_undrained_once(world):
    await serving(world)
    for who in ("me", "other"):
        await world.controller.commands.drain_group(FIRST, who)
    assert [one.who for one in world.store.drains.groups()] == ["me"]
    await world.controller.commands.undrain_group(FIRST, "me")
    with pytest.raises(ControlError, match="tiny/g1/0 is not drained"):
        await world.controller.commands.undrain_group(FIRST, "me")


async def test_a_group_that_does_not_exist_is_named_beside_those_that_do(world):
    await serving(world)
    with pytest.raises(ControlError, match="There is no group tiny/g7/0") as refused:
        await world.controller.commands.drain_group(("tiny", 7, 0), "me")
    assert refused.value.do == "Groups: tiny/g1/0, tiny/g1/1."
    assert world.store.drains.groups() == ()


async def test_it_is_forgotten_with_its_group(world):
    await serving(world)
    await world.controller.commands.drain_group(FIRST, "me")
    await world.controller.commands.remove("tiny", "me")
    await world.controller.reconcile()
    assert [one.group for one in world.store.drains.groups()] == [FIRST], "its requests still end"
    world.apps.finish()
    await world.controller.reconcile()
    assert world.store.drains.groups() == ()
