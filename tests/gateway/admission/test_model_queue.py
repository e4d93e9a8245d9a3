"""Queues in front of groups: the order of those that wait, limits, deadlines, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from sparkfleet.engines.fake import FakeEngine, Pace
from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.admission import slot as slot_module
from sparkfleet.gateway.admission.model_queue import ModelQueues, QueuedSlot
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.model_errors import not_ready
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.routing_table import GroupEntry, GroupSpeed, KeyLimits, ModelEntry, RoutingTable

if TYPE_CHECKING:
    from conftest import Door, OpenDoor

NOTHING = Requirements()
ONE = GroupEntry(app="one", concurrency=1)
SEES = GroupEntry(app="sees", concurrency=1, vision=True)


class House:
    """Queues, and requests that wait in them."""

    def __init__(self, *groups: GroupEntry, **limits: Any) -> None:
        self.model = ModelEntry(name="tiny", groups=groups, deployment="engine", state="ready")
        self.observed = ObservedGroups()
        self.queues = ModelQueues(**limits)
        self.observed.on_end = self.queues.pump
        self.done: list[str] = []

    def choose(
        self, key: str, *apps: str, needs: Requirements = NOTHING, **more: Any
    ) -> Callable[[], CandidateGroups]:
        groups = tuple(group for group in self.model.groups if not apps or group.app in apps)
        return lambda: CandidateGroups(self.model, groups, needs, self.observed, key, **more)

    async def enter(self, key: str, *apps: str, **more: Any) -> QueuedSlot:
        slot = await self.queues.enter(self.choose(key, *apps, **more))
        self.done.append(key)
        return slot

    def start(self, key: str, *apps: str, **more: Any) -> asyncio.Task[QueuedSlot]:
        return asyncio.create_task(self.enter(key, *apps, **more))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_free_slot_is_taken_at_once_and_a_busy_one_is_waited_for() -> None:
    house = House(ONE)
    first = await house.enter("a")
    second = house.start("b")
    await settle()
    assert (house.done, house.queues.waiting("tiny"), house.observed.held("one")) == (["a"], 1, 1)
    first.close()
    (await second).close()
    assert (house.queues.waiting("tiny"), house.observed.held("one")) == (0, 0)


async def test_interactive_requests_pass_batch_ones_and_keys_take_turns() -> None:
    house = House(ONE.model_copy(update={"concurrency": 2}))
    held = [await house.enter("x"), await house.enter("x")]
    waiting = [house.start("night", priority="batch")]
    await settle()
    waiting += [house.start("a") for _ in range(3)]
    await settle()
    waiting.append(house.start("b"))
    await settle()
    house.done.clear()
    for slot in held:
        slot.close()
        await settle()
    assert house.done == ["a", "b"]  # although `a` asked three times before `b`
    for number in range(5):
        (await waiting[[1, 4, 2, 3, 0][number]]).close()
        await settle()
    assert house.done == ["a", "b", "a", "a", "night"]


async def test_a_request_that_needs_another_group_holds_up_nobody() -> None:
    house = House(ONE, SEES)
    seeing, plain = await house.enter("a", "sees"), await house.enter("b", "one")
    blocked, next_one = house.start("c", "sees"), house.start("d", "one")
    await settle()
    plain.close()
    await settle()
    assert house.done == ["a", "b", "d"]
    seeing.close()
    (await blocked).close()
    (await next_one).close()


async def test_of_those_that_wait_some_go_to_the_slower_group_that_is_idle() -> None:
    """Each of them counts those before it: the quick group alone would have kept all."""
    quick = GroupSpeed(prefill_tps=4000, alone_tps=40, together_tps=80, concurrency=4)
    slow = GroupSpeed(prefill_tps=2000, alone_tps=12, together_tps=24, concurrency=4)
    house = House(
        GroupEntry(app="quick", concurrency=4, speed=quick), GroupEntry(app="slow", concurrency=4, speed=slow)
    )
    asking = [house.start("a") for _ in range(4)]
    await settle()
    assert (house.observed.held("quick"), house.observed.held("slow")) == (4, 0)
    asking += [house.start("a") for _ in range(8)]
    await settle()
    assert house.observed.held("slow") > 0
    assert house.queues.waiting("tiny") > 0, "it is not worth it for the first of them"
    while asking:  # all are served in the end
        ended = [task for task in asking if task.done()]
        assert ended
        for task in ended:
            (await task).close()
            asking.remove(task)
        await settle()


async def test_a_full_queue_says_when_to_come_back() -> None:
    house = House(ONE, waiting=2)
    slot = await house.enter("a")
    waiting = [house.start("a"), house.start("a")]
    await settle()
    with pytest.raises(ApiError, match="2 requests wait") as caught:
        await house.enter("a")
    assert caught.value.status == 503
    # three requests of 256 tokens at 20 tok/s, one after the other, of which the busy slot halves the speed
    assert 30 <= int(dict(caught.value.headers)[b"retry-after"]) <= 90
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    slot.close()
    assert house.queues.waiting("tiny") == 0
    (await house.enter("a")).close()


async def test_the_deadline_ends_the_wait() -> None:
    house = House(ONE, longest_s=0.02)
    slot = await house.enter("a")
    with pytest.raises(ApiError, match=r"within 0\.02 s") as caught:
        await house.enter("b")
    assert (caught.value.status, caught.value.code) == (503, "queue_timeout")
    slot.close()
    assert house.observed.held("one") == 0
    (await house.enter("b")).close()


async def test_a_client_that_leaves_gives_its_slot_to_the_next() -> None:
    house = House(ONE)
    slot = await house.enter("a")
    leaving, staying = house.start("b"), house.start("c")
    await settle()
    slot.close()  # grants it to `b`, which has not run yet
    leaving.cancel()
    (await staying).close()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert house.observed.held("one") == 0
    (await house.enter("d")).close()
    (await house.enter("b")).close()


async def test_a_changed_table_is_seen_by_those_that_wait() -> None:
    house = House(ONE)
    slot = await house.enter("a")
    waiting = house.start("b")
    await settle()
    house.model = house.model.model_copy(update={"groups": (ONE, GroupEntry(app="two", concurrency=1))})

    async def enter() -> QueuedSlot:
        return await house.queues.enter(house.choose("c"))

    later = asyncio.create_task(enter())
    await settle()
    house.queues.refresh()
    moved = await later
    assert house.observed.held("two") == 1

    def gone() -> CandidateGroups:
        raise not_ready(house.model, 0.0)

    for waiter in house.queues._waiting["tiny"]:
        waiter.choose = gone
    house.queues.refresh()
    with pytest.raises(ApiError) as caught:
        await waiting
    assert caught.value.code == "model_not_ready"
    moved.close()
    slot.close()
    assert house.queues.waiting("tiny") == 0


async def test_a_group_that_is_new_in_the_table_is_taken_at_once_by_one_that_waits() -> None:
    house = House(ONE)
    held = await house.enter("a")

    def choose() -> CandidateGroups:
        return house.choose("b")()

    waiting = asyncio.create_task(house.queues.enter(choose))
    await settle()
    house.model = house.model.model_copy(update={"groups": (ONE, GroupEntry(app="two", concurrency=1))})
    house.queues.refresh()
    await settle()
    assert house.observed.held("two") == 1, "although no request has ended"
    (await waiting).close()
    held.close()


async def test_a_first_token_lets_those_that_wait_choose_again() -> None:
    """A prompt of 100 s was ahead on the idle group; once it is read, that group is the best, although no request ended."""
    speed = GroupSpeed(prefill_tps=1000, alone_tps=20, together_tps=60, concurrency=4)
    full, reads = (
        GroupEntry(app=app, concurrency=slots, speed=speed) for app, slots in (("full", 1), ("reads", 4))
    )
    house = House(full, reads)
    held = await house.enter("a", "full")
    held.note_answer(is_stream=True)
    long = await house.enter("b", "reads", needs=Requirements(tokens=100_200, prompt_tokens=100_000))
    waiting = house.start("c", needs=Requirements(tokens=200, prompt_tokens=100))
    await settle()
    assert not waiting.done()
    long.note_answer(is_stream=True)
    await settle()
    assert waiting.done()
    assert house.observed.held("reads") == 2
    for slot in (held, long, await waiting):
        slot.close()


async def test_any_number_that_waits_for_one_group_hides_none_that_finds_its_own_free() -> None:
    house = House(ONE, SEES)
    seeing, plain = await house.enter("a", "sees"), await house.enter("b", "one")
    blocked = [house.start("c", "sees") for _ in range(70)]
    await settle()
    next_one = house.start("d", "one")
    plain.close()
    await settle()
    assert next_one.done()
    for task in blocked:
        task.cancel()
    for slot in (seeing, await next_one):
        slot.close()


async def test_the_prompts_of_those_before_it_are_read_before_its_own() -> None:
    """Each is read for 10 s: the fifth would wait for 40 s for the quick group, and has its first token sooner elsewhere."""
    quick = GroupSpeed(prefill_tps=4000, alone_tps=40, together_tps=120, concurrency=4)
    slow = GroupSpeed(prefill_tps=1000, alone_tps=20, together_tps=60, concurrency=4)
    house = House(
        GroupEntry(app="quick", concurrency=4, speed=quick), GroupEntry(app="slow", concurrency=4, speed=slow)
    )
    held = [await house.enter("a", "quick") for _ in range(4)]
    for slot in held:
        slot.note_answer(is_stream=True)
    needs = Requirements(tokens=40_100, prompt_tokens=40_000)
    waiting = []
    while not house.observed.held("slow"):
        waiting.append(house.start("b", needs=needs))
        await settle()
    assert len(waiting) <= 5
    for task in waiting:
        task.cancel()
    await settle()


async def test_an_unusually_long_answer_is_no_slow_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its forecast was for answers of the usual length at that moment: that is the length to compare it with."""
    now = [1.0]
    monkeypatch.setattr(slot_module, "perf_counter", lambda: now[0])
    speed = GroupSpeed(prefill_tps=4000, alone_tps=40, together_tps=320, concurrency=8)
    house = House(GroupEntry(app="one", concurrency=8, speed=speed))
    slots = [await house.enter("a") for _ in range(8)]
    for slot in slots:
        slot.note_answer(is_stream=True)
    now[0] += 2000 / 40
    for slot in slots:
        slot.close()
        slot.note_end(2000, is_stream=True)
    assert house.observed.learned.answer_tokens("tiny", 0) > 1000
    assert house.observed.learned.factors("one")[1] == pytest.approx(1.0, rel=0.05)


