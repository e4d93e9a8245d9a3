"""Reports of groups, and what follows from them."""

import asyncio
import sqlite3

import pytest
from controller_world import report

from sparkfleet.gateway.report import GatewayReport
from sparkfleet.group.report import GroupPhase


async def test_what_a_full_disk_refused_is_stored_when_the_phase_is_reported_again(world, monkeypatch):
    """The phase counted as known, so the start stayed unfinished: the node's next boot counted as its failure."""
    await world.put()
    await world.controller.intake.report(report())
    assert world.store.groups.starts()

    def full(group):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(world.store.groups, "end_start", full)
        with pytest.raises(sqlite3.OperationalError):
            await world.controller.intake.report(report(phase=GroupPhase.READY))
        assert world.controller.fleet.state().is_ready(("tiny", 1, 0)), "it serves meanwhile"
    await world.controller.intake.report(report(phase=GroupPhase.READY))
    assert not world.store.groups.starts()


async def test_the_end_of_a_start_is_not_expected_of_a_group_that_was_deleted(world):
    """Generation 2 was never wanted, nor has it an application."""
    await world.put()
    await world.ready(1)
    await world.controller.intake.report(report(2, started_s=90.0, phase=GroupPhase.READY))
    await world.controller.intake.report(report(2))
    assert world.controller.fleet.forecast.ready_at()
    await world.controller.reconcile()
    assert not world.controller.fleet.forecast.ready_at()


async def test_the_last_start_is_known_after_a_restart_of_the_controller(world):
    """Until the next start clients got the usual seconds in `Retry-After`, and `status` had no duration."""
    await world.put()
    await world.controller.intake.report(
        report(started_s=90.0, phase=GroupPhase.READY, start_times={"engine": 9.0})
    )
    for phase, fields in ((GroupPhase.FAILED, {}), (GroupPhase.READY, {"started_s": 3.0, "adopted": True})):
        await world.controller.intake.report(report(phase=phase, **fields))
    after = world.restarted()
    assert after.fleet.forecast.last_start_s("tiny") == 90.0
    assert after.fleet.forecast.last_start_s("other") is None


async def test_a_gateway_is_known_although_its_usage_cannot_be_stored(world, monkeypatch):
    """After fifteen seconds of a full disk it was missing in `status` and among the targets of Prometheus, and it served."""

    def full(used):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(world.store.keys, "use", full)
    gateway = GatewayReport(
        replica="r1", url="http://127.0.0.1:8000", metrics_url="", at=1.0, keys_used={"k": 1.0}
    )
    with pytest.raises(sqlite3.OperationalError):
        await world.controller.intake.register_gateway(gateway)
    assert world.controller.fleet.reports.gateways() == (gateway,)


async def test_a_measurement_is_an_event_and_the_next_actor_that_has_none_yet_is_not(world):
    await world.put()
    measured = {"ttft_ms": 24.0, "decode_tps": 17.3}
    for found in ({}, measured, measured, {}):
        await world.controller.intake.report(report(phase=GroupPhase.READY, measured=found))
    assert await world.messages("measured") == ["TTFT 24 ms, 17.3 tok/s for one user"]


async def test_an_engine_that_was_lost_between_two_actors_is_an_event_once(world):
    await world.put()
    for detail in ("", "waiting for memory"):
        await world.controller.intake.report(report(lost="its engine ended", detail=detail))
    named = [event.message for event in world.store.events.read() if event.kind == "lost"]
    assert named == ["its engine ended"]


async def test_an_engine_that_was_lost_is_one_event_however_often_its_start_fails(world):
    """Each actor that finds the same end reports it, and until it is ready the first reports of each do not have it."""
    await world.put()
    for phase in (GroupPhase.STARTING, GroupPhase.FAILED, GroupPhase.STARTING):
        await world.controller.intake.report(report())
        await world.controller.intake.report(report(phase=phase, lost="its engine ended"))
    await world.ready(1)
    assert await world.messages("lost") == ["its engine ended"]
    await world.controller.intake.report(report(lost="its engine ended"))
    assert await world.messages("lost") == ["its engine ended"] * 2, "another loss"


