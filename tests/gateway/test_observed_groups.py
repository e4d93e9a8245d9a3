"""Order of the groups that can serve a request."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from clocks import Clock

from sparkfleet.engines.fake import FakeEngine, InjectedFault, Pace
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.policy.circuit import OPEN_S
from sparkfleet.gateway.policy.forecast import reason_of
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

if TYPE_CHECKING:
    from conftest import Door, OpenDoor

NOTHING = Requirements()
SMALL = GroupEntry(app="small", concurrency=2)
LARGE = GroupEntry(app="large", concurrency=8)


def first(observed: ObservedGroups, *groups: GroupEntry, needs: Requirements = NOTHING) -> str:
    return observed.forecasts(groups, needs)[0].group.app


def test_requests_are_shared_by_slots() -> None:
    observed = ObservedGroups()
    for _ in range(20):
        observed.begin(first(observed, SMALL, LARGE))
    assert (observed.held("small"), observed.held("large")) == (4, 16)


def test_idle_groups_take_turns() -> None:
    observed, taken = ObservedGroups(), []
    for _ in range(4):
        taken.append(first(observed, SMALL, LARGE))
        observed.begin(taken[-1])
        observed.end(taken[-1])
    assert taken == ["small", "large"] * 2


def test_turns_are_kept_where_some_requests_have_no_choice() -> None:
    observed, taken = ObservedGroups(), Counter[str]()
    for number in range(20):
        groups = (LARGE,) if number % 2 else (SMALL, LARGE)
        app = first(observed, *groups)
        taken[app] += len(groups) == 2
        observed.begin(app)
        observed.end(app)
    assert taken == {"small": 10, "large": 0}  # `large` had its turn each time in between


@pytest.mark.parametrize("slots", [None, 0])
def test_slots_that_are_not_known_are_taken_for_few(slots: int | None) -> None:
    observed = ObservedGroups()
    unknown = GroupEntry(app="unknown", concurrency=slots)
    for _ in range(12):
        observed.begin(first(observed, unknown, SMALL, LARGE))
    assert (observed.held("unknown"), observed.held("small"), observed.held("large")) == (2, 2, 8)
    assert first(ObservedGroups(), unknown) == "unknown"


def test_one_that_failed_is_asked_last_for_a_while() -> None:
    clock = Clock(100.0)
    observed = ObservedGroups(clock)
    observed.begin("large")
    observed.fail("small")
    assert first(observed, SMALL, LARGE) == "large"
    assert first(observed, SMALL) == "small"
    clock.now += OPEN_S
    assert first(observed, SMALL, LARGE) == "small"


def test_one_request_tries_a_group_that_failed() -> None:
    clock = Clock(100.0)
    observed = ObservedGroups(clock)
    observed.fail("small")
    clock.now += OPEN_S
    probe = observed.begin(first(observed, SMALL, LARGE))
    assert observed.held("small") == 1
    for _ in range(6):
        observed.begin(first(observed, SMALL, LARGE))
    assert observed.held("large") == 6
    assert observed.circuit_line("small") == "half-open: failed, a request tries it"
    observed.succeed("small", probe)
    assert observed.circuit_line("small") == ""
    assert first(observed, SMALL, LARGE) == "small"


def test_a_group_that_fails_again_and_again_is_named_until_it_answers_or_starts_anew() -> None:
    """A workload with a key of its own refused every request, and was "ready" without a word."""
    clock = Clock()
    observed = ObservedGroups(clock)
    observed.follow([SMALL])

    def fail(seconds: float) -> None:
        clock.now += seconds
        observed.begin("small")
        observed.fail("small", "tiny/g1/0", "it answered 401")
        observed.end("small")

    fail(0)
    fail(0.1)
    assert observed.failing() == (), "several at once are one failure"
    fail(OPEN_S)
    (words,) = observed.failing()
    assert words.startswith("tiny/g1/0 counts as ready, and requests fail there: it answered 401, 2 times")
    assert "`sparkfleet logs tiny/g1/0`" in words
    observed.follow([SMALL])
    assert observed.failing() == (words,)
    observed.follow([SMALL.model_copy(update={"ready": False})])
    observed.follow([SMALL])
    assert observed.failing() == (), "another engine may serve it now"
    fail(10 * OPEN_S)
    clock.now += 100 * OPEN_S
    observed.succeed("small", observed.begin("small"))
    assert observed.failing() == ()


def test_those_that_wait_are_served_when_a_circuit_closes() -> None:
    clock, calls = Clock(100.0), []
    observed = ObservedGroups(clock)
    observed.fail("small")
    clock.now += OPEN_S
    probe = observed.begin("small")
    observed.on_end = lambda: calls.append(observed.circuit_is_open("small"))
    observed.succeed("small", probe)
    assert calls == [False]


def test_a_probe_without_a_verdict_makes_room_for_another() -> None:
    """Its client left, or the engine refused it."""
    clock = Clock(100.0)
    observed = ObservedGroups(clock)
    observed.fail("small")
    clock.now += OPEN_S
    probe = observed.begin("small")
    assert observed.circuit_is_open("small")
    observed.end("small", probe)
    assert not observed.circuit_is_open("small")


def test_one_that_failed_is_behind_the_others_however_busy_they_are() -> None:
    observed = ObservedGroups()
    observed.fail("small")
    for _ in range(9):
        observed.begin("large")
    (found, last) = observed.forecasts([SMALL, LARGE], NOTHING)
    assert (found.group, last.group) == (LARGE, SMALL)
    assert reason_of([found, last]) == "the only group that has not failed lately"


def test_ability_comes_before_load() -> None:
    observed = ObservedGroups()
    sees = SMALL.model_copy(update={"vision": True})
    observed.begin("small")
    assert first(observed, sees, LARGE, needs=Requirements(vision=True)) == "small"
    assert first(observed, sees, LARGE) == "large"


def test_what_is_gone_is_forgotten_but_not_what_it_still_has_in_hand() -> None:
    observed = ObservedGroups()
    observed.begin("small")
    observed.begin("large")
    observed.fail("small")
    observed.follow([LARGE])
    assert first(observed, SMALL, LARGE) == "large"  # 1 of 8 against 1 of 2
    observed.end("small")
    assert observed.held("small") == 0
    assert first(observed, SMALL, LARGE) == "small"


# Through a gateway

SLOW = Pace(ttft_s=0.05, itl_s=0.005, tokens=8)


async def house(open_door: OpenDoor, *slots: int, fault: InjectedFault | None = None) -> Door:
    """A door before one group per number of slots, of which the first has the fault."""
    groups = tuple(GroupEntry(app=f"app-{number}", concurrency=many) for number, many in enumerate(slots))
    engines = [
        FakeEngine(model="tiny", pace=SLOW, token="internal-token", fault=None if number else fault)
        for number, _ in enumerate(slots)
    ]
    entry = ModelEntry(name="tiny", groups=groups, deployment="engine", state="ready")
    return await open_door(engines=engines, models=[entry])


def held(door: Door) -> list[int]:
    return [door.gateway.proxy.observed.held(target.app) for target in door.picker.targets]


async def test_many_at_once_are_shared_by_slots(open_door: OpenDoor) -> None:
    door = await house(open_door, 2, 6)
    answers = await asyncio.gather(*(door.post(stream=True) for _ in range(32)))
    assert all(status == 200 for status, _, _ in answers)
    assert [len(engine.requests) for engine in door.engines] == [8, 24]
    assert held(door) == [0, 0]


async def test_of_requests_that_come_together_each_counts_before_its_engine_is_found(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = await house(open_door, 4, 4)
    pick, gate = door.picker.pick, asyncio.Barrier(8)

    async def together(*args: object, **named: object) -> EngineEndpoint | None:
        await gate.wait()
        return await pick(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(door.picker, "pick", together)
    await asyncio.gather(*(door.post() for _ in range(8)))
    assert [len(engine.requests) for engine in door.engines] == [4, 4]


async def test_a_group_that_fails_at_once_does_not_draw_all_requests(open_door: OpenDoor) -> None:
    door = await house(open_door, 4, 4, fault=InjectedFault(kind="status", status=503))
    for _ in range(6):
        assert (await door.post())[0] == 200
    assert len(door.engines[0].requests) == 1
    assert held(door) == [0, 0]


async def test_a_group_that_has_no_engine_is_passed_over_and_then_asked_last(open_door: OpenDoor) -> None:
    door = await house(open_door, 4, 4)
    gone = door.picker.targets.pop(0)
    for _ in range(3):
        assert (await door.post())[0] == 200
    door.picker.targets.append(gone)
    assert (await door.post())[0] == 200
    assert [len(engine.requests) for engine in door.engines] == [0, 4]


@pytest.mark.parametrize("kind", ["die", "drop", "status"])
async def test_nothing_stays_in_hand_whatever_becomes_of_requests(open_door: OpenDoor, kind: str) -> None:
    door = await house(open_door, 4, fault=InjectedFault.model_validate({"kind": kind, "status": 503}))
    status, _, _ = await door.post()
    assert status == 503
    assert held(door) == [0]


async def test_a_client_that_leaves_leaves_nothing_in_hand(open_door: OpenDoor) -> None:
    door = await house(open_door, 4)
    async with door.http.post(door.url + "/v1/completions", json=door.body(stream=True, max_tokens=9999)):
        assert held(door) == [1]
    await door.gateway.drain(5)
    assert held(door) == [0]


async def test_a_request_without_any_group_is_told_so(open_door: OpenDoor) -> None:
    entry = ModelEntry(
        name="tiny", groups=(GroupEntry(app="app-0", ready=False),), deployment="engine", state="ready"
    )
    door = await open_door(models=[entry])
    status, _, body = await door.post()
    assert (status, json.loads(body)["error"]["code"]) == (503, "no_engine")
