"""Documents of `/v1/models`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gateway_values import model

from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.model_list import is_model_path, model_document
from sparkfleet.gateway.routing_table import ModelEntry, RoutingTable

if TYPE_CHECKING:
    from conftest import OpenDoor

_, KEY = generate("alice")


def table(*models: ModelEntry) -> RoutingTable:
    return RoutingTable(version=1, models={one.name: one for one in models}, keys=(KEY,))


def test_models_are_listed_for_those_who_may_use_them() -> None:
    there = table(model("tiny"), model("private", keys=("bob",)), model("starting", state="starting"))
    listed = model_document("/v1/models", there, KEY)
    assert listed["object"] == "list"
    assert [(one["id"], one["state"]) for one in listed["data"]] == [
        ("starting", "starting"),
        ("tiny", "ready"),
    ]


def test_a_model_of_another_key_is_not_shown() -> None:
    with pytest.raises(ApiError, match="There is no model"):
        model_document("/v1/models/private", table(model("private", keys=("bob",))), KEY)


def test_paths_that_only_begin_alike_are_none() -> None:
    assert is_model_path("/v1/models")
    assert is_model_path("/v1/models/a/b")
    assert not is_model_path("/v1/modelsx")


async def test_one_model_is_shown(open_door: OpenDoor) -> None:
    door = await open_door(models=[model("Qwen/Qwen3-8B", context=32768, created=1700000000)])
    for name in ("Qwen/Qwen3-8B", "Qwen%2FQwen3-8B"):
        async with door.http.get(f"{door.url}/v1/models/{name}") as answer:
            assert await answer.json() == {
                "id": "Qwen/Qwen3-8B",
                "object": "model",
                "created": 1700000000,
                "owned_by": "sparkfleet",
                "state": "ready",
                "max_model_len": 32768,
            }
