"""Candidate groups of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from gateway_values import model

from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.candidates import candidates_of
from sparkfleet.gateway.client_request import ClientRequest
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.request_parser import RequestTarget
from sparkfleet.gateway.routing_table import ExternalAddress, GroupEntry

if TYPE_CHECKING:
    from conftest import OpenDoor

PATH = "/v1/chat/completions"
_, KEY = generate("alice")
SEES = GroupEntry(app="sees", vision=True)
BLIND = GroupEntry(app="blind", vision=False)
OUTSIDE = GroupEntry(app="outside", external=ExternalAddress(url="https://api.example/v1", model="m"))
IMAGE = Requirements(vision=True)


def found(needs: Requirements, path: str = PATH, **more: Any) -> CandidateGroups:
    request = ClientRequest("POST", path, [])
    return candidates_of(request, KEY, model("tiny", **more), RequestTarget("tiny", needs), ObservedGroups())


def test_groups_that_cannot_serve_it_are_no_candidates() -> None:
    assert [one.app for one in found(IMAGE, groups=(SEES, BLIND)).groups] == ["sees"]
    assert [one.app for one in found(Requirements(), groups=(SEES, BLIND)).groups] == ["sees", "blind"]
    with pytest.raises(ApiError) as caught:
        found(IMAGE, groups=(BLIND,))
    assert caught.value.status == 400


def test_endpoints_outside_take_what_the_fleet_cannot() -> None:
    candidates = found(IMAGE, groups=(BLIND,), external=(OUTSIDE,))
    assert (candidates.groups, [one.app for one in candidates.external]) == ((), ["outside"])
    with pytest.raises(ApiError):
        found(IMAGE, "/v1/rerank", groups=(BLIND,), external=(OUTSIDE,))


async def test_keys_only_open_their_own_models(open_door: OpenDoor) -> None:
    bob, entry = generate("bob")
    door = await open_door(models=[model("tiny", keys=("bob",))], extra_keys=[entry])
    assert (await door.post())[0] == 403
    headers = {"authorization": f"Bearer {bob}"}
    async with aiohttp.request("POST", door.url + PATH, json=door.body(), headers=headers) as answer:
        assert answer.status == 200
