"""Browsers: which sites' scripts may use the endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
import pytest
from gateway_values import CHAT

from sparkfleet.errors import SpecError
from sparkfleet.gateway.page.page_app import PageApp
from sparkfleet.specs.load import parse_inventory

if TYPE_CHECKING:
    from conftest import OpenDoor

SITE = "https://chat.example.org"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


async def nothing() -> str:
    return "{}"


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (SITE, True),
        ("https://chat.example.org.evil.net", False),
        ("http://chat.example.org", False),
        ("null", False),
        ("*", False),
    ],
)
async def test_only_listed_sites_may_read(open_door: OpenDoor, origin: str, allowed: bool) -> None:
    door = await open_door(origins=[SITE])
    async with aiohttp.request("OPTIONS", door.url + CHAT, headers={"origin": origin, **PREFLIGHT}) as answer:
        assert answer.status == 204
        assert answer.headers.get("access-control-allow-origin") == (origin if allowed else None)
        assert answer.headers.get("access-control-allow-headers") == (
            "authorization,content-type" if allowed else None
        )
    for body, status in ((door.body(), 200), (door.body(model="huge"), 404), (door.body(stream=True), 200)):
        async with door.http.post(door.url + CHAT, json=body, headers={"origin": origin}) as answer:
            assert answer.status == status
            assert answer.headers.getall("access-control-allow-origin", []) == ([origin] if allowed else [])
            assert ("vary" in answer.headers) == allowed
            assert "access-control-allow-credentials" not in answer.headers
    assert all("origin" not in request.headers for request in door.engine.requests)
    assert door.engine.requests


async def test_without_a_list_no_site_may(open_door: OpenDoor) -> None:
    door = await open_door()
    async with door.http.post(door.url + CHAT, json=door.body(), headers={"origin": SITE}) as answer:
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


async def test_the_page_is_never_readable_for_other_sites(open_door: OpenDoor) -> None:
    door = await open_door(origins=[SITE], page=PageApp(nothing))
    for path in ("/", "/api/fleet"):
        async with door.http.get(door.url + path, headers={"origin": SITE}) as answer:
            assert answer.status == 200
            assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["*", "null", SITE + "/", "https://Chat.example.org", "ftp://a", "https://a b"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    text = f'fleet: home\nhead: a\nnodes: {{a: {{address: local}}}}\ngateway: {{origins: ["{origin}"]}}\n'
    with pytest.raises(SpecError, match="origins"):
        parse_inventory(text)
    assert parse_inventory(text.replace(origin, SITE)).gateway.origins == (SITE,)
