"""Limits of keys, under a clock of their own and over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from clocks import Clock
from gateway_values import CHAT

from sparkfleet.engines.fake import FakeEngine, Pace
from sparkfleet.gateway.access.keys import authenticate, digest, expired_key, generate, rotate
from sparkfleet.gateway.admission.key_limiter import KeyLimiter
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.routing_table import KeyEntry, KeyLimits

if TYPE_CHECKING:
    from conftest import Door, OpenDoor


def key(**limits: Any) -> KeyEntry:
    return KeyEntry(id="key-1", name="ci", sha256="0" * 64, limits=KeyLimits(**limits))


def retry_after(error: ApiError) -> int:
    assert error.status == 429
    return int(dict(error.headers)[b"retry-after"])


def test_requests_per_minute_are_those_of_any_minute_and_retry_after_is_exact() -> None:
    clock = Clock()
    limiter, entry = KeyLimiter(clock), key(requests_per_minute=2)
    for at in (1000.0, 1020.5):
        clock.now = at
        limiter.admit(entry).close()
    clock.now = 1030.0
    with pytest.raises(ApiError, match="2 requests per minute") as caught:
        limiter.admit(entry)
    clock.now += retry_after(caught.value) - 1
    with pytest.raises(ApiError):
        limiter.admit(entry)
    clock.now += 1
    limiter.admit(entry).close()
    with pytest.raises(ApiError) as caught:
        limiter.admit(entry)
    assert clock.now + retry_after(caught.value) >= 1080.5


def test_refused_requests_do_not_count() -> None:
    clock = Clock()
    limiter, entry = KeyLimiter(clock), key(requests_per_minute=1)
    limiter.admit(entry).close()
    for _ in range(100):
        with pytest.raises(ApiError):
            limiter.admit(entry)
    clock.now += 60
    limiter.admit(entry)


def test_tokens_are_paid_for_by_waiting() -> None:
    clock = Clock()
    limiter, entry = KeyLimiter(clock), key(tokens_per_minute=100)
    first = limiter.admit(entry)
    first.charge(30)  # the prompt, by its length
    clock.now += 10
    first.charge(250)  # what the engine counted
    first.close()
    with pytest.raises(ApiError, match="100 tokens per minute") as caught:
        limiter.admit(entry)
    assert retry_after(caught.value) == 60
    clock.now += 59
    with pytest.raises(ApiError) as caught:
        limiter.admit(entry)
    assert retry_after(caught.value) == 1
    clock.now += 1
    again = limiter.admit(entry)
    again.charge(120)
    again.charge(20)  # an overestimate gives the rest back
    limiter.admit(entry)


def test_tokens_that_are_given_back_are_not_given_twice() -> None:
    """A prompt is counted by its length, and less once the engine has counted it, or for an answer that failed."""
    clock = Clock()
    limiter, entry = KeyLimiter(clock), key(tokens_per_minute=100)
    long = limiter.admit(entry)
    long.charge(90)
    clock.now += 50
    long.charge(20)
    long.close()
    clock.now += 15  # its first charge has left the window
    another = limiter.admit(entry)
    another.charge(100)
    another.close()
    with pytest.raises(ApiError, match="100 tokens per minute"):
        limiter.admit(entry)


def test_requests_at_once_and_an_honest_guess() -> None:
    clock = Clock()
    limiter, entry = KeyLimiter(clock), key(concurrent=2)
    held = [limiter.admit(entry) for _ in range(2)]
    with pytest.raises(ApiError, match="2 requests at once"):
        limiter.admit(entry)
    clock.now += 40
    for one in held:
        one.close()
        one.close()
    held = [limiter.admit(entry) for _ in range(2)]
    with pytest.raises(ApiError) as caught:
        limiter.admit(entry)
    assert 5 <= retry_after(caught.value) <= 20
    assert len(held) == 2


def test_keys_do_not_share_limits_and_revoked_ones_are_forgotten() -> None:
    limiter, one = KeyLimiter(Clock()), key(requests_per_minute=1)
    other = one.model_copy(update={"id": "key-2"})
    limiter.admit(one).close()
    limiter.admit(other).close()
    limiter.keep(["key-1"])
    limiter.admit(other)
    with pytest.raises(ApiError):
        limiter.admit(one)


# Over sockets


async def limited(
    open_door: OpenDoor, pace: Pace | None = None, **limits: Any
) -> tuple[Door, dict[str, str]]:
    text, entry = generate("ci", KeyLimits(**limits))
    door = await open_door(engines=[FakeEngine(model="tiny", pace=pace)], extra_keys=[entry])
    return door, {"authorization": f"Bearer {text}"}


async def post(door: Door, headers: dict[str, str], path: str = CHAT) -> tuple[int, Any, Any]:
    async with aiohttp.request("POST", door.url + path, json=door.body(path), headers=headers) as answer:
        return answer.status, answer.headers, json.loads(await answer.read())


async def test_a_key_over_its_limit_gets_429_in_the_form_of_its_api_and_others_go_on(
    open_door: OpenDoor,
) -> None:
    door, headers = await limited(open_door, requests_per_minute=1)
    assert (await post(door, headers))[0] == 200
    status, shown, body = await post(door, headers)
    assert (status, body["error"]["type"], body["error"]["code"]) == (
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
    )
    assert 58 <= int(shown["retry-after"]) <= 60
    status, _, body = await post(door, headers, "/v1/messages")
    assert (status, body["type"], body["error"]["type"]) == (429, "error", "rate_limit_error")
    assert (await door.post())[0] == 200
    assert door.value("sparkfleet_errors_total", model="", kind="limited") == 2


async def test_tokens_of_an_answer_count(open_door: OpenDoor) -> None:
    door, headers = await limited(open_door, Pace(tokens=50), tokens_per_minute=40)
    assert (await post(door, headers))[0] == 200
    assert (await post(door, headers))[0] == 429


async def test_requests_that_an_engine_refuses_cost_no_tokens(open_door: OpenDoor) -> None:
    text, entry = generate("ci", KeyLimits(tokens_per_minute=1))
    door = await open_door(engines=[FakeEngine(model="other")], extra_keys=[entry])
    headers = {"authorization": f"Bearer {text}"}
    assert [(await post(door, headers))[0] for _ in range(3)] == [404, 404, 404]


async def test_requests_at_once_count_until_their_end(open_door: OpenDoor) -> None:
    door, headers = await limited(open_door, Pace(ttft_s=3600), concurrent=1)
    waiting = asyncio.create_task(post(door, headers))
    await door.engine.until(lambda engine: engine.running == 1)
    assert (await post(door, headers))[0] == 429
    waiting.cancel()
    async with asyncio.timeout(5):
        await door.gateway.drain(5)
    door.gateway._draining = False
    waiting = asyncio.create_task(post(door, headers))
    await door.engine.until(lambda engine: engine.running == 1)
    waiting.cancel()


async def test_a_key_expires(open_door: OpenDoor) -> None:
    door, headers = await limited(open_door, expires=time.time() - 1)
    status, _, body = await post(door, headers)
    assert (status, body["error"]["code"]) == (401, "expired_api_key")
    assert '"ci" has expired' in body["error"]["message"]
    fresh, headers = await limited(open_door, expires=time.time() + 60)
    assert (await post(fresh, headers))[0] == 200


def test_a_rotated_key_has_two_texts_until_its_grace_ends() -> None:
    old, entry = generate("ci", KeyLimits(concurrent=3))
    new, rotated = rotate(entry, until=100.0, now=0.0)
    assert (rotated.id, rotated.name, rotated.limits) == (entry.id, "ci", entry.limits)
    assert rotated.sha256 == digest(new.encode())

    def opens(text: str, now: float) -> bool:
        return authenticate([(b"x-api-key", text.encode())], [rotated], now) is rotated

    assert (opens(old, 99.0), opens(old, 100.0), opens(new, 99.0), opens(new, 1e9)) == (
        True,
        False,
        True,
        True,
    )


def test_each_text_is_accepted_until_the_end_of_its_own_grace() -> None:
    """A second rotation refused the first text, whose clients had been given a day."""
    first, entry = generate("ci")
    second, entry = rotate(entry, until=100.0, now=0.0)
    third, entry = rotate(entry, until=50.0, now=10.0)

    def accepted(now: float) -> list[bool]:
        texts = (first, second, third)
        return [authenticate([(b"x-api-key", one.encode())], [entry], now) is entry for one in texts]

    assert accepted(49.0) == [True, True, True]
    assert accepted(99.0) == [True, False, True]
    assert accepted(100.0) == [False, False, True]
    assert len(rotate(entry, until=200.0, now=60.0)[1].formers) == 2, "what has ended is dropped"
    _, entry = rotate(entry, until=20.0, now=20.0)
    assert accepted(20.0) == [False, False, False], "a rotation without a grace ends them all"


def test_only_a_key_that_exists_is_called_expired() -> None:
    text, entry = generate("ci", KeyLimits(expires=time.time() - 1))
    assert expired_key([(b"x-api-key", text.encode())], [entry]) is entry
    assert expired_key([(b"x-api-key", b"sk-sf-wrong")], [entry]) is None
    assert authenticate([(b"x-api-key", text.encode())], [entry]) is None
