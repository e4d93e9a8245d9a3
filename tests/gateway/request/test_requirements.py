"""Requirements of requests: each goes to a group that can serve it."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkfleet.engines.fake import FakeEngine, InjectedFault
from sparkfleet.gateway.request.requirements import Requirements, can, doubts, lacking, needs_of
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

if TYPE_CHECKING:
    from conftest import Door, OpenDoor

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
TEXT = {"type": "text", "text": "what is this?"}


def said(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **more}


SEEN = {
    "chat": said(TEXT, IMAGE),
    "chat, without a type": said({"image_url": "http://x/y.png"}),
    "chat, in a result of a tool": {"messages": [{"role": "tool", "tool_call_id": "1", "content": [IMAGE]}]},
    "video": said({"type": "video_url", "video_url": {"url": "http://x/y.mp4"}}),
    "embeddings of images": said({"type": "image_embeds", "image_embeds": "AAAA"}),
    "an early message": {"messages": [*said(IMAGE)["messages"], *({"role": "user", "content": "x"},) * 50]},
    "responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
    "responses, an item": {"input": [{"type": "input_image", "image_url": "http://x"}]},
    "responses, a call's output": {
        "input": [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image"}]}]
    },
    "anthropic": said({"type": "image", "source": {"type": "base64", "data": "AAAA"}}),
    "anthropic, in a result of a tool": said(
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image", "source": {}}]}
    ),
}

UNSEEN = {
    "text": said(TEXT),
    "a text that speaks of images": {"messages": [{"role": "user", "content": json.dumps(IMAGE)}]},
    "a tool that takes images": {"messages": [{"role": "user", "content": "x"}], "tools": [IMAGE]},
    "arguments of a call": said({"type": "tool_use", "name": "x", "input": {"content": [IMAGE]}}),
    "OpenAI's own dump of an answer": {"messages": [{"role": "assistant", "content": "x", "audio": None}]},
    "a field of another name": {"image_url": "http://x", "messages": []},
    "a type that is no text": said({"type": ["image_url"]}, {"type": {"image": 1}}, {"type": None}),
}


@pytest.mark.parametrize("body", SEEN.values(), ids=SEEN)
def test_images_and_video_need_vision(body: dict[str, Any]) -> None:
    assert needs_of(body).vision


@pytest.mark.parametrize("body", UNSEEN.values(), ids=UNSEEN)
def test_nothing_else_does(body: dict[str, Any]) -> None:
    assert not needs_of(body).vision
    assert not needs_of(body).audio


@pytest.mark.parametrize("part", [{"type": "input_audio"}, {"type": "audio_url"}, {"input_audio": {}}])
def test_sound_is_a_need_of_its_own(part: dict[str, Any]) -> None:
    needs = needs_of(said(part))
    assert (needs.audio, needs.vision, needs.abilities) == (True, False, ())


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"tools": [TOOL]}, True),
        ({"tools": [TOOL], "tool_choice": "auto"}, True),
        ({"tools": [TOOL], "tool_choice": "required"}, True),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}}, True),
        ({"tools": [TOOL], "tool_choice": "none"}, False),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, False),
        ({"tools": []}, False),
        ({"tools": None}, False),
        ({"tools": "hammer"}, False),
        ({"tools": {"a": 1}}, False),
        ({}, False),
    ],
)
def test_tools_that_may_be_called_need_a_parser(body: dict[str, Any], wanted: bool) -> None:
    assert needs_of(body).tools is wanted


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({}, 0),
        ({"max_tokens": 500}, 500),
        ({"max_tokens": 500, "max_completion_tokens": 900}, 900),
        ({"max_output_tokens": 700, "input": "x" * 300}, 800),
        ({"max_tokens": -3}, 0),
        ({"max_tokens": "500"}, 0),
        ({"max_tokens": 1e9}, 0),
        ({"max_tokens": None}, 0),
        ({"prompt": "x" * 300}, 100),
        ({"prompt": "é" * 300}, 300),
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": ["x" * 30, "x" * 30]}, 20),
        ({"system": [{"type": "text", "text": "x" * 30}], **said({"type": "text", "text": "x" * 60})}, 30),
        ({"prompt": "1" * 300 + "x" * 300}, 400),
        ({"prompt": "é" + "x" * 300}, 101),
        (said(IMAGE), 2000),
        (said({"type": "tool_result", "content": [IMAGE, IMAGE]}), 4000),
        (said({"type": "thinking", "thinking": "x" * 300}), 100),
    ],
)
def test_the_length_is_estimated(body: dict[str, Any], tokens: int) -> None:
    assert needs_of(body).tokens == tokens


AGENTS = 36_000 * "x"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string", "description": AGENTS}}}
COUNTED: dict[str, dict[str, Any]] = {
    "tools, chat": {"tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]},
    "tools, messages": {"tools": [{"name": "look", "input_schema": SCHEMA}]},
    "functions": {"functions": [{"name": "look", "parameters": SCHEMA}]},
    "calls, chat": {
        "messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": AGENTS}}]}],
    },
    "calls, messages": said({"type": "tool_use", "name": "x", "input": {"path": [AGENTS]}}),
    "calls, responses": {"input": [{"type": "function_call", "arguments": AGENTS}]},
    "thinking": said({"type": "thinking", "thinking": AGENTS}),
    "reasoning": {"messages": [{"role": "assistant", "reasoning_content": AGENTS}]},
    "images": said(*[IMAGE] * 6),
}


@pytest.mark.parametrize("body", COUNTED.values(), ids=COUNTED)
def test_an_agents_body_finds_the_group_that_it_fits(body: dict[str, Any]) -> None:
    """12,000 tokens of tools or calls counted as none, and went to a context of 8,192."""
    needs = needs_of(body)
    assert 12_000 <= needs.prompt_tokens < 13_000
    assert needs.least_tokens == 0, "nobody is refused for an estimate"
    assert doubts(SIGHTED, needs) < doubts(BLIND, needs)


def test_a_hostile_set_of_tools_is_read_in_part_only() -> None:
    deep: object = "x"
    for _ in range(100_000):
        deep = {"a": deep}
    tools = [deep, [0] * 1_000_000, {str(number): number for number in range(100_000)}]
    assert 0 < needs_of({"tools": tools}).prompt_tokens < 500_000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["content", "text", "output", "type", "image_url", "role"]), inner, max_size=4
        )
    ),
    max_leaves=6,
)
FIELDS = ["messages", "input", "prompt", "system", "instructions", "tools", "tool_choice", "max_tokens"]


@settings(suppress_health_check=[HealthCheck.too_slow])  # of the machine, while others use it
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))
def test_any_body_needs_something_or_nothing(body: dict[str, Any]) -> None:
    needs = needs_of(body)
    assert isinstance(needs.vision, bool)
    assert isinstance(needs.tools, bool)
    assert needs.tokens >= 0


def test_depth_is_no_danger_and_hides_nothing() -> None:
    inner: object = IMAGE
    for _ in range(5000):
        inner = {"content": [inner]}
    assert needs_of({"messages": [inner]}).vision


def test_of_a_huge_body_a_part_is_looked_at() -> None:
    taken = 0

    class Counted(list[int]):
        def __iter__(self) -> Any:
            nonlocal taken
            for value in super().__iter__():
                taken += 1
                yield value

    needs_of({"prompt": Counted([0] * 1_000_000)})
    assert 1000 < taken < 50_000


# Groups

SIGHTED = GroupEntry(app="app-1", vision=True, tools=True, context=65536, concurrency=4)
BLIND = GroupEntry(app="app-0", vision=False, tools=True, context=8192, concurrency=8)
UNKNOWN = GroupEntry(app="app-2")


@pytest.mark.parametrize(
    ("group", "needs", "able"),
    [
        (BLIND, Requirements(vision=True), False),
        (BLIND, Requirements(tools=True), True),
        (BLIND, Requirements(vision=True, tools=True), False),
        (BLIND, Requirements(audio=True), True),
        (SIGHTED, Requirements(vision=True, tools=True), True),
        (UNKNOWN, Requirements(vision=True, tools=True, audio=True), True),
    ],
)
def test_what_is_not_known_excludes_nothing(group: GroupEntry, needs: Requirements, able: bool) -> None:
    assert can(group, needs) is able


def test_what_is_lacking() -> None:
    toolless = SIGHTED.model_copy(update={"tools": False})
    both = Requirements(vision=True, tools=True)
    assert lacking([BLIND], both) == ("vision",)
    assert lacking([BLIND, toolless], both) == ("vision", "tools")
    assert lacking([BLIND, SIGHTED], both) == ()
    assert lacking([BLIND, UNKNOWN], both) == ()
    assert lacking([BLIND], Requirements(tokens=10**9, audio=True)) == ()
    assert lacking([], both) == ()


def test_groups_of_which_it_is_known_and_with_room_come_first() -> None:
    assert doubts(SIGHTED, Requirements(vision=True)) < doubts(UNKNOWN, Requirements(vision=True))
    assert doubts(SIGHTED, Requirements(audio=True)) < doubts(BLIND, Requirements(audio=True))
    assert doubts(SIGHTED, Requirements(tokens=9000)) < doubts(BLIND, Requirements(tokens=9000))
    assert doubts(SIGHTED, Requirements(tokens=99000)) < doubts(BLIND, Requirements(tokens=99000))
    assert doubts(UNKNOWN, Requirements(tokens=9000)) == doubts(SIGHTED, Requirements(tokens=9000))
    assert doubts(SIGHTED, Requirements(tokens=8000)) == doubts(BLIND, Requirements(tokens=8000))


# Through a gateway


def engines(*faults: InjectedFault | None) -> list[FakeEngine]:
    return [FakeEngine(model="tiny", fault=fault, token="internal-token") for fault in faults]


async def house(open_door: OpenDoor, groups: Sequence[GroupEntry], *faults: InjectedFault | None) -> Door:
    """A door before a group without and one with a vision tower, in this order."""
    entry = ModelEntry(name="tiny", groups=tuple(groups), deployment="engine", state="ready")
    return await open_door(engines=engines(*(faults or (None, None))), models=[entry])


def asked(door: Door) -> list[int]:
    return [len(engine.requests) for engine in door.engines]


PATHS = {
    "/v1/chat/completions": SEEN["chat"],
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]}
        ]
    },
    "/v1/messages": {**SEEN["anthropic"], "max_tokens": 8},
}


@pytest.mark.parametrize("path", PATHS)
async def test_images_go_to_those_that_see_and_text_to_all(open_door: OpenDoor, path: str) -> None:
    door = await house(open_door, [BLIND, SIGHTED])
    for _ in range(4):
        status, _, _ = await door.post(path, **PATHS[path])
        assert status == 200
    assert asked(door) == [0, 4]
    for _ in range(4):
        await door.post("/v1/completions")
    assert asked(door) == [2, 6]


async def test_tools_go_to_those_that_read_calls(open_door: OpenDoor) -> None:
    door = await house(open_door, [BLIND.model_copy(update={"tools": False}), SIGHTED])
    for _ in range(3):
        assert (await door.post(tools=[TOOL]))[0] == 200
    assert asked(door) == [0, 3]


async def test_long_ones_go_where_there_is_room(open_door: OpenDoor) -> None:
    door = await house(open_door, [BLIND, SIGHTED])
    for _ in range(3):
        assert (await door.post(max_tokens=8193))[0] == 200
    assert asked(door) == [0, 3]
    for _ in range(3):
        assert (await door.post(messages=[{"role": "user", "content": "spark " * 5000}]))[0] == 200
    assert asked(door) == [0, 6]


async def test_where_nothing_is_known_all_are_asked(open_door: OpenDoor) -> None:
    door = await house(open_door, [GroupEntry(app="app-0"), GroupEntry(app="app-1")])
    for _ in range(4):
        assert (await door.post(**said(IMAGE), tools=[TOOL], max_tokens=10**6))[0] == 200
    assert asked(door) == [2, 2]


async def test_a_group_that_may_be_able_stands_in_for_one_that_is(open_door: OpenDoor) -> None:
    drops = InjectedFault(kind="drop")
    door = await house(open_door, [GroupEntry(app="app-0"), SIGHTED], None, drops)
    assert (await door.post(**said(IMAGE)))[0] == 200
    assert len(door.engines[0].requests) == 1


async def test_one_that_cannot_does_not_stand_in(open_door: OpenDoor) -> None:
    door = await house(open_door, [BLIND, SIGHTED], None, InjectedFault(kind="drop"))
    status, headers, body = await door.post(**said(IMAGE))
    assert (status, json.loads(body)["error"]["code"]) == (503, "engine_lost")
    assert headers["retry-after"] == "5"
    assert not door.engines[0].requests


@pytest.mark.parametrize("state", ["ready", "starting", "failed"])
async def test_what_no_group_can_do_is_refused_for_good(open_door: OpenDoor, state: str) -> None:
    entry = ModelEntry.model_validate(
        {"name": "tiny", "groups": (BLIND,), "deployment": "engine", "state": state}
    )
    door = await open_door(models=[entry])
    status, headers, body = await door.post(**said(IMAGE), tools=[TOOL])
    error = json.loads(body)["error"]
    assert (status, error["code"], error["type"]) == (400, "unsupported_by_model", "invalid_request_error")
    assert 'images or video, which the model "tiny" does not take' in error["message"]
    assert "vision tower" in error["message"]
    assert "Remove them" in error["message"]
    assert "tools" not in error["message"]
    assert "retry-after" not in headers
    assert door.value("sparkfleet_errors_total", model="tiny", kind="unsupported") == 1
    assert not door.engine.requests


async def test_anthropics_clients_are_refused_in_their_words(open_door: OpenDoor) -> None:
    door = await house(open_door, [BLIND])
    status, _, body = await door.post("/v1/messages", **SEEN["anthropic"])
    error = json.loads(body)
    assert (status, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error")
    assert "images" in error["error"]["message"]


async def test_tools_that_nobody_takes_are_named(open_door: OpenDoor) -> None:
    door = await house(open_door, [BLIND.model_copy(update={"tools": False})])
    _, _, body = await door.post(tools=[TOOL])
    error = json.loads(body)["error"]
    assert error["param"] == "tools"
    assert 'has tools, which the model "tiny" does not take' in error["message"]
    assert "--tool-call-parser" in error["message"]


async def test_two_needs_that_no_group_has_together_are_told(open_door: OpenDoor) -> None:
    door = await house(open_door, [BLIND, SIGHTED.model_copy(update={"tools": False})])
    status, _, body = await door.post(**said(IMAGE), tools=[TOOL])
    assert status == 400
    assert "images or video and tools in one request" in json.loads(body)["error"]["message"]


async def test_where_those_that_can_are_not_ready_the_client_is_told_to_wait(open_door: OpenDoor) -> None:
    door = await house(open_door, [BLIND, SIGHTED.model_copy(update={"ready": False})])
    status, headers, body = await door.post(**said(IMAGE))
    assert (status, json.loads(body)["error"]["code"]) == (503, "model_not_ready")
    assert headers["retry-after"] == "5"
    assert "take images or video are not ready" in json.loads(body)["error"]["message"]
    assert (await door.post())[0] == 200
    assert asked(door) == [1, 0]


async def test_a_model_that_is_not_ready_at_all_says_so_first(open_door: OpenDoor) -> None:
    groups = tuple(group.model_copy(update={"ready": False}) for group in (BLIND, SIGHTED))
    entry = ModelEntry(name="tiny", groups=groups, deployment="engine", state="starting", detail="loading")
    door = await open_door(models=[entry])
    status, _, body = await door.post(**said(IMAGE))
    assert status == 503
    assert "is starting: loading" in json.loads(body)["error"]["message"]


HOSTILE = {
    "content is a number": b'{"model": "tiny", "messages": [{"role": "user", "content": 7}]}',
    "content is junk": b'{"model": "tiny", "messages": [{"content": [null, 1, [], "x", {"type": {}}, [[1]]]}]}',
    "messages are a text": b'{"model": "tiny", "messages": "hello"}',
    "messages are an object": b'{"model": "tiny", "messages": {"content": {"content": {}}}}',
    "messages are junk": b'{"model": "tiny", "messages": [null, true, 1.5, [], {}, "x"]}',
    "nested": b'{"model": "tiny", "messages": ' + b"[" * 400 + b"]" * 400 + b"}",
    "nested objects": b'{"model": "tiny", "messages": [' + b'{"content":' * 200 + b"0" + b"}" * 200 + b"]}",
    "huge": b'{"model": "tiny", "messages": [' + b"0," * 900_000 + b"0]}",
    "a huge number": b'{"model": "tiny", "max_tokens": ' + b"9" * 4000 + b"}",
    "tools are junk": b'{"model": "tiny", "tools": "all", "tool_choice": [{"type": "none"}]}',
    "tools of junk": b'{"model": "tiny", "tools": [null, 1], "tool_choice": {"type": {"type": 1}}}',
    "every field is null": b'{"model": "tiny", "messages": null, "input": null, "tools": null, "system": null}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
async def test_what_the_gateway_does_not_understand_is_for_the_engine_to_judge(
    open_door: OpenDoor, body: bytes
) -> None:
    door = await house(open_door, [BLIND, SIGHTED])
    headers = {"content-type": "application/json"}
    async with door.http.post(door.url + "/v1/completions", data=io.BytesIO(body), headers=headers) as answer:
        await answer.read()
        assert answer.status < 500
    assert sum(len(engine.bodies) for engine in door.engines) == 1
    assert not door.value("sparkfleet_errors_total", model="tiny", kind="internal")


async def test_nesting_without_end_is_a_clients_mistake(open_door: OpenDoor) -> None:
    door = await house(open_door, [BLIND, SIGHTED])
    for depth, code in ((5_000, "invalid_json"), (200_000, "too_complex")):
        body = b'{"model": "tiny", "messages": ' + b"[" * depth
        async with door.http.post(door.url + "/v1/chat/completions", data=body) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["code"] == code


INSIDE = "http://192.168.1.1/admin"


def with_url(url: str) -> dict[str, dict[str, Any]]:
    """Requests by path that name an image by this URL."""
    parts = {
        "/v1/chat/completions": ("messages", {"type": "image_url", "image_url": {"url": url}}),
        "/v1/responses": ("input", {"type": "input_image", "image_url": url}),
        "/v1/messages": ("messages", {"type": "image", "source": {"type": "url", "url": url}}),
    }
    return {path: {field: [{"role": "user", "content": [part]}]} for path, (field, part) in parts.items()}


@pytest.mark.parametrize("path", PATHS)
async def test_an_image_by_url_is_refused_with_the_field_to_set(open_door: OpenDoor, path: str) -> None:
    door = await house(open_door, [SIGHTED])
    for url, names in (
        (INSIDE, b"add 192.168.1.1 to `media_domains`"),
        ("file:///etc/passwd", b"`data:` URL."),
    ):
        status, _, body = await door.post(path, max_tokens=8, **with_url(url)[path])
        assert status == 400
        assert b"media_domains" in body
        assert names in body
    assert asked(door) == [0, 0]


@pytest.mark.parametrize("path", PATHS)
async def test_an_image_of_an_allowed_host_passes(open_door: OpenDoor, path: str) -> None:
    entry = ModelEntry(
        name="tiny", groups=(SIGHTED,), deployment="engine", state="ready", media_domains=("images.example",)
    )
    door = await open_door(engines=engines(None, None), models=[entry])
    status, _, _ = await door.post(path, max_tokens=8, **with_url("https://images.example/a.png")[path])
    assert status == 200
    status, _, _ = await door.post(path, max_tokens=8, **with_url("https://other.example/a.png")[path])
    assert status == 400
