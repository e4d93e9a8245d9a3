"""A stored response belongs to the key that made it, and is at the group that made it."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from gateway_values import model

from sparkfleet.engines.fake import FakeEngine, InjectedFault
from sparkfleet.gateway.access import response_owners
from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.access.response_owners import ResponseOwners, StoredResponse, response_of
from sparkfleet.gateway.routing_table import GroupEntry, RoutingTable

if TYPE_CHECKING:
    from conftest import Door, OpenDoor

RESPONSES = "/v1/responses"
MADE = StoredResponse("key-a", "tiny", "app-0")


async def ask(door: Door, key: str, method: str, path: str, **body: object) -> tuple[int, bytes]:
    headers = {"authorization": f"Bearer {key}"}
    asked = {"json": {"model": "tiny", **body}} if body else {}
    async with aiohttp.request(method, door.url + path, headers=headers, **asked) as answer:  # type: ignore[arg-type]
        return answer.status, await answer.read()


async def house(open_door: OpenDoor, count: int, owners: ResponseOwners | None = None) -> Door:
    """A door before engines of one slot each."""
    engines = [FakeEngine(model="tiny", token="internal-token") for _ in range(count)]
    groups = tuple(GroupEntry(app=f"app-{number}", concurrency=1) for number in range(count))
    return await open_door(engines=engines, models=[model("tiny", groups=groups)], owners=owners)


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
        for name in ("previous_response_id", "request_id"):  # its answer would take that one's place
            status, _ = await ask(door, other, "POST", RESPONSES, input=long, **{name: "resp_fake-0"})
            assert status == 404
    assert len(door.engine.requests) == asked, "the engine was not asked"
    assert (await ask(door, door.key, "GET", f"{RESPONSES}/resp_fake-0"))[0] == 200
    status, _ = await ask(door, door.key, "POST", RESPONSES, input="a", previous_response_id="resp_fake-0")
    assert status == 200


async def test_a_response_whose_owner_is_not_known_is_nobodys(door: Door) -> None:
    for method, path, more in (
        ("GET", f"{RESPONSES}/resp_of-another-day?model=tiny", {}),
        ("POST", RESPONSES, {"input": "a", "previous_response_id": "resp_of-another-day"}),
    ):
        status, body = await ask(door, door.key, method, path, **more)
        assert (status, json.loads(body)["error"]["code"]) == (404, "response_not_found")
    assert not door.engine.requests
    status, _ = await ask(door, door.key, "POST", RESPONSES, input="a", request_id="resp_new")
    assert status == 200


async def test_it_is_asked_of_the_group_that_made_it(open_door: OpenDoor) -> None:
    """An engine keeps its responses for itself: another group would answer 404."""
    door = await house(open_door, 3)
    assert (await ask(door, door.key, "POST", RESPONSES, input="a"))[0] == 200
    (maker,) = [engine for engine in door.engines if engine.requests]
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")) * 2:
        status, body = await ask(door, door.key, method, f"{RESPONSES}/resp_fake-0{path}")
        assert (status, json.loads(body)["method"]) == (200, method)
    for _ in range(4):
        more = {"input": "b", "previous_response_id": "resp_fake-0"}
        assert (await ask(door, door.key, "POST", RESPONSES, **more))[0] == 200
    assert [len(engine.requests) for engine in door.engines if engine is not maker] == [0, 0]
    maker.fault = InjectedFault(kind="drop")
    more = {"input": "b", "previous_response_id": "resp_fake-0"}
    assert (await ask(door, door.key, "POST", RESPONSES, **more))[0] == 503
    assert [len(engine.requests) for engine in door.engines if engine is not maker] == [0, 0]


async def test_without_its_group_it_is_gone_and_while_that_starts_it_is_later(open_door: OpenDoor) -> None:
    door = await house(open_door, 2)
    assert (await ask(door, door.key, "POST", RESPONSES, input="a"))[0] == 200
    place = next(number for number, engine in enumerate(door.engines) if engine.requests)
    entry = door.gateway.table.models["tiny"]
    for ready, status, code in ((False, 503, "model_not_ready"), (None, 404, "response_not_found")):
        groups = tuple(
            one if at != place else one.model_copy(update={"ready": False})
            for at, one in enumerate(entry.groups)
            if at != place or ready is not None
        )
        models = {"tiny": entry.model_copy(update={"groups": groups})}
        keys = door.gateway.table.keys
        door.gateway.table = RoutingTable(version=2 + status, models=models, keys=keys)
        for method, path, more in (
            ("GET", f"{RESPONSES}/resp_fake-0", {}),
            ("POST", RESPONSES, {"input": "a", "previous_response_id": "resp_fake-0"}),
        ):
            answered, body = await ask(door, door.key, method, path, **more)
            assert (answered, json.loads(body)["error"]["code"]) == (status, code)


async def test_an_engine_that_has_lost_its_store_says_so_in_the_form_of_the_api(open_door: OpenDoor) -> None:
    door = await house(open_door, 1)
    assert (await ask(door, door.key, "POST", RESPONSES, input="a"))[0] == 200
    door.engine.fault = InjectedFault(kind="status", status=404)
    more = {"input": "b", "previous_response_id": "resp_fake-0"}
    status, body = await ask(door, door.key, "POST", RESPONSES, **more)
    assert (status, set(json.loads(body)["error"])) == (404, {"message", "type", "param", "code"})


async def test_owners_are_known_after_a_restart_and_to_a_gateway_beside(
    open_door: OpenDoor, tmp_path: Path
) -> None:
    file = tmp_path / "responses" / "owners"
    first = ResponseOwners(file)
    beside = ResponseOwners(file)
    door = await house(open_door, 1, first)
    writing = asyncio.create_task(first.keep())
    assert (await ask(door, door.key, "POST", RESPONSES, input="a"))[0] == 200
    async with asyncio.timeout(5):
        while beside.of("resp_fake-0") is None:
            await asyncio.sleep(0.01)
    writing.cancel()
    after = ResponseOwners(file)
    assert after.of("resp_fake-0") == beside.of("resp_fake-0") == (door.entry.id, "tiny", "app-0")
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


async def test_a_full_file_becomes_the_former_one_which_is_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_owners, "FILE_BYTES", 40)
    file = tmp_path / "owners"
    owners, beside = ResponseOwners(file), ResponseOwners(file)
    for number in range(5):
        owners.note(b'{"id":"resp_%d"}' % number, MADE)
        await owners.flush()
        assert beside.of(f"resp_{number}") == MADE
    known = ResponseOwners(file)
    assert [known.of(f"resp_{number}") is not None for number in range(5)] == [False, False, True, True, True]


@pytest.mark.parametrize("lines_per_file", [1, 2, 3])
async def test_a_gateway_beside_reads_the_rest_of_a_file_that_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines_per_file: int
) -> None:
    """Of each file it had read the beginning only when the next one took its name."""
    monkeypatch.setattr(response_owners, "FILE_BYTES", lines_per_file * len("resp_10\tkey-a\ttiny\tapp-0\n"))
    file = tmp_path / "owners"
    owners, beside = ResponseOwners(file), ResponseOwners(file)

    async def add(number: int) -> None:
        owners.note(b'{"id":"resp_%d"}' % number, MADE)
        await owners.flush()

    for number in range(10, 30):
        await add(number)
        if number % lines_per_file == 0:
            assert beside.of(f"resp_{number}") == MADE
    assert beside.of("resp_29") == MADE
    assert [number for number in range(10, 30) if beside.of(f"resp_{number}") is None] == []


async def test_a_file_with_the_inode_of_a_deleted_one_is_read_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "owners"
    file.write_bytes(b"resp_1\tkey-a\ttiny\tapp-0\nresp_2\tkey-a\ttiny\tapp-0\n")
    beside = ResponseOwners(file)
    file.write_bytes(b"resp_3\tkey-a\ttiny\tapp-0\n")  # the same inode, and shorter
    assert (beside.of("resp_3"), beside.of("resp_1")) == (MADE, MADE)


async def test_what_is_broken_in_a_file_is_left_out_and_a_failed_write_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "owners"
    file.write_bytes(b"resp_1\tkey-a\ttiny\tapp-0\n\xff\nresp_2\tkey\nresp_3\tkey-a\ttiny\tapp-0")
    owners = ResponseOwners(file)
    assert [owners.of(f"resp_{number}") for number in (1, 2, 3)] == [MADE, None, None]
    blocked = ResponseOwners(tmp_path / "no" / "directory" / "owners")
    blocked.note(b'{"id":"resp_4"}', MADE)
    with caplog.at_level(logging.WARNING):
        await blocked.flush()
    assert "was not written" in caplog.text
    (tmp_path / "no").mkdir()
    await blocked.flush()
    assert ResponseOwners(tmp_path / "no" / "directory" / "owners").of("resp_4") == MADE


def test_the_oldest_are_forgotten_and_the_first_owner_remains() -> None:
    owners = ResponseOwners(most=2)
    for number in range(3):
        owners.note(b'{"object":"response","id": "resp_%d"}' % number, MADE)
    assert [owners.of(f"resp_{number}") for number in range(3)] == [None, MADE, MADE]
    owners.note(b'{"id":"resp_2"}', StoredResponse("key-b", "tiny", "app-1"))
    assert owners.of("resp_2") == MADE
    owners.note(b'{"id":"chatcmpl-1"}', MADE)
    owners.note(b"x" * 5000 + b'"id":"resp_9"', MADE)
    assert (owners.of("chatcmpl-1"), owners.of("resp_9")) == (None, None)


def test_the_response_in_a_path() -> None:
    assert response_of("/v1/responses/resp_1/cancel") == "resp_1"
    assert [response_of(path) for path in (RESPONSES, "/v1/chat/completions/resp_1", "/")] == ["", "", ""]
