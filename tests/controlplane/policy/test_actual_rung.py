"""A group that runs at another rung than the stored one, or came up before its restart or its end was carried out."""

import pytest
from controller_world import diagnosed, report

from sparkfleet.controlplane.policy.fallback import BREAKER_FAILURES, RESTARTS
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.group.report import GroupPhase

TINY, OTHER = ("tiny", 1, 0), ("tiny", 1, 1)


async def fails_again_and_again(world, replica=0):
    """It has served, and fails at each of Serve's restarts; the next round moves it to the next rung."""
    world.apps.become("tiny", 1, "starting", replica=replica)
    for _ in range(RESTARTS):
        await world.controller.intake.report(report(replica=replica))
        await world.controller.intake.report(diagnosed(replica=replica))


def rung(world, group=TINY):
    return world.store.groups.standings().get(group, Standing()).rung


@pytest.fixture
async def left(world):
    """A group whose next rung is stored, and whose deployment there Ray Serve has refused."""
    await world.put(rungs=3)
    await world.ready(1)
    await fails_again_and_again(world)
    deploy = world.apps.deploy
    world.apps.deploy = fails
    await world.controller.round()
    world.apps.deploy = deploy
    assert (world.rungs, rung(world)) == ([0], 1)
    return world


async def fails(launch):
    raise RuntimeError("Serve does not answer")


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_group_that_starts_at_a_rung_which_it_has_left_is_deployed_at_the_next_one(left, restarted):
    """Serve started the old rung for ever: its failures count on no rung."""
    if restarted:
        left.restarted()
    await left.starts_and_fails()
    await left.controller.round()
    assert (left.rungs, rung(left)) == ([0, 1], 1)
    await left.controller.intake.report(report())  # of the actor before, which ends
    await left.controller.round()
    assert left.rungs == [0, 1], "once"


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_group_that_comes_up_at_a_rung_which_it_has_left_stays_there(left, restarted):
    """Its next actor would have ended its engine, because it was stored at another rung."""
    if restarted:
        left.restarted()
    await left.ready(1)
    assert (left.rungs, rung(left)) == ([0], 0)
    assert left.controller.queries.is_still_wanted(TINY, 0)
    assert (await left.messages("fallback"))[-1].startswith(
        "it serves at rung 1, and was not restarted at rung 2"
    )


async def test_a_group_that_serves_below_its_stored_rung_keeps_that_of_its_engine(left):
    """The store is a copy of before the group fell."""
    await left.starts_and_fails()
    await left.controller.round()
    left.store.groups.set_standing(*TINY, Standing())
    left.restarted()
    left.apps.become("tiny", 1, "running")
    await left.controller.intake.report(report(phase=GroupPhase.READY, rung=1))
    await left.controller.round()
    assert left.store.groups.standings()[TINY] == Standing(rung=1, passed=("not known",))
    assert left.rungs == [0, 1]


@pytest.fixture
async def both(world):
    """Two groups that have served."""
    await world.put(rungs=2, groups=2)
    for replica in (0, 1):
        await world.ready(1, replica=replica)
        world.apps.become("tiny", 1, "running", replica=replica)
        await world.controller.reconcile()
    return world


def comes_up_meanwhile(world, monkeypatch, call):
    """The second group becomes ready while Ray Serve carries out the call for the first one."""
    one = getattr(world.apps, call)

    async def slow(*given):
        await one(*given)
        if world.apps.apps[OTHER].status == "starting":
            world.apps.become("tiny", 1, "running", replica=1)
            await world.controller.intake.report(report(replica=1, phase=GroupPhase.READY))

    monkeypatch.setattr(world.apps, call, slow)


async def test_a_group_that_comes_up_before_its_restart_is_not_restarted(both, monkeypatch):
    """Its engine was well (simulation, seed 508: calls for others took 26 s)."""
    for replica in (0, 1):
        await fails_again_and_again(both, replica)
    comes_up_meanwhile(both, monkeypatch, "deploy")
    before = len(both.apps.launches)
    await both.controller.round()
    assert [one.replica for one in both.apps.launches[before:]] == [0]
    assert rung(both, OTHER) == 1, "stored before the calls"
    await both.controller.round()
    assert rung(both, OTHER) == 0
    assert both.apps.apps[OTHER].status == "running"


async def test_a_group_that_comes_up_before_its_end_goes_on(both, monkeypatch):
    for replica in (0, 1):
        for _ in range(BREAKER_FAILURES):
            await both.controller.intake.report(report(replica=replica, phase=GroupPhase.READY))
            await both.controller.intake.report(report(replica=replica, phase=GroupPhase.FAILED))
        both.apps.become("tiny", 1, "starting", replica=replica)
    comes_up_meanwhile(both, monkeypatch, "retire")
    await both.controller.round()
    await both.controller.round()
    assert both.apps.apps[TINY].status == "retiring"
    assert both.apps.apps[OTHER].status == "running"
    assert not both.store.groups.standings()[OTHER].given_up
    await both.controller.intake.report(report(replica=1, phase=GroupPhase.FAILED))
    both.apps.become("tiny", 1, "starting", replica=1)
    await both.controller.round()
    assert both.store.groups.standings()[OTHER].given_up, "its next failure ends it"
