"""The usage of a stream is asked for in the client's place, and the client gets the stream that it would have got."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sparkfleet.engines.fake import FakeEngine, Pace
from sparkfleet.gateway.body.scan_program import scan
from sparkfleet.gateway.engine.usage_event import UsageHider
from sparkfleet.gateway.request.usage_option import usage_option, value_span
from sparkfleet.gateway.routing_table import ExternalAddress, GroupEntry, ModelEntry

if TYPE_CHECKING:
    from conftest import OpenDoor

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USAGE = b'{"id":"a","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
FIRST, LAST = (
    b'{"choices":[{"text":"a","finish_reason":null}]}',
    b'{"choices":[{"text":"b","finish_reason":"stop"}]}',
)


def stream(*events: bytes, end: bytes = b"\n\n") -> bytes:
    return b"".join(b"data: " + one + end for one in events)


def outside(url: str) -> ModelEntry:
    address = ExternalAddress(url=url, model="tiny")
    return ModelEntry(
        name="tiny",
        deployment="engine",
        state="starting",
        groups=(GroupEntry(app="app-0", ready=False),),
        external=(GroupEntry(app="external/tiny/0", external=address),),
    )


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}]
)
@pytest.mark.parametrize("external", [True, False], ids=["outside", "group"])
async def test_a_stream_is_counted_whose_client_does_not_ask_and_looks_as_without(
    open_door: OpenDoor, path: str, options: dict[str, Any], external: bool
) -> None:
    pace = Pace(tokens=10)
    async with FakeEngine(model="tiny", pace=pace) as other:
        door = await open_door(pace=pace, models=[outside(other.url)] if external else [])
        if not external:
            door = await open_door(pace=pace)
        engine = other if external else door.engine
        status, headers, body = await door.post(path, stream=True, **options)
        assert (status, "content-length" in headers) == (200, False)
        assert json.loads(engine.bodies[0])["stream_options"]["include_usage"] is True
    assert b"usage" not in body
    assert body.endswith(b"data: [DONE]\n\n")
    assert body.count(b"data: ") == 10 + (2 if path == CHAT else 0) + 1
    (row,) = door.gateway.usage.totals()
    assert (row.requests, row.uncounted, row.input, row.output) == (1, 0, 3, 10)
    assert door.value("sparkfleet_tokens_total", model="tiny", kind="output") == 10


@pytest.mark.parametrize("external", [True, False], ids=["outside", "group"])
async def test_a_client_that_asks_gets_it_and_its_request_is_unchanged(
    open_door: OpenDoor, external: bool
) -> None:
    async with FakeEngine(model="tiny") as other:
        door = await open_door(models=[outside(other.url)]) if external else await open_door()
        options = {"include_usage": True, "continuous_usage_stats": True}
        _, _, body = await door.post(stream=True, stream_options=options)
        sent = json.loads((other if external else door.engine).bodies[0])
    assert body.count(b'"usage"') == 1
    assert sent == door.body(stream=True, stream_options=options)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_other_apis_have_it_anyway(open_door: OpenDoor, path: str) -> None:
    door = await open_door()
    await door.post(path, stream=True, input="a b c")
    assert b"stream_options" not in door.engine.bodies[0]
    (row,) = door.gateway.usage.totals()
    assert (row.uncounted, row.output) == (0, 16)


async def test_an_alias_is_replaced_beside_it(open_door: OpenDoor) -> None:
    model = ModelEntry(name="tiny", deployment="engine", state="ready", aliases=("gpt",))
    door = await open_door(models=[model])
    for asked in ({"stream_options": {"x": 1}, "model": "gpt"}, {"model": "gpt", "stream_options": None}):
        async with door.http.post(
            door.url + COMPLETIONS, json={"prompt": "a", "stream": True, **asked}
        ) as answer:
            assert answer.status == 200
        sent = json.loads(door.engine.bodies[-1])
        assert (sent["model"], sent["stream_options"]["include_usage"]) == ("tiny", True)


async def test_so_it_is_in_a_long_body_that_is_read_elsewhere(open_door: OpenDoor) -> None:
    model = ModelEntry(name="tiny", deployment="engine", state="ready", aliases=("gpt",))
    door = await open_door(models=[model])
    for first in (True, False):
        named = {"model": "gpt", "stream_options": {"include_usage": False}}
        long = {"prompt": "x " * 200_000}
        asked = {**named, **long, "stream": True} if first else {**long, "stream": True, **named}
        async with door.http.post(door.url + COMPLETIONS, json=asked) as answer:
            assert (answer.status, b"usage" in await answer.read()) == (200, False)
        sent = json.loads(door.engine.bodies[-1])
        assert (sent["model"], sent["stream_options"]) == ("tiny", {"include_usage": True})
    assert door.gateway.usage.totals()[0].uncounted == 0


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_wherever_a_stream_is_cut(end: bytes) -> None:
    whole, expected = stream(FIRST, LAST, USAGE, b"[DONE]", end=end), stream(FIRST, LAST, b"[DONE]", end=end)
    for place in range(len(whole)):
        hider = UsageHider()
        assert hider.feed(whole[:place]) + hider.feed(whole[place:]) + hider.rest() == expected


def test_no_event_waits_but_the_last_of_the_text() -> None:
    hider = UsageHider()
    assert hider.feed(stream(FIRST)) == stream(FIRST)
    assert hider.feed(stream(LAST)) == b""
    assert hider.feed(stream(USAGE)) == stream(LAST)
    assert hider.feed(stream(b"[DONE]")) == stream(b"[DONE]")


def test_a_stream_that_breaks_keeps_what_was_held_back() -> None:
    hider = UsageHider()
    assert hider.feed(stream(LAST) + b"data: {") == b""
    assert hider.rest() == stream(LAST) + b"data: {"
    assert hider.rest() == b""


def test_the_fingerprint_returns_to_the_chunk_from_which_vllm_moved_it() -> None:
    moved = USAGE[:-1] + b',"system_fingerprint":"vllm-0.32"}'
    back = LAST[:-1] + b',"system_fingerprint":"vllm-0.32"}'
    hider = UsageHider()
    assert hider.feed(stream(LAST, moved, b"[DONE]")) == stream(back, b"[DONE]")
    other = UsageHider()
    assert other.feed(stream(back, moved, b"[DONE]")) == stream(back, b"[DONE]"), "it has one"


@pytest.mark.parametrize("nulls", [True, False])
def test_null_is_taken_out_where_only_the_question_put_it_in(nulls: bool) -> None:
    given = b'{"choices":[{"text":"a"}], "usage": null}'
    passed = UsageHider(nulls=nulls).feed(stream(given))
    assert passed == stream(b'{"choices":[{"text":"a"}]}' if nulls else given)


def test_text_that_looks_like_a_usage_stays() -> None:
    text = json.dumps({"choices": [{"text": '"choices":[] "usage":{ "finish_reason":"stop"', "index": 0}]})
    hider = UsageHider(nulls=True)
    assert hider.feed(stream(text.encode())) == stream(text.encode())


def test_an_event_without_choices_or_usage_stays() -> None:
    filtered = b'{"choices":[],"prompt_filter_results":[]}'
    assert UsageHider().feed(stream(filtered)) == stream(filtered)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"stream": true}', {"include_usage": True}),
        ('\n {"stream": true, "stream_options" : null }', {"include_usage": True}),
        ('{"stream_options":{"a":{"b":[1,{}]}},"stream":true}', {"a": {"b": [1, {}]}, "include_usage": True}),
        ('{"a":{"stream_options":1},"stream":true,"stream_options":{}}', {"include_usage": True}),
        (
            '{"stream_options":{"a":1},"stream_options":{"b":2},"stream":true}',
            {"b": 2, "include_usage": True},
        ),
        ('{"x":"\\"stream_options\\":{","stream":true,"stream\\u005foptions":{}}', {"include_usage": True}),
    ],
)
def test_the_option_is_put_where_it_belongs(body: str, expected: dict[str, Any]) -> None:
    document, given = json.loads(body), body.encode()
    edit = usage_option(document, given)
    assert edit is not None
    after = given[: edit.start] + edit.text.encode() + given[edit.end :]
    assert json.loads(after) == {**document, "stream_options": expected}
    assert len(after) == len(given) + edit.growth
    assert (
        scan(b"application/json", json.dumps({"model": "m", **document}).encode()).target().usage is not None
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"stream": False},
        {"stream": 1},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": "all"},
    ],
)
def test_nothing_is_asked_for(body: dict[str, Any]) -> None:
    assert usage_option(body, json.dumps(body).encode()) is None


def test_values_of_any_kind_are_found() -> None:
    body = b'{"a": [1, {"b": 2}], "b" : -1.5e3 ,"c":"x,}","d":true}'
    found = {name: value_span(body, name) for name in ("a", "b", "c", "d", "e")}
    assert {name: span and body[slice(*span)] for name, span in found.items()} == {
        "a": b'[1, {"b": 2}]',
        "b": b"-1.5e3",
        "c": b'"x,}"',
        "d": b"true",
        "e": None,
    }
