"""Long bodies: read beside the event loop, with caps on their shape and on the bytes that are held."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from gateway_values import CHAT

from sparkfleet.engines.fake import FakeEngine, Pace
from sparkfleet.gateway.access.limits import RequestLimits
from sparkfleet.gateway.asgi import Fields
from sparkfleet.gateway.body import scanner as scanner_module
from sparkfleet.gateway.body.body_budget import BodyBudget, HeldBody
from sparkfleet.gateway.body.json_caps import MOST_DEPTH, MOST_VALUES, check_caps
from sparkfleet.gateway.body.request_body import PIECE_BYTES, RequestBody
from sparkfleet.gateway.body.scan_program import scan
from sparkfleet.gateway.body.scanner import INLINE_BYTES, BodyScanner
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.page.page_app import PageApp
from sparkfleet.gateway.request_parser import RequestTarget, parse_target
from sparkfleet.gateway.routing_table import ExternalAddress, GroupEntry, ModelEntry

if TYPE_CHECKING:
    from conftest import Door, OpenDoor

MIB = 1 << 20
LONG = "spark " * (INLINE_BYTES // 6 + 1)
IMAGE = {"type": "image_url", "image_url": {"url": "http://inside.example/a.png"}}


async def post(door: Door, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    async with door.http.post(door.url + CHAT, data=pieces(body), headers=headers) as answer:
        return answer.status, await answer.json(content_type=None)


async def pieces(body: bytes) -> Any:
    for start in range(0, len(body), 1 << 16):
        yield body[start : start + (1 << 16)]


async def longest_pause(until: asyncio.Task[Any]) -> float:
    """Seconds for which the event loop took no step."""
    longest, last = 0.0, perf_counter()
    while not until.done():
        await asyncio.sleep(0.001)
        now = perf_counter()
        longest, last = max(longest, now - last), now
    return longest


async def test_token_ids_without_number_hold_up_nobody(door: Door) -> None:
    body = b'{"model": "tiny", "input": [' + b"7," * (3 << 20) + b"7]}"
    posting = asyncio.create_task(post(door, body))
    assert await longest_pause(posting) < 0.5  # on the event loop it took seconds
    status, shown = await posting
    assert (status, shown["error"]["code"]) == (400, "too_complex")
    assert str(MOST_VALUES) in shown["error"]["message"]
    assert not door.engine.requests


async def test_a_long_body_arrives_unchanged_and_finds_its_model(door: Door) -> None:
    body = json.dumps(door.body(messages=[{"role": "user", "content": LONG}])).encode()
    assert (await post(door, body))[0] == 200
    assert door.engine.bodies == [body]
    status, shown = await post(door, body.replace(b'"tiny"', b'"huge"'))
    assert (status, shown["error"]["code"]) == (404, "model_not_found")


async def test_an_image_by_url_is_found_at_the_end_of_a_long_body(door: Door) -> None:
    parts = [{"type": "text", "text": LONG}, *[{"type": "text", "text": "x"}] * 30_000, IMAGE]
    status, shown = await post(
        door, json.dumps(door.body(messages=[{"role": "user", "content": parts}])).encode()
    )
    assert (status, shown["error"]["code"]) == (400, "media_not_allowed")
    assert "inside.example" in shown["error"]["message"]
    assert not door.engine.requests


# The event loop


@dataclass
class Handled:
    """Bytes that the event loop has handled at once; the processes beside it are not seen here."""

    parsed: list[int] = field(default_factory=list)
    joined: list[int] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> Handled:
    seen, whole, pieces_of = Handled(), RequestBody.whole, RequestBody.__iter__

    def parse(query: bytes, fields: Fields, body: bytes) -> RequestTarget:
        seen.parsed.append(len(body))
        return parse_target(query, fields, body)

    def join(body: RequestBody) -> bytes:
        seen.joined.append(body.size)
        return whole(body)

    def divide(body: RequestBody) -> Iterator[bytes]:
        for piece in pieces_of(body):
            seen.pieces.append(len(piece))
            yield piece

    monkeypatch.setattr(scanner_module, "parse_target", parse)
    monkeypatch.setattr(RequestBody, "whole", join)
    monkeypatch.setattr(RequestBody, "__iter__", divide)
    return seen


def form_of(model: str) -> tuple[bytes, str]:
    head = f'--b0\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'
    file = '--b0\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    return (head + file + "x" * MIB + "\r\n--b0--\r\n").encode(), "multipart/form-data; boundary=b0"


def long_chat(door: Door, **more: Any) -> tuple[bytes, str]:
    messages = [{"role": "user", "content": "x" * MIB}]
    return json.dumps(door.body(messages=messages, **more)).encode(), "application/json"


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {}),
        (CHAT, {"model": "alias"}),
        (CHAT, {"stream": True}),
        (CHAT, {"stream": True, "temperature": 0}),
        ("/v1/messages", {"system": "x-anthropic-billing-header: cc_version=2.1.39.c39; cch=56445;"}),
        ("/v1/responses", {"input": "x", "request_id": "resp_1"}),
        ("/v1/audio/transcriptions", {"model": "tiny"}),
        ("/v1/audio/transcriptions", {"model": "alias"}),
    ],
    ids=str,
)
async def test_no_long_body_is_parsed_or_joined_on_the_event_loop(
    open_door: OpenDoor, handled: Handled, path: str, more: dict[str, Any]
) -> None:
    """So no body delays another client by more than its pieces: `benchmarks/abuse.py` measures by how much."""
    outside = ExternalAddress(url="http://127.0.0.1:1/v1", model="foreign", when="busy")
    model = ModelEntry(
        name="tiny",
        deployment="engine",
        state="ready",
        replay=True,
        aliases=("alias",),
        external=(GroupEntry(app="outside", external=outside),),
    )
    page = PageApp(no_view)
    page.capture.begin(1)
    door = await open_door(models=[model], page=page)
    body, kind = form_of(more["model"]) if "audio" in path else long_chat(door, **more)
    async with door.http.post(door.url + path, data=pieces(body), headers={"content-type": kind}) as answer:
        assert answer.status == 200, await answer.text()
    assert handled.pieces
    assert max(handled.pieces) <= 2 * PIECE_BYTES
    assert (handled.parsed, handled.joined) == ([], [])
    assert (await door.post())[0] == 200
    assert 0 < max(handled.parsed) <= INLINE_BYTES, "a short one is"
    assert 0 < max(handled.joined) <= INLINE_BYTES


async def no_view() -> str:
    raise ConnectionError("there is no controller")


FAULTS = {
    "no json": b"{" + b" " * INLINE_BYTES,
    "no utf-8": b'{"model": "\xff' + b" " * INLINE_BYTES + b'"}',
    "no model": b"{}" + b" " * INLINE_BYTES,
    "two models": b'{"model": "a", "model": "b"}' + b" " * INLINE_BYTES,
    "an array": b"[]" + b" " * INLINE_BYTES,
}


@pytest.mark.parametrize("body", FAULTS.values(), ids=FAULTS)
async def test_a_long_body_has_the_same_fault_as_a_short_one(body: bytes) -> None:
    with pytest.raises(ApiError) as short:
        parse_target(b"", {}, body)
    reader = BodyScanner()
    try:
        with pytest.raises(ApiError) as long:
            await reader.parse(b"", {}, RequestBody(body), "key-1")
    finally:
        await reader.aclose()
    one, other = short.value, long.value
    assert one.body("openai") == other.body("openai")
    assert (one.status, one.kind) == (other.status, other.kind)


async def test_a_short_body_of_many_values_is_read_beside_the_loop(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise ApiError("read elsewhere", status=418, code="elsewhere")

    monkeypatch.setattr(BodyScanner, "_scan", refuse)
    body = b'{"model": "tiny", "input": [' + b"[]," * 20_000 + b"[]]}"
    assert (await post(door, body))[0] == 418
    assert (await door.post())[0] == 200


async def test_a_reader_that_dies_costs_one_request(door: Door) -> None:
    body = json.dumps(door.body(messages=[{"role": "user", "content": LONG}])).encode()
    assert (await post(door, body))[0] == 200
    (idle,) = door.gateway.proxy.scanner._idle
    idle.process.kill()
    await asyncio.to_thread(idle.process.wait)
    status, shown = await post(door, body)
    assert (status, shown["error"]["code"]) == (400, "too_complex")
    assert (await post(door, body))[0] == 200


async def test_an_idle_reader_ends(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = [], scanner_module._start

    async def noted() -> Any:
        started.append(await start())
        return started[-1]

    monkeypatch.setattr(scanner_module, "_start", noted)
    monkeypatch.setattr(scanner_module, "IDLE_S", 0.05)
    body = json.dumps(door.body(messages=[{"role": "user", "content": LONG}])).encode()
    assert (await post(door, body))[0] == 200
    (idle,) = started
    await asyncio.to_thread(idle.process.wait, 20)
    assert not door.gateway.proxy.scanner._idle


async def test_a_body_that_takes_too_long_to_read_ends_its_reader(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(door.body(messages=[{"role": "user", "content": LONG}])).encode()
    assert (await post(door, body))[0] == 200
    (idle,) = door.gateway.proxy.scanner._idle
    monkeypatch.setattr(scanner_module, "SCAN_S", 0.0)
    assert (await post(door, body))[1]["error"]["code"] == "too_complex"
    assert await asyncio.to_thread(idle.process.wait, 10) != 0
    assert not door.gateway.proxy.scanner._idle


async def test_a_key_has_one_reader_at_a_time() -> None:
    reader, running, most = BodyScanner(), 0, 0

    async def slow(*_: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return scan(b"", b'{"model": "a"}')

    reader._scan = slow  # type: ignore[method-assign]
    body = RequestBody(b" " * (INLINE_BYTES + 1))
    await asyncio.gather(*(reader.parse(b"", {}, body, "key-1") for _ in range(5)))
    assert most == 1
    await asyncio.gather(*(reader.parse(b"", {}, body, f"key-{number}") for number in range(5)))
    assert most == 2
    assert not reader._of_key


# Caps


def test_values_and_levels_have_caps() -> None:
    check_caps(b"[" + b"1," * (MOST_VALUES - 2) + b"1]")
    check_caps(b"[" * MOST_DEPTH + b"]" * MOST_DEPTH)
    check_caps(b'{"a": "' + b'[{,\\"' * 500_000 + b'"}')
    check_caps(b"[[],[]]" * 100_000)
    with pytest.raises(ApiError, match=f"more than {MOST_VALUES} values"):
        check_caps(b"[" + b"1," * MOST_VALUES + b"1]")
    with pytest.raises(ApiError, match=f"more than {MOST_DEPTH} levels"):
        check_caps(b'{"a":' * (MOST_DEPTH + 1))


def test_a_form_has_a_cap_on_its_parts_and_their_headers() -> None:
    headers = {b"content-type": b"multipart/form-data; boundary=b0"}
    part = b'--b0\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
    named = b'--b0\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n'
    assert parse_target(b"", headers, named + part * 127 + b"--b0--\r\n").model == "tiny"
    with pytest.raises(ApiError, match="more than 128 parts"):
        parse_target(b"", headers, named + part * 128 + b"--b0--\r\n")
    with pytest.raises(ApiError, match="header size"):
        parse_target(b"", headers, b"--b0\r\nX: " + b"x" * 9000 + b"\r\n\r\n\r\n" + named + b"--b0--\r\n")


def test_a_text_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("sparkfleet.gateway.body.scan_program.parse_target", full)
    with pytest.raises(ApiError, match="takes too much memory") as refused:
        scan(b"", b"{}").target()
    assert refused.value.code == "too_complex"


# Pieces and budget


def test_a_body_is_kept_in_pieces_however_it_arrives() -> None:
    whole = bytes(range(256)) * 4096
    for size in (1000, PIECE_BYTES, len(whole)):
        body = RequestBody()
        for start in range(0, len(whole), size):
            body.add(whole[start : start + size])
        assert body.size == len(whole)
        assert body.whole() == whole
        assert len(list(body)) <= len(whole) / PIECE_BYTES


def test_one_key_leaves_room_for_the_others() -> None:
    budget = BodyBudget(1000)
    one, other = HeldBody(budget, "a"), HeldBody(budget, "b")
    one.add(750)
    with pytest.raises(ApiError) as caught:
        one.add(1)
    assert (caught.value.status, dict(caught.value.headers)[b"retry-after"]) == (429, b"2")
    other.add(250)
    with pytest.raises(ApiError) as caught:
        HeldBody(budget, "c").announce(1)
    assert (caught.value.status, dict(caught.value.headers)[b"retry-after"]) == (503, b"2")
    one.close()
    one.close()
    assert budget.held == 250
    other.add(100)


async def test_bytes_are_held_until_an_engine_begins_to_answer(open_door: OpenDoor) -> None:
    door = await open_door(
        engines=[FakeEngine(model="tiny", pace=Pace(ttft_s=3600))],
        limits=RequestLimits(body_bytes=50_000),
        budget_bytes=60_000,
    )
    body = json.dumps(door.body(prompt="x" * 40_000)).encode()
    waiting = asyncio.create_task(door.post(prompt="x" * 40_000))
    await door.engine.until(lambda engine: engine.running == 1)
    assert door.gateway.proxy.bodies.held == len(body)
    status, shown = await post(door, body)
    assert (status, shown["error"]["code"]) == (429, "rate_limit_exceeded")
    waiting.cancel()
    async with asyncio.timeout(5):
        await door.gateway.drain(5)
    assert door.gateway.proxy.bodies.held == 0


async def test_a_stream_that_runs_holds_no_bytes(open_door: OpenDoor) -> None:
    door = await open_door(pace=Pace(itl_s=0.002, tokens=1_000_000), budget_bytes=60_000)
    body = door.body(stream=True, prompt="x" * 40_000)
    async with door.http.post(door.url + CHAT, json=body) as answer:
        await answer.content.readany()
        assert door.gateway.proxy.bodies.held == 0


async def test_a_compressed_body_is_refused(door: Door) -> None:
    status, shown = await post(door, b"\x1f\x8b", **{"content-encoding": "gzip"})
    assert (status, shown["error"]["code"]) == (415, "unsupported_encoding")
    async with aiohttp.request(
        "POST",
        door.url + CHAT,
        json=door.body(),
        headers={"content-encoding": "identity", "x-api-key": door.key},
    ) as answer:
        assert answer.status == 200