async def test_a_report_is_known_although_its_loss_cannot_be_recorded(world, monkeypatch):
    """On a full disk a group that had been lost was never known again, and it served."""
    await world.put()

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(world.store.events, "record", full)
        with pytest.raises(sqlite3.OperationalError):
            await world.controller.intake.report(report(lost="its engine ended"))
        assert world.controller.fleet.reports.newest("tiny/g1/0")
    await world.controller.intake.report(report(lost="its engine ended"))
    assert await world.messages("lost") == ["its engine ended"]


async def test_a_later_report_does_not_overtake_one_whose_event_waits(world):
    await world.put()
    async with world.controller.event_log._written:  # as while a client of the events reads them
        first = asyncio.create_task(world.controller.intake.report(report(lost="its engine ended")))
        second = asyncio.create_task(
            world.controller.intake.report(report(detail="loading", lost="its engine ended"))
        )
        await asyncio.sleep(0.01)
    await asyncio.gather(first, second)
    assert world.controller.fleet.reports.newest("tiny/g1/0").detail == "loading"
    assert await world.messages("lost") == ["its engine ended"]


async def test_a_round_that_fails_again_after_one_that_worked_is_another_event(world, monkeypatch):
    """The same words were recorded once in the life of a controller."""

    async def failing():
        raise RuntimeError("no Serve")

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(world.apps, "list", failing)
            await world.controller.round()
            await world.controller.round()
        await world.controller.round()
    failed = [event for event in world.store.events.read() if event.subject == "reconcile"]
    assert len(failed) == 2


async def test_a_repeated_report_of_a_start_is_no_progress(world):
    """The end of the actor before was named by two events."""
    await world.put()
    for _ in range(3):
        await world.controller.intake.report(report(detail="the group's last actor: it hung"))
    await world.controller.intake.report(report(detail="loading"))
    kinds = [event.kind for event in world.store.events.read() if event.subject == "tiny/g1/0"]
    assert kinds == ["deploy", "starting", "progress"]


async def test_an_end_that_was_reported_as_a_failure_is_not_reported_again_as_a_loss(world):
    await world.put()
    await world.ready(1)
    await world.controller.intake.report(report(phase=GroupPhase.FAILED, detail="The engine exited"))
    await world.controller.intake.report(report(lost="The engine exited"))
    assert await world.messages("lost") == []
    await world.controller.intake.report(report(phase=GroupPhase.READY))
    await world.controller.intake.report(report(lost="another end"))
    assert await world.messages("lost") == ["another end"]


async def test_an_older_report_of_the_same_actor_changes_nothing(world):
    """`probing` arrived 0.6 ms after `ready`: the group before was retired, and this one counted as not ready for 2 s."""
    await world.put()
    ready = report(phase=GroupPhase.READY, actor="a", number=8, url="http://127.0.0.1:1")
    probing = report(phase=GroupPhase.PROBING, actor="a", number=7, detail="checking its output (canary)")
    for one in (ready, probing):
        await world.controller.intake.report(one)
    assert world.controller.fleet.state().is_ready(("tiny", 1, 0))
    assert not await world.messages("probing")


async def test_a_failure_that_arrives_after_the_next_actor_s_first_report_counts_and_the_start_goes_on(world):
    await world.put()
    for one in (
        report(phase=GroupPhase.READY, actor="a", number=8),
        report(phase=GroupPhase.PREPARING, actor="b", number=1),
        report(phase=GroupPhase.FAILED, actor="a", number=9, detail="the engine exited"),
    ):
        await world.controller.intake.report(one)
    assert len(world.store.groups.standings()[("tiny", 1, 0)].falls) == 1
    assert await world.messages("failed") == ["the engine exited"]
    assert world.controller.fleet.reports.newest("tiny/g1/0").actor == "b"
    assert not world.store.groups.starts()
    await world.controller.intake.report(report(phase=GroupPhase.PREPARING, actor="b", number=2))
    assert world.store.groups.starts(), "the record of its start begins again"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "started in 97.5 s"),
        ({"adopted": True}, "adopted, ready after 97.5 s"),
        # As of each engine of the head whose deployment is applied to a fleet that is down: nothing ran before.
        ({"adopted": True, "unused": True}, "ready after 97.5 s; its engine was started ahead of it"),
    ],
)
async def test_the_event_of_a_start_names_what_was_adopted(world, fields, words):
    await world.put()
    await world.controller.intake.report(report(phase=GroupPhase.READY, started_s=97.5, **fields))
    assert await world.messages("ready") == [words]
