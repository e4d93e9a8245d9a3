"""A group of an earlier generation beside a newer one that was given up."""

import time

import pytest
from controller_world import diagnosed, report

from sparkfleet.controlplane.policy.fallback import BREAKER_FAILURES, RESTARTS
from sparkfleet.group.report import GroupPhase

OLDER, NEWER = ("tiny", 1, 0), ("tiny", 2, 0)


@pytest.fixture
async def outlived(world):
    """Generation 2 took its node down twice and is gone; generation 1 serves on."""
    await world.put()
    await world.ready(1)
    await world.put(concurrency=8)
    await world.controller.intake.report(diagnosed(generation=2))
    world.apps.become("tiny", 2, "failed")
    await world.controller.reconcile()
    del world.apps.apps["tiny", 2, 0]
    return world


async def test_for_what_is_not_started_any_more_nothing_is_stopped(outlived):
    outlived.nodes.available["this"] = 0
    for _ in range(2):
        await outlived.controller.reconcile()
    assert {key: app.status for key, app in outlived.apps.apps.items()} == {("tiny", 1, 0): "running"}
    assert "generation 1 serves" in outlived.controller.queries.status().deployments[0].detail


async def test_that_the_older_one_is_started_again_is_told(outlived):
    await outlived.controller.intake.report(report(1, phase=GroupPhase.FAILED))
    outlived.apps.become("tiny", 1, "starting")
    await outlived.controller.reconcile()
    status = outlived.controller.queries.status().deployments[0]
    assert status.state == "failed"
    assert "generation 1 is restarting" in status.detail
    assert (await outlived.table()).models["tiny"].detail == status.detail
    await outlived.ready(1)
    assert (await outlived.table()).models["tiny"].apps == ("tiny--g1-0",)


async def test_that_the_older_one_waits_for_a_drained_node_is_told(outlived):
    outlived.apps.become("tiny", 1, "starting")
    words = "this is drained: it starts after `sparkfleet undrain this`"
    await outlived.controller.intake.report(report(1, phase=GroupPhase.BARRED, detail=words))
    await outlived.controller.reconcile()
    assert f"generation 1 waits: {words}" in outlived.controller.queries.status().deployments[0].detail


# --- its limits


async def fails_to_start(world, times, generation=1):
    """Serve starts it again each time."""
    world.apps.become("tiny", generation, "starting")
    for _ in range(times):
        await world.starts_and_fails(generation=generation)
        await world.controller.reconcile()


async def test_an_older_one_that_fails_at_each_restart_is_ended(outlived):
    """Serve restarted it for ever."""
    await fails_to_start(outlived, RESTARTS - 1)
    assert outlived.apps.apps[OLDER].status == "starting"
    await fails_to_start(outlived, 1)
    assert outlived.apps.apps[OLDER].status == "retiring"
    assert [why for why in await outlived.messages("failed") if "in a row" in why] == [
        "it failed 3 starts in a row, so it is not started again; generation 2 did not start either;"
        " `sparkfleet apply` tries once more"
    ]
    outlived.apps.finish()
    await outlived.controller.reconcile()
    status = outlived.controller.queries.status().deployments[0]
    assert (status.state, status.detail) == (
        "failed",
        "its engine did not start; `sparkfleet describe tiny` shows the reason",
    )
    launches = list(outlived.apps.launches)
    await outlived.controller.reconcile()
    assert outlived.apps.launches == launches, "it had served, and is not brought back"


async def test_an_older_one_that_comes_up_and_fails_too_often_is_ended(outlived):
    await outlived.falls(BREAKER_FAILURES - 1)
    assert outlived.apps.apps[OLDER].status == "running"
    await outlived.falls(1)
    assert outlived.apps.apps[OLDER].status == "retiring"
    assert "5 times within 10 minutes" in (await outlived.messages("failed"))[-1]


