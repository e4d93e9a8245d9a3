"""`sparkfleet route` against a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkfleet.errors import ControlError, SpecError
from sparkfleet.fleet.clients.route import explain_at, read_request

if TYPE_CHECKING:
    from conftest import Door


async def test_the_decision_is_read_and_no_engine_is_asked(door: Door, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(door.body()))
    path, body = read_request(file)
    answer = await explain_at(door.url + "/v1", path, body, door.key)
    assert (answer["model"], answer["group"]) == ("tiny", "app-0")
    assert not door.engine.requests
    with pytest.raises(ControlError, match="API key is unknown"):
        await explain_at(door.url + "/v1", path, body, "sk-sf-wrong")
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
