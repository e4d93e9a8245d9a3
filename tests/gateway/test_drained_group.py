"""A group that is drained: its streams end whole, and new requests go elsewhere or are refused with the reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gateway_values import CHAT

from sparkfleet.engines.fake import FakeEngine, Pace
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

if TYPE_CHECKING:
    from conftest import Door, OpenDoor

SLOW = Pace(ttft_s=0.01, itl_s=0.02, tokens=20)


def engine() -> FakeEngine:
    return FakeEngine(model="tiny", pace=SLOW, token="internal-token")


def publish(door: Door, *ready: bool, state: str = "ready", detail: str = "") -> None:
    groups = tuple(GroupEntry(app=f"app-{at}", ready=is_ready) for at, is_ready in enumerate(ready))
    entry = ModelEntry.model_validate(
        {"name": "tiny", "deployment": "engine", "state": state, "detail": detail, "groups": groups}
    )
    table = door.gateway.table
    door.gateway.table = table.model_copy(update={"version": table.version + 1, "models": {"tiny": entry}})


async def test_its_streams_end_whole_and_new_requests_go_to_the_other_group(open_door: OpenDoor) -> None:
    door = await open_door(engines=[engine(), engine()])
    publish(door, True, False)
    async with door.http.post(door.url + CHAT, json=door.body(stream=True)) as stream:
        await stream.content.readuntil(b"hums")
        publish(door, False, True)
        for _ in range(4):
            assert (await door.post())[0] == 200
        assert (await stream.read()).endswith(b"data: [DONE]\n\n")
    assert [len(each.requests) for each in door.engines] == [1, 4]
    assert not door.value("sparkfleet_errors_total", model="tiny", kind="engine_lost")
    publish(door, True, True)
    for _ in range(4):
        await door.post()
    assert len(door.engines[0].requests) > 1


async def test_without_another_group_a_request_is_refused_with_the_command(open_door: OpenDoor) -> None:
    door = await open_door(engines=[engine()])
    publish(door, False, state="drained", detail="every group is drained; `sparkfleet undrain tiny/g1/0`")
    status, headers, body = await door.post()
    error = json.loads(body)["error"]
    assert (status, error["code"], "retry-after" in headers) == (503, "model_not_ready", True)
    assert "is drained: every group is drained; `sparkfleet undrain tiny/g1/0`" in error["message"]
    assert not door.engine.requests