async def test_full_groups_cost_a_request_that_waits_no_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1,000 that wait for 16 groups each arrival made 64 forecasts of each: no stream moved for 2.4 s."""
    house = House(ONE, SEES)
    held = [await house.enter("a", "one"), await house.enter("a", "sees")]
    made: list[int] = []
    forecasts = CandidateGroups.forecasts
    monkeypatch.setattr(CandidateGroups, "forecasts", lambda *args: made.append(1) or forecasts(*args))
    waiting = [house.start("b") for _ in range(100)]
    await settle()
    assert len(made) <= 1, "for the first, which found no queue"
    for task in waiting:
        task.cancel()
    for slot in held:
        slot.close()


async def test_slots_that_are_not_known_are_never_waited_for() -> None:
    house = House(GroupEntry(app="one"))
    slots = [await house.enter("a") for _ in range(100)]
    for slot in slots:
        slot.close()
        slot.close()
    assert house.observed.held("one") == 0


# Over sockets


async def test_the_outlook_is_that_of_a_request_that_comes_now() -> None:
    """Two wait for one slot, each request takes `_retry_after`'s mean: the third would wait for three of them."""
    house = House(ONE)
    assert house.queues.outlook("tiny") == (0, 0)
    first = await house.enter("a")
    assert house.queues.outlook("tiny") == (0, 0)
    waiting = [house.start("b"), house.start("c")]
    await settle()
    (forecast,) = house.choose("d")().forecasts()
    seconds = max(1, math.ceil(3 * (forecast.prefill_s + forecast.decode_s)))
    assert house.queues.outlook("tiny") == (2, seconds)
    first.close()
    for task in waiting:
        (await task).close()
    assert house.queues.outlook("tiny") == (0, 0)


