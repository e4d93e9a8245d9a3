"""A stored response belongs to the key that made it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import aiohttp
import pytest

from sparkfleet.engines.fake.apis import Job, ResponsesApi
from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.access.response_owners import ResponseOwners, response_of

if TYPE_CHECKING:
    from conftest import Door, OpenDoor

RESPONSES = "/v1/responses"


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names as engines give them."""
    made = ResponsesApi._response

    def response(
        self: ResponsesApi, job: Job, status: str, output: list[dict[str, object]]
    ) -> dict[str, object]:
        return {**made(self, job, status, output), "id": f"resp_{job.id}"}

    monkeypatch.setattr(ResponsesApi, "_response", response)


async def ask(door: Door, key: str, method: str, path: str, **body: object) -> tuple[int, bytes]:
    headers = {"authorization": f"Bearer {key}"}
    asked = {"json": {"model": "tiny", **body}} if body else {}
    async with aiohttp.request(method, door.url + path, headers=headers, **asked) as answer:  # type: ignore[arg-type]
        return answer.status, await answer.read()


@pytest.mark.parametrize("stream", [True, False])
async def test_another_key_neither_reads_nor_changes_nor_continues_it(
    open_door: OpenDoor, stream: bool
) -> None:
    other, entry = generate("bob")
    door = await open_door(extra_keys=[entry])
    assert (await ask(door, door.key, "POST", RESPONSES, input="my secret", stream=stream))[0] == 200
    asked = len(door.engine.requests)
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        status, body = await ask(door, other, method, f"{RESPONSES}/resp_fake-0{path}?model=tiny")
        assert (status, json.loads(body)["error"]["code"]) == (404, "response_not_found"), path
    for long in ("", "x" * 300_000):
        status, _ = await ask(door, other, "POST", RESPONSES, input=long, previous_response_id="resp_fake-0")
        assert status == 404
    assert len(door.engine.requests) == asked, "the engine was not asked"
    assert (await ask(door, door.key, "GET", f"{RESPONSES}/resp_fake-0?model=tiny"))[0] == 200
    status, _ = await ask(door, door.key, "POST", RESPONSES, input="a", previous_response_id="resp_fake-0")
    assert status == 200


async def test_a_response_that_is_not_known_is_the_engines_to_find(door: Door) -> None:
    assert (await ask(door, door.key, "GET", f"{RESPONSES}/resp_of-another-day?model=tiny"))[0] == 200


def test_the_oldest_are_forgotten() -> None:
    owners = ResponseOwners(most=2)
    for number in range(3):
        owners.note(b'{"object":"response","id": "resp_%d"}' % number, "a")
    assert [owners.belongs_to_another(f"resp_{number}", "b") for number in range(3)] == [False, True, True]
    assert not owners.belongs_to_another("resp_2", "a")
    owners.note(b'{"id":"chatcmpl-1"}', "a")
    owners.note(b"x" * 5000 + b'"id":"resp_9"', "a")
    assert not owners.belongs_to_another("resp_9", "b")


def test_the_response_in_a_path() -> None:
    assert response_of("/v1/responses/resp_1/cancel") == "resp_1"
    assert [response_of(path) for path in (RESPONSES, "/v1/chat/completions/resp_1", "/")] == ["", "", ""]
