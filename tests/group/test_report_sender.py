import asyncio
import contextlib

import pytest
from group_world import group_launch

from sparkfleet.engines.startup_phases import StartupPhase
from sparkfleet.group import report_sender, serving_watch
from sparkfleet.group.report import GroupPhase
from sparkfleet.group.report_sender import ReportSender

BEATS_S = 0.1
"""Many heartbeats."""


@pytest.fixture
def sent():
    return []


@pytest.fixture
def sender(sent, monkeypatch):
    monkeypatch.setattr(serving_watch, "HEARTBEAT_S", 0.01)
    return ReportSender(group_launch(), sent.append)


def test_nothing_is_sent_before_a_phase_is_entered(sender, sent):
    assert sent == []
    assert (sender.last.deployment, sender.last.node, sender.last.engine) == ("tiny", "this", "vllm")
    assert (sender.last.phase, sender.last.number) == (GroupPhase.STARTING, 0)


def test_each_report_has_the_next_number_of_this_actor(sender, sent):
    """Reports may reach the controller in another order than that in which they were sent."""
    for phase in (GroupPhase.STARTING, GroupPhase.STARTING, GroupPhase.READY):
        sender.enter(phase)
    assert [one.number for one in sent] == [1, 2, 3]
    assert sender.last is sent[-1]
    assert len({one.actor for one in sent}) == 1
    assert sent[0].actor not in ("", ReportSender(group_launch(), sent.append).last.actor)


def test_fields_last_until_they_change_and_a_detail_and_a_step_do_not(sender):
    step = StartupPhase(phase="loading")
    sender.enter(GroupPhase.STARTING, "loading", step=step, url="http://a", adopted=True)
    assert (sender.last.detail, sender.last.step) == ("loading", step)
    sender.enter(GroupPhase.STARTING, url="http://b")
    assert (sender.last.detail, sender.last.step) == ("", None)
    assert (sender.last.url, sender.last.adopted) == ("http://b", True)


def test_a_phase_began_when_it_was_first_entered(monkeypatch):
    seconds = iter(range(100, 200))
    monkeypatch.setattr(report_sender.time, "time", lambda: float(next(seconds)))
    sent = []
    sender = ReportSender(group_launch(), sent.append)
    for phase in (GroupPhase.STARTING, GroupPhase.READY, GroupPhase.READY, GroupPhase.STARTING):
        sender.enter(phase)
    assert [one.since for one in sent] == [100.0, 101.0, 101.0, 102.0]


async def test_while_something_waits_the_last_report_is_repeated_with_its_number(sender, sent):
    sender.enter(GroupPhase.STARTING)
    async with sender.repeating(), asyncio.timeout(5):
        while len(sent) < 3:
            await asyncio.sleep(0.01)
        sender.enter(GroupPhase.PROBING, "requesting a first token")
        entered = len(sent)
        while len(sent) < entered + 2:
            await asyncio.sleep(0.01)
    assert {one.number for one in sent} == {1, 2}
    assert sent[0] == sent[1]
    assert sent[entered - 1] == sent[entered]


async def test_a_failure_is_not_repeated(sender, sent):
    async with sender.repeating():
        sender.enter(GroupPhase.FAILED, "it exited")
        await asyncio.sleep(BEATS_S)
    assert [one.phase for one in sent] == [GroupPhase.FAILED]


async def test_the_repetition_ends_with_the_wait_also_if_that_fails(sender, sent):
    sender.enter(GroupPhase.STARTING)
    with contextlib.suppress(OSError):
        async with sender.repeating():
            while len(sent) < 2:
                await asyncio.sleep(0.01)
            raise OSError
    count = len(sent)
    await asyncio.sleep(BEATS_S)
    assert len(sent) == count