async def test_failures_of_an_older_one_count_on_if_the_newer_one_has_served_for_a_moment_only(world):
    """It came up and failed nine times within ten minutes: its failures were forgotten as soon as the newer one served."""
    await world.put()
    await world.falls(BREAKER_FAILURES - 1)
    world.apps.become("tiny", 1, "starting")
    await world.put(concurrency=8)
    for _ in range(BREAKER_FAILURES):
        world.apps.become("tiny", 2, "running")
        await world.controller.intake.report(report(2, phase=GroupPhase.READY, since=time.time()))
        await world.controller.reconcile()
        world.apps.finish()
        await world.controller.reconcile()
        assert OLDER not in world.apps.apps
        await world.controller.intake.report(report(2, phase=GroupPhase.FAILED))
    for _ in range(2):
        await world.controller.reconcile()
        world.apps.finish()
    await world.controller.reconcile()
    assert {key: app.status for key, app in world.apps.apps.items()} == {OLDER: "starting"}
    await world.falls(1)
    assert world.apps.apps[OLDER].status == "retiring"
    assert (await world.messages("failed"))[-1].startswith("it came up and failed 5 times within 10 minutes")


async def test_one_that_serves_in_between_goes_on(outlived):
    for _ in range(2):
        await fails_to_start(outlived, RESTARTS - 1)
        await outlived.ready(1)
    assert outlived.apps.apps[OLDER].status == "running"


async def test_what_fails_while_a_newer_one_loads_is_not_counted(world):
    """The newer one takes its memory, and may be given up in a moment."""
    await world.put()
    await world.ready(1)
    await world.put(concurrency=8)
    await world.controller.intake.report(report(2))
    await fails_to_start(world, RESTARTS + 1)
    assert world.apps.apps[OLDER].status == "starting"
    await world.controller.intake.report(diagnosed(generation=2))
    world.apps.become("tiny", 2, "failed")
    await world.controller.reconcile()
    assert world.apps.apps[OLDER].status == "starting"
    await fails_to_start(world, RESTARTS)
    assert world.apps.apps[OLDER].status == "retiring"


async def test_its_end_is_carried_out_if_the_controller_ended_before(outlived):
    await fails_to_start(outlived, RESTARTS - 1)
    outlived.apps.become("tiny", 1, "starting")
    standing = outlived.store.groups.standings()[OLDER].model_copy(update={"given_up": True})
    outlived.store.groups.set_standing(*OLDER, standing)
    await outlived.restarted().reconcile()
    assert outlived.apps.apps[OLDER].status == "retiring"
    assert not [why for why in await outlived.messages("failed") if "in a row" in why], (
        "it is recorded already"
    )


async def test_one_that_has_failed_holds_up_no_start_that_waits_for_memory(outlived):
    outlived.apps.become("tiny", 1, "failed")
    await outlived.controller.reconcile()
    assert outlived.apps.apps[OLDER].status == "retiring"


# --- while a container tool is away


async def test_a_container_tool_that_is_away_ends_no_older_one(outlived):
    """A desired one is tried again for as long as that takes, too."""
    outlived.apps.become("tiny", 1, "starting")
    for _ in range(3 * RESTARTS):
        await outlived.starts_and_fails(cause="tool")
        await outlived.controller.reconcile()
    assert outlived.apps.apps[OLDER].status == "starting"
    await outlived.ready(1)
    assert outlived.apps.apps[OLDER].status == "running"


async def test_one_that_serves_again_is_started_again_while_a_container_tool_is_away(outlived):
    """Ray Serve starts none again that has not served since it was deployed."""
    outlived.apps.become("tiny", 1, "retiring")
    outlived.apps.finish()
    await outlived.controller.reconcile()
    assert outlived.apps.apps[OLDER].status == "starting", "it is brought back"
    for _ in range(3 * RESTARTS):
        await outlived.controller.intake.report(report())
        started = len(outlived.apps.launches)
        await outlived.fails("tool")
        assert outlived.apps.apps[OLDER].status == "starting"
        await outlived.controller.reconcile()
        assert len(outlived.apps.launches) == started + 1, "one answer to one failure"
    await outlived.ready(1)
    assert (await outlived.table()).models["tiny"].apps == ("tiny--g1-0",)
