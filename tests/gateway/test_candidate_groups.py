"""Candidates among the fleet's groups and endpoints outside it."""

from __future__ import annotations

from sparkfleet.gateway.admission.slot import Slot
from sparkfleet.gateway.candidate_groups import CandidateGroups
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


def candidates(observed: ObservedGroups, *external: GroupEntry, group: GroupEntry = ONE) -> CandidateGroups:
    model = ModelEntry(name="m", groups=(group,), deployment="m", state="ready")
    return CandidateGroups(model, (group,), Requirements(prompt_tokens=100), observed, external=external)


def slot(observed: ObservedGroups) -> Slot:
    asked = candidates(observed)
    return Slot(asked, asked.forecasts())


def first(asked: CandidateGroups) -> str:
    return asked.ranked()[0].app


def test_a_full_group_spills_over_unless_the_endpoint_has_just_failed() -> None:
    clock = Clock()
    observed = ObservedGroups(clock)
    asked = candidates(observed, OUTSIDE)
    assert first(asked) == "one"
    held = slot(observed)
    assert first(asked) == "outside"
    observed.fail("outside")
    assert first(asked) == "one", "it waits: an endpoint that fails answers nobody sooner"
    clock.seconds += 6.0
    assert first(asked) == "outside"
    held.close()
    assert first(asked) == "one"


def test_the_group_with_the_largest_context_counts_for_later_if_it_is_not_ready() -> None:
    large = GroupEntry(app="large", ready=False, context=1000)
    asked = candidates(ObservedGroups())
    model = asked.model.model_copy(update={"groups": (ONE.model_copy(update={"context": 10}), large)})

    def later(model: ModelEntry, context: int) -> GroupEntry | None:
        return CandidateGroups(model, (), asked.needs, asked.observed).larger_later(context)

    assert later(model, 10) == large
    assert later(model, 1000) is None
    ready = large.model_copy(update={"ready": True})
    assert later(model.model_copy(update={"groups": (ready,)}), 10) is None, "it has refused already"


def test_a_request_for_which_no_group_is_left_does_not_wait_for_one() -> None:
    observed = ObservedGroups()
    model = candidates(observed).model
    nobody = CandidateGroups(model, (), Requirements(), observed)
    assert nobody.may_begin(observed.free(model.groups)), "it is refused at once"
