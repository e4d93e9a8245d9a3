"""Further names of a model: they are found, and replaced by the name that the engine knows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from gateway_values import CHAT, model
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import SpecError
from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.body.model_span import model_span
from sparkfleet.gateway.body.request_body import PIECE_BYTES, RequestBody
from sparkfleet.gateway.body.scanner import INLINE_BYTES
from sparkfleet.gateway.routing_table import RoutingTable
from sparkfleet.specs.load import parse_deployment

if TYPE_CHECKING:
    from conftest import OpenDoor


@pytest.mark.parametrize(
    ("body", "replaced"),
    [
        (b'{"model": "gpt-4o", "messages": []}', b'{"model": "tiny", "messages": []}'),
        (b'{"messages": [{"model": "x"}], "a": {"model": 1} ,\n"model" :"gpt-4o"}', None),
        (b'{"mod\\u0065l": "gpt-4o"}', b'{"mod\\u0065l": "tiny"}'),
        (
            b'{"x": "\\"model\\": \\"no\\"", "model": "gpt\\u002d4o"}',
            b'{"x": "\\"model\\": \\"no\\"", "model": "tiny"}',
        ),
    ],
)
async def test_an_alias_is_replaced_and_nothing_else(
    open_door: OpenDoor, body: bytes, replaced: bytes | None
) -> None:
    door = await open_door(models=[model("tiny", aliases=("gpt-4o",))])
    async with door.http.post(door.url + CHAT, data=body) as answer:
        assert answer.status == 200
    assert door.engine.bodies == [replaced or body.replace(b'"gpt-4o"', b'"tiny"')]


async def test_an_alias_in_a_long_body_and_in_a_form(open_door: OpenDoor) -> None:
    door = await open_door(models=[model("tiny", aliases=("gpt-4o",))])
    long = json.dumps(
        {"messages": [{"role": "user", "content": "a " * INLINE_BYTES}], "model": "gpt-4o"}
    ).encode()
    async with door.http.post(door.url + CHAT, data=long) as answer:
        assert answer.status == 200
    for size in (10, INLINE_BYTES):
        form = aiohttp.FormData()
        form.add_field("file", b"R" * size, filename="speech.wav")
        form.add_field("model", "gpt-4o")
        async with door.http.post(door.url + "/v1/audio/transcriptions", data=form) as answer:
            assert answer.status == 200
    first, *forms = door.engine.bodies
    assert first == long.replace(b'"gpt-4o"', b'"tiny"')
    for body in forms:
        assert b"\r\n\r\ntiny\r\n" in body
        assert b"gpt-4o" not in body


async def test_names_have_precedence_and_keys_decide_between_equal_aliases(open_door: OpenDoor) -> None:
    entries = [model("a", aliases=("gpt-4o", "b"), keys=("bob",)), model("b", aliases=("gpt-4o",))]
    table = RoutingTable(version=1, models={one.name: one for one in entries})
    bob, alice = generate("bob")[1], generate("alice")[1]
    for name, key, found in (("b", bob, "b"), ("gpt-4o", bob, "a"), ("gpt-4o", alice, "b")):
        entry = table.named(name, key)
        assert entry is not None
        assert entry.name == found
    assert table.named("gpt-5", bob) is None


async def test_aliases_are_listed(open_door: OpenDoor) -> None:
    door = await open_door(models=[model("tiny", aliases=("gpt-4o", "org/Model:1")), model("gpt-4o")])
    async with door.http.get(door.url + "/v1/models") as answer:
        listed = {one["id"]: one.get("alias_of") for one in (await answer.json())["data"]}
    assert listed == {"gpt-4o": None, "tiny": None, "org/Model:1": "tiny"}
    async with door.http.get(door.url + "/v1/models/org/Model:1") as answer:
        assert (await answer.json())["alias_of"] == "tiny"


@given(
    st.dictionaries(st.text(max_size=8), st.integers() | st.text() | st.lists(st.text()), max_size=5),
    st.text(),
)
def test_the_place_of_a_name_is_found_in_any_object(more: dict[str, Any], name: str) -> None:
    document = {**more, "model": name, "last": {"model": "inner"}}
    for text in (json.dumps(document), json.dumps(document, ensure_ascii=False, indent=1)):
        body = text.encode("utf-8", "surrogatepass")
        span = model_span(body)
        assert span is not None
        assert json.loads(body[slice(*span)].decode("utf-8", "surrogatepass")) == name
    assert model_span(json.dumps({"x": {"model": "a"}, "model": 5}).encode()) is None


@pytest.mark.parametrize("start", [0, 5, PIECE_BYTES - 3, PIECE_BYTES, PIECE_BYTES + 7, 3 * PIECE_BYTES - 12])
def test_bytes_are_replaced_across_pieces(start: int) -> None:
    whole = bytes(range(256)) * (3 * PIECE_BYTES // 256)
    body = RequestBody()
    for at in range(0, len(whole), PIECE_BYTES):
        body.add(whole[at : at + PIECE_BYTES])
    made = body.replaced((start, start + 12, b"tiny"))
    assert made.whole() == whole[:start] + b"tiny" + whole[start + 12 :]
    assert made.size == len(whole) - 8


def test_an_alias_of_ones_own_name_is_a_mistake() -> None:
    text = "name: tiny\nmodel: org/tiny\naliases: [gpt-4o, tiny]\n"
    with pytest.raises(SpecError, match="is its name already"):
        parse_deployment(text)
    assert parse_deployment(text.replace(", tiny]", "]")).aliases == ("gpt-4o",)
    for wrong in ("[-x]", '["a b"]', "[gpt-4o, gpt-4o]"):
        with pytest.raises(SpecError):
            parse_deployment(f"name: tiny\nmodel: org/tiny\naliases: {wrong}\n")
