"""Any order of requests, failures, tables and departures: places are counted exactly, and nobody waits beside a free one."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparkfleet.gateway.admission.model_queue import ModelQueues, QueuedSlot
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.policy.circuit import LONGEST_OPEN_S, OPEN_S
from sparkfleet.gateway.policy.forecast import forecasts
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.routing_table import GroupEntry, GroupSpeed, ModelEntry

APPS = ("a", "b", "c")
GROUPS = st.lists(
    st.builds(
        GroupEntry,
        app=st.sampled_from(APPS),
        concurrency=st.integers(1, 3),
        vision=st.sampled_from([True, False, None]),
        context=st.sampled_from([None, 1000, 100_000]),
        speed=st.sampled_from(
            [None, GroupSpeed(prefill_tps=2000, alone_tps=30, together_tps=90, concurrency=3)]
        ),
    ),
    max_size=3,
    unique_by=lambda group: group.app,
)
NEEDS = st.builds(
    Requirements,
    vision=st.booleans(),
    tokens=st.integers(2000, 5000),  # with those of the prompt
    prompt_tokens=st.integers(0, 2000),
    prefix=st.lists(st.integers(0, 3), max_size=4).map(tuple),
)


class Admission(RuleBasedStateMachine):
    """Table, policy, queue and circuit of one model."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.observed = ObservedGroups(lambda: self.now)
        self.queues = ModelQueues(waiting=8, longest_s=1000)
        self.observed.on_end = self.queues.pump
        self.waiting: list[tuple[asyncio.Task[QueuedSlot], Requirements]] = []
        self.slots: list[QueuedSlot] = []

    @initialize(groups=GROUPS)
    def begin(self, groups: list[GroupEntry]) -> None:
        """The first table."""
        self.groups = tuple(groups)

    def teardown(self) -> None:
        """All leave: nothing is left."""
        for task, _ in self.waiting:
            task.cancel()
        self.settle()
        for slot in self.slots:
            slot.close()
        self.settle()
        for slot in self.slots:
            slot.close()
        assert all(self.observed.held(app) == self.observed.pending(app) == 0 for app in APPS)
        assert self.queues.waiting("m") == 0
        assert not self.queues._running
        self.loop.close()

    def settle(self) -> None:
        async def steps() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        self.loop.run_until_complete(steps())
        left = []
        for task, needs in self.waiting:
            if not task.done():
                left.append((task, needs))
            elif not task.cancelled() and task.exception() is None:
                self.slots.append(task.result())
            else:
                assert task.cancelled() or isinstance(task.exception(), ApiError), task.exception()
        self.waiting = left

    def choose(self, needs: Requirements, key: str, **more: Any) -> CandidateGroups:
        model = ModelEntry(name="m", groups=self.groups, deployment="d", state="ready")
        able = tuple(group for group in self.groups if not needs.vision or group.vision is not False)
        return CandidateGroups(model, able, needs, self.observed, key, **more)

    @rule(needs=NEEDS, key=st.sampled_from("xyz"), batch=st.booleans())
    def enter(self, needs: Requirements, key: str, batch: bool) -> None:
        """A request arrives."""
        priority = "batch" if batch else "interactive"
        task = self.loop.create_task(self.queues.enter(lambda: self.choose(needs, key, priority=priority)))
        self.waiting.append((task, needs))
        self.settle()

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), answered=st.booleans(), good=st.booleans(), tokens=st.integers(0, 100))
    def end(self, data: st.DataObject, answered: bool, good: bool, tokens: int) -> None:
        """A request ends, perhaps after an answer; its place is given up once, however often it is closed."""
        slot = self.slots.pop(data.draw(st.integers(0, len(self.slots) - 1)))
        if answered:
            before = self.observed._circuits.get(slot._app)
            slot.note_answer(is_stream=True, is_good=good)
            closes = good and before is not None and 0 < before.first <= slot._number
            assert (slot._app in self.observed._circuits) == (before is not None and not closes)
            slot.note_end(tokens, is_stream=True)
        slot.close()
        slot.close()
        self.settle()

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """A request's engine is lost, and it moves to another group."""
        slot = data.draw(st.sampled_from(self.slots))
        self.observed.fail(slot._last or APPS[0])
        if ranked := slot.candidates.ranked():
            slot.move(data.draw(st.sampled_from(ranked)))
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A client that waits leaves."""
        task, _ = data.draw(st.sampled_from(self.waiting))
        task.cancel()
        self.settle()

    @rule(groups=GROUPS)
    def table(self, groups: list[GroupEntry]) -> None:
        """The controller publishes another table."""
        self.groups = tuple(groups)
        self.observed.follow(groups, ["m"])
        self.queues.refresh()
        self.settle()

    @rule(seconds=st.sampled_from([0.1, OPEN_S + 1, LONGEST_OPEN_S]))
    def wait(self, seconds: float) -> None:
        """Time passes: a group that failed is tried again."""
        self.now += seconds
        self.queues.pump()
        self.settle()

    @invariant()
    def counts_are_those_of_the_slots(self) -> None:
        """Each open slot is counted once, at its group."""
        for app in APPS:
            assert self.observed.held(app) == sum(slot._app == app for slot in self.slots)
            assert self.observed.pending(app) == sum(slot._cold for slot in self.slots if slot._app == app)
        assert sum(self.queues._running.values()) == len(self.slots)

    @invariant()
    def one_request_tries_a_group_that_failed(self) -> None:
        """A half-open circuit has its probe in flight, and no pause is longer than the longest."""
        for app, circuit in self.observed._circuits.items():
            assert circuit.until - self.now <= LONGEST_OPEN_S + 1e-6  # of sums of decimals
            assert 0 <= circuit.first <= circuit.probe
            assert circuit.failures >= 1
            if circuit.probe and circuit.is_open(self.now):
                assert any(slot._app == app and slot._number == circuit.probe for slot in self.slots)

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), succeeds=st.booleans())
    def try_again(self, data: st.DataObject, succeeds: bool) -> None:
        """Requests come at once to a group after its pause: one finds it idle, and its outcome decides."""
        app = data.draw(st.sampled_from([group.app for group in self.groups]))
        self.observed.fail(app)
        before = self.observed._circuits[app]
        self.now = before.until
        assert not self.observed.circuit_is_open(app)
        probe = self.observed.begin(app)
        other = self.observed.begin(app)
        assert self.observed.circuit_is_open(app)
        assert self.observed._circuits[app].probe == probe
        if succeeds:
            self.observed.succeed(app, probe)
            assert app not in self.observed._circuits
        else:
            self.observed.fail(app)
            self.observed.succeed(app, other)
            after = self.observed._circuits[app]
            assert after.failures == before.failures + 1
            assert before.pause_s() <= after.pause_s() <= LONGEST_OPEN_S
        for number in (probe, other):
            self.observed.end(app, number)
        self.settle()

    @invariant()
    def nobody_waits_beside_a_free_place(self) -> None:
        """The best group of a waiting request has no free place."""
        for _, needs in self.waiting:
            candidates = self.choose(needs, "x")
            assert not candidates.groups or candidates.forecasts()[0].is_full

    @invariant()
    def forecasts_are_complete_and_in_order(self) -> None:
        """Each group has one forecast, finite, the surer ones first."""
        if not hasattr(self, "groups"):
            return
        needs = Requirements(tokens=500, prompt_tokens=100)
        found = self.observed.forecasts(self.groups, needs, "m")
        assert sorted(one.group.app for one in found) == sorted(group.app for group in self.groups)
        assert [one.doubts for one in found] == sorted(one.doubts for one in found)
        assert all(0 <= one.total_s < float("inf") for one in found)
        assert forecasts([], needs, 10) == []


TestAdmission = Admission.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
