"""The choice between the fleet's groups and endpoints outside it, and what a slot learns from its request."""

from __future__ import annotations

import pytest

from sparkfleet.gateway.choice import Choice, Slot
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.routing_table import ExternalAddress, GroupEntry, GroupSpeed, ModelEntry

ONE = GroupEntry(app="one", concurrency=1, speed=GroupSpeed(prefill_tps=1.0, alone_tps=10.0))
OUTSIDE = GroupEntry(app="outside", external=ExternalAddress(url="http://outside", model="m", when="busy"))


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def choice(observed: ObservedGroups, *spare: GroupEntry, group: GroupEntry = ONE) -> Choice:
    model = ModelEntry(name="m", groups=(group,), deployment="m", state="ready")
    return Choice(model, (group,), Requirements(prompt_tokens=100), observed, spare=spare)


def slot(observed: ObservedGroups) -> Slot:
    asked = choice(observed)
    return Slot(asked, asked.forecasts())


def first(asked: Choice) -> str:
    return asked.ranked()[0].app


def test_a_full_group_spills_over_unless_the_endpoint_has_just_failed() -> None:
    clock = Clock()
    observed = ObservedGroups(clock)
    asked = choice(observed, OUTSIDE)
    assert first(asked) == "one"
    held = slot(observed)
    assert first(asked) == "outside"
    observed.fail("outside")
    assert first(asked) == "one", "it waits: an endpoint that fails answers nobody sooner"
    clock.seconds += 6.0
    assert first(asked) == "outside"
    held.close()
    assert first(asked) == "one"


def test_an_error_of_an_engine_closes_no_circuit() -> None:
    clock = Clock()
    observed = ObservedGroups(clock)
    observed.fail("one")
    clock.seconds += 6.0
    probe = slot(observed)
    probe.answered(is_stream=False, is_good=False)
    assert observed.circuit_line("one")
    probe.close()
    other = slot(observed)
    other.answered(is_stream=False)
    assert observed.circuit_line("one") == ""
    other.close()


def test_the_first_byte_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = ObservedGroups()
    learned: list[str] = []
    monkeypatch.setattr(observed.learned, "saw_prefill", lambda app, *_: learned.append(app))
    asked = slot(observed)
    for _ in range(2):
        asked.answered(is_stream=True)
    asked.close()
    assert learned == ["one"], "the time to a later byte is no prefill"
    assert (observed.pending("one"), observed.held("one")) == (0, 0)


@pytest.mark.parametrize("full", [False, True])
def test_the_time_in_an_engines_queue_is_no_speed_of_its_prefill(full: bool) -> None:
    observed = ObservedGroups()
    before = slot(observed) if full else None
    asked = slot(observed)
    asked.answered(is_stream=True)
    assert (observed.learned.factors("one")[0] == 1.0) is full
    for held in (before, asked):
        if held is not None:
            held.close()


def test_the_group_with_the_largest_context_counts_for_later_if_it_is_not_ready() -> None:
    large = GroupEntry(app="large", ready=False, context=1000)
    asked = choice(ObservedGroups())
    model = asked.model.model_copy(update={"groups": (ONE.model_copy(update={"context": 10}), large)})

    def later(model: ModelEntry, context: int) -> GroupEntry | None:
        return Choice(model, (), asked.needs, asked.observed).larger_later(context)

    assert later(model, 10) == large
    assert later(model, 1000) is None
    ready = large.model_copy(update={"ready": True})
    assert later(model.model_copy(update={"groups": (ready,)}), 10) is None, "it has refused already"


def test_a_request_for_which_no_group_is_left_does_not_wait_for_one() -> None:
    observed = ObservedGroups()
    model = choice(observed).model
    nobody = Choice(model, (), Requirements(), observed)
    assert nobody.may_begin(observed.free(model.groups)), "it is refused at once"