SLOW = Pace(ttft_s=0.03, itl_s=0.002, tokens=5)


async def small(open_door: OpenDoor, *, slots: int = 1, pace: Pace = SLOW, **options: Any) -> Door:
    groups = (GroupEntry(app="app-0", concurrency=slots, context=4096),)
    entry = ModelEntry(name="tiny", groups=groups, deployment="engine", state="ready")
    return await open_door(
        engines=[FakeEngine(model="tiny", pace=pace, token="internal-token")], models=[entry], **options
    )


async def test_an_engine_never_has_more_than_its_slots_and_all_are_served(open_door: OpenDoor) -> None:
    door = await small(open_door, slots=3)
    posting = [asyncio.create_task(door.post(stream=True)) for _ in range(20)]
    most = 0
    while not all(task.done() for task in posting):
        most = max(most, door.engine.running)
        await asyncio.sleep(0.002)
    assert all(task.result()[0] == 200 for task in posting)
    assert most == 3


async def test_a_batch_key_and_a_batch_request_wait(open_door: OpenDoor) -> None:
    text, entry = generate("night", KeyLimits(priority="batch"))
    door = await small(open_door, pace=Pace(ttft_s=0.5, itl_s=0.002, tokens=5), extra_keys=[entry])
    order: list[str] = []

    async def post(name: str, **headers: str) -> None:
        body = door.body(stream=True)
        fields = {"authorization": f"Bearer {door.key}", **headers}
        async with aiohttp.request(
            "POST", door.url + "/v1/chat/completions", json=body, headers=fields
        ) as answer:
            assert answer.status == 200
            await answer.read()
        order.append(name)

    tasks = [asyncio.create_task(post("first"))]
    await door.engine.until(lambda engine: engine.running == 1)
    tasks.append(asyncio.create_task(post("key", authorization=f"Bearer {text}")))
    tasks.append(asyncio.create_task(post("header", **{"x-sparkfleet-priority": "batch"})))
    while door.gateway.proxy.queues.waiting("tiny") < 2:
        await asyncio.sleep(0.001)
    tasks.append(asyncio.create_task(post("person")))
    await asyncio.gather(*tasks)
    assert order[:2] == ["first", "person"]
    assert all("x-sparkfleet-priority" not in str(request) for request in door.engine.requests)


