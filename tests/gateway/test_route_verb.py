"""`sparkfleet route` against a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gateway_values import model

from sparkfleet.engines.fake import FakeEngine
from sparkfleet.errors import ControlError, SpecError
from sparkfleet.fleet.clients.route import explain_at, read_request
from sparkfleet.gateway.routing_table import GroupEntry, GroupSpeed

if TYPE_CHECKING:
    from conftest import Door, OpenDoor


async def test_the_decision_is_read_and_no_engine_is_asked(door: Door, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(door.body()))
    path, body = read_request(file)
    answer = await explain_at(door.url + "/v1", path, body, door.key)
    assert (answer["model"], answer["group"]) == ("tiny", "app-0")
    assert not door.engine.requests
    with pytest.raises(ControlError, match="API key is unknown") as refused:
        await explain_at(door.url + "/v1", path, body, "sk-sf-wrong")
    assert "sparkfleet keys list" in refused.value.do
    with pytest.raises(ControlError, match="did not answer"):
        await explain_at("http://127.0.0.1:1/v1", path, body, door.key)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"messages": []}', "/chat/completions"),
        ('{"prompt": ""}', "/completions"),
        ('{"input": ""}', "/responses"),
    ],
)
def test_a_request_is_known_by_its_fields(tmp_path: Path, text: str, path: str) -> None:
    file = tmp_path / "request.json"
    file.write_text(text)
    assert read_request(file) == (path, text.encode())


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "7", "[" * 100_000])
def test_what_is_no_request_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "request.json"
    file.write_text(text)
    with pytest.raises(SpecError, match=r"request\.json is no"):
        read_request(file)
    with pytest.raises(SpecError, match="cannot be read"):
        read_request(tmp_path / "none.json")


async def test_the_header_of_an_answer_says_why_and_only_if_it_is_asked_for(open_door: OpenDoor) -> None:
    speed = GroupSpeed(prefill_tps=1000, alone_tps=40, together_tps=160, concurrency=4)
    blind, sees = (
        GroupEntry(app=f"app-{number}", concurrency=4, context=32768, speed=speed, vision=bool(number))
        for number in range(2)
    )
    engines = [FakeEngine(model="tiny", token="internal-token") for _ in range(2)]
    door = await open_door(engines=engines, models=[model("tiny", groups=(blind, sees))])
    long = [{"role": "user", "content": "The cable between the two machines. " * 300}]

    async def ask(value: str, stream: bool = False, **more: object) -> tuple[str, str, bytes]:
        headers = {"x-sparkfleet-explain": value} if value else {}
        asked = door.body(stream=stream, **more)
        async with door.http.post(door.url + "/v1/chat/completions", json=asked, headers=headers) as answer:
            return answer.headers.get("x-sparkfleet-explain", ""), answer.content_type, await answer.read()

    assert (await ask("", messages=long))[0] == ""
    for stream in (False, True):
        header, kind, body = await ask("1", stream=stream, messages=long)
        why = json.loads(header)
        first, second = why["groups"]
        assert why["group"] == first["group"]
        assert (
            why["why"] == f"finishes first: {first['warm_tokens']} tokens of the prompt are probably cached"
        )
        assert 0 < first["warm_tokens"] <= why["prompt_tokens"]
        assert first["finish_s"] < second["finish_s"]
        assert kind == ("text/event-stream" if stream else "application/json")
        assert b"finish_s" not in body, "the answer itself is the engine's"
    image = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]}
    ]
    header, _, _ = await ask("1", messages=image)
    assert json.loads(header)["group"] == "app-1"
    assert json.loads(header)["left_out"] == {"app-0": "takes no vision"}
    asked = sum(len(engine.requests) for engine in engines)
    assert json.loads((await ask("only", messages=image))[2]) == json.loads(header) | {
        "groups": json.loads((await ask("only", messages=image))[2])["groups"]
    }
    assert sum(len(engine.requests) for engine in engines) == asked, "no engine was asked"
