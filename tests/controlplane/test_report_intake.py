"""Reports of groups, and what follows from them."""

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


async def test_an_engine_that_was_lost_between_two_actors_is_an_event_once(world):
    await world.put()
    for detail in ("", "waiting for memory"):
        await world.controller.intake.report(report(lost="its engine ended", detail=detail))
    named = [event.message for event in world.store.events.read() if event.kind == "lost"]
    assert named == ["its engine ended"]
