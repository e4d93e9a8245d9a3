"""The slot of a request on a group, and what is learned from it."""

from __future__ import annotations

import pytest

from sparkfleet.gateway.admission.slot import Slot
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.routing_table import GroupEntry, GroupSpeed, ModelEntry

ONE = GroupEntry(app="one", concurrency=1, speed=GroupSpeed(prefill_tps=1.0, alone_tps=10.0))


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def slot(observed: ObservedGroups) -> Slot:
    model = ModelEntry(name="m", groups=(ONE,), deployment="m", state="ready")
    candidates = CandidateGroups(model, (ONE,), Requirements(prompt_tokens=100), observed)
    return Slot(candidates, candidates.forecasts())


def test_an_error_of_an_engine_closes_no_circuit() -> None:
    clock = Clock()
    observed = ObservedGroups(clock)
    observed.fail("one")
    clock.seconds += 6.0
    probe = slot(observed)
    probe.note_answer(is_stream=False, is_good=False)
    assert observed.circuit_line("one")
    probe.close()
    other = slot(observed)
    other.note_answer(is_stream=False)
    assert observed.circuit_line("one") == ""
    other.close()


def test_the_first_byte_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = ObservedGroups()
    learned: list[str] = []
    monkeypatch.setattr(observed.learned, "saw_prefill", lambda app, *_: learned.append(app))
    asked = slot(observed)
    for _ in range(2):
        asked.note_answer(is_stream=True)
    asked.close()
    assert learned == ["one"], "the time to a later byte is no prefill"
    assert (observed.pending("one"), observed.held("one")) == (0, 0)


@pytest.mark.parametrize("full", [False, True])
def test_the_time_in_an_engines_queue_is_no_speed_of_its_prefill(full: bool) -> None:
    observed = ObservedGroups()
    before = slot(observed) if full else None
    asked = slot(observed)
    asked.note_answer(is_stream=True)
    assert (observed.learned.factors("one")[0] == 1.0) is full
    for held in (before, asked):
        if held is not None:
            held.close()