async def test_a_full_queue_is_a_503_with_retry_after(open_door: OpenDoor) -> None:
    door = await small(open_door, pace=Pace(ttft_s=3600), queues=ModelQueues(waiting=1))
    tasks = [asyncio.create_task(door.post())]
    await door.engine.until(lambda engine: engine.running == 1)
    tasks.append(asyncio.create_task(door.post()))
    while not door.gateway.proxy.queues.waiting("tiny"):
        await asyncio.sleep(0.001)
    status, headers, body = await door.post()
    assert (status, json.loads(body)["error"]["code"]) == (503, "queue_full")
    assert int(headers["retry-after"]) >= 1
    for task in tasks:
        task.cancel()
    async with asyncio.timeout(5):
        await door.gateway.drain(5)
    assert (door.gateway.proxy.queues.waiting("tiny"), door.gateway.proxy.observed.held("app-0")) == (0, 0)


async def test_a_waiting_request_sees_its_model_go(open_door: OpenDoor) -> None:
    door = await small(open_door, pace=Pace(ttft_s=3600))
    first = asyncio.create_task(door.post())
    await door.engine.until(lambda engine: engine.running == 1)
    waiting = asyncio.create_task(door.post())
    while not door.gateway.proxy.queues.waiting("tiny"):
        await asyncio.sleep(0.001)
    door.gateway.table = RoutingTable(version=2, keys=door.gateway.table.keys)
    status, _, body = await waiting
    assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
    first.cancel()


