"""Draining one group: what it means, and waiting until its requests have ended."""

import pytest
from statuses import deployment, fleet, report

from sparkfleet.controlplane.state.drained import DrainedGroup
from sparkfleet.errors import ControlError
from sparkfleet.fleet.lifecycle import drain
from sparkfleet.fleet.lifecycle.drain import PreparedGroupDrain, group_drain, is_group, until_idle
from sparkfleet.group.report import GroupPhase

NAME = "big/g3/0"


class Answers:
    """A controller that reports these statuses, then the last one again and again."""

    def __init__(self, *statuses):
        self._left = list(statuses)
        self.asked = 0

    async def fleet(self):
        self.asked += 1
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(drain, "IDLE_S", 0.2)
    monkeypatch.setattr(drain, "WAIT_S", 0.005)


def of(*groups, drained=()):
    found = fleet(deployment(*groups, planned=len(groups)))
    marks = tuple(
        DrainedGroup(deployment="big", generation=3, replica=one, who="me", since=0.0) for one in drained
    )
    return found.model_copy(update={"drained_groups": marks})


def test_a_node_has_no_slash_and_a_group_has_two():
    assert [is_group(name) for name in ("spark1", NAME)] == [False, True]


def test_it_counts_what_runs_and_the_groups_that_go_on():
    status = of(
        report(running=2, waiting=1), report(1), report(2, GroupPhase.STARTING), report(3), drained=[3]
    )
    assert group_drain(status, NAME) == PreparedGroupDrain(NAME, running=3, others=1, drained=False)
    assert group_drain(status, "big/g3/3").drained
    with pytest.raises(ControlError, match="There is no group big/g9/0"):
        group_drain(status, "big/g9/0")


async def test_it_waits_until_no_request_is_left_and_none_comes_again(quick):
    busy, idle, late = of(report(running=1)), of(report()), of(report(waiting=1))
    answers, seen = Answers(busy, busy, idle, late, idle), []
    await until_idle(answers, NAME, seen.append)
    assert [(one.subjects, one.detail) for one in seen] == [((NAME,), "1 left")] * 3
    assert answers.asked > 6


@pytest.mark.parametrize("gone", [of(), of(report(phase=GroupPhase.FAILED, running=1))])
async def test_a_group_that_ends_meanwhile_is_not_waited_for(quick, gone):
    answers = Answers(of(report(running=1)), gone)
    await until_idle(answers, NAME)
    assert answers.asked == 2


async def test_a_group_that_does_not_report_is_not_taken_for_idle(quick):
    silent = of(report(silent_s=20.0))
    answers = Answers(*[silent] * 10, of(report()))
    await until_idle(answers, NAME)
    assert answers.asked > 10