# The reason for a group


async def explained(door: Door, value: str, **body: Any) -> tuple[Any, dict[str, Any]]:
    headers = {"x-sparkfleet-explain": value}
    async with door.http.post(
        door.url + "/v1/chat/completions", json=door.body(**body), headers=headers
    ) as answer:
        return answer.headers, await answer.json()


async def test_an_answer_says_why_it_came_from_its_group(open_door: OpenDoor) -> None:
    door = await small(open_door)
    headers, _ = await explained(door, "1")
    why = json.loads(headers["x-sparkfleet-explain"])
    assert (why["group"], why["why"]) == ("app-0", "the only group that can serve it")
    assert why["groups"][0]["finish_s"] > 0
    _, headers, _ = await door.post()
    assert "x-sparkfleet-explain" not in headers


async def test_the_reason_alone_asks_no_engine(open_door: OpenDoor) -> None:
    groups = (
        GroupEntry(app="app-0", concurrency=4, vision=False),
        GroupEntry(app="app-1", concurrency=4, vision=True),
        GroupEntry(app="app-2", ready=False, vision=True),
    )
    door = await open_door(
        models=[ModelEntry(name="tiny", groups=groups, deployment="engine", state="ready")]
    )
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    _, why = await explained(door, "only", messages=[{"role": "user", "content": [image]}])
    assert why["group"] == "app-1"
    assert why["left_out"] == {"app-0": "takes no vision", "app-2": "is not ready"}
    assert not door.engine.requests
    assert door.gateway.proxy.observed.held("app-1") == 0


async def test_a_prompt_that_fits_nowhere_is_told_the_largest_context(open_door: OpenDoor) -> None:
    door = await small(open_door)
    status, _, body = await door.post(messages=[{"role": "user", "content": "word " * 20_000}])
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert 'maximum context length is 4096 tokens ("tiny" on app-0)' in error["message"]
    assert not door.engine.requests
    assert (await door.post(messages=[{"role": "user", "content": "word " * 3000}]))[0] == 200


async def test_speeds_are_learned_from_streams(open_door: OpenDoor) -> None:
    door = await small(open_door, pace=Pace(ttft_s=0.01, itl_s=0.001, tokens=40))
    for _ in range(3):
        assert (await door.post(stream=True, messages=[{"role": "user", "content": "x" * 9000}]))[0] == 200
    learned = door.gateway.proxy.observed.learned
    assert learned.factors("app-0")[1] < 0.9  # 20 tok/s were assumed, 1000 seen
    assert learned.factors("app-0")[0] < 0.9
    assert learned.answer_tokens("tiny", 0) < 256
    assert door.gateway.proxy.observed.pending("app-0") == 0


async def test_requests_beyond_the_shares_wait_if_a_group_is_lost_and_none_is_refused() -> None:
    """Each replica is sized for its share: what the lost one had goes to the end of the others' queue."""
    lost = GroupEntry(app="lost", concurrency=8)
    house = House(*(GroupEntry(app=f"stays{number}", concurrency=8) for number in range(3)), lost)
    held = {number: await house.enter("x") for number in range(32)}
    assert house.queues.waiting("tiny") == 0
    cut = [number for number, slot in held.items() if slot.found[0].group.app == "lost"]
    assert len(cut) == 8
    house.model = house.model.model_copy(update={"groups": house.model.groups[:3]})
    house.queues.refresh()
    again = []
    for number in cut:
        held.pop(number).close()
        again.append(house.start("x"))
    await settle()
    assert house.queues.waiting("tiny") == 8
    for slot in held.values():
        slot.close()
    await settle()
    assert [task.result().found[0].group.app != "lost" for task in again] == [True] * 8
    assert house.queues.waiting("tiny") == 0
