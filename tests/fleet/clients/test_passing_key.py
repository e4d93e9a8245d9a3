"""A key for one command, of a real controller's API."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from controller_world import World

from sparkfleet.controlplane.api import http_api
from sparkfleet.controlplane.api.api_tokens import ApiTokens
from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.views import routing_publisher
from sparkfleet.errors import ControlError
from sparkfleet.fleet import selftest
from sparkfleet.fleet.clients import passing_key as module
from sparkfleet.fleet.clients.passing_key import AT_ONCE, LASTS_S, key_for, passing_key
from sparkfleet.gateway.access.keys import authenticate
from sparkfleet.gateway.routing_table import KeyLimits
from sparkfleet.runtime.sealed_env import EnvSealer

TOKEN = "t" * 64


@pytest.fixture
async def client(tmp_path, monkeypatch):
    monkeypatch.setattr(routing_publisher, "UNREPORTED_GATEWAY_S", 0.0)  # there is no gateway to wait for
    world = World(tmp_path)
    api = http_api.build(world.controller, ApiTokens(TOKEN), world.metrics.registry, EnvSealer(b"s" * 43))
    server = TestServer(api)
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    address = HeadAddress(ray="127.0.0.2:1", api=url, gateway_host="127.0.0.1", gateway_port=8000)
    async with FleetClient(address, TOKEN, 0.0) as client:
        client.store = world.store
        yield client
    await server.close()
    world.store.close()


async def names(client):
    return [row.name for row in await client.keys()]


def accepted(client, text, now=None):
    return (
        authenticate([(b"authorization", f"Bearer {text}".encode())], client.store.keys.all(), now)
        is not None
    )


async def test_it_is_accepted_while_it_is_used_for_one_request_at_a_time_and_not_for_long(client):
    async with passing_key(client.again()) as text:  # not entered, as the commands pass it
        assert accepted(client, text)
        (row,) = await client.keys()
        assert (row.name, row.limits.concurrent) == ("sparkfleet-ask-1", 1)
        assert not accepted(client, text, row.created + LASTS_S + 1)
    assert await names(client) == []
    assert not accepted(client, text)


async def test_it_is_revoked_after_an_error_and_its_text_is_in_no_event(client):
    with pytest.raises(OSError, match="gone"):
        async with passing_key(client) as text:
            raise OSError("gone")
    assert await names(client) == []
    assert text not in str(await client.events(0))


async def test_several_at_once_have_one_each(client):
    async def hold(seen, release):
        async with passing_key(client) as text:
            seen.append(text)
            await release.wait()

    seen, release = [], asyncio.Event()
    tasks = [asyncio.create_task(hold(seen, release)) for _ in range(AT_ONCE)]
    while len(seen) < AT_ONCE:
        await asyncio.sleep(0.01)
    assert all(accepted(client, text) for text in seen)
    assert len(set(seen)) == AT_ONCE
    with pytest.raises(ControlError, match="run already"):
        async with passing_key(client):
            pass
    release.set()
    await asyncio.gather(*tasks)
    assert await names(client) == []


async def test_those_of_killed_commands_go_once_they_have_expired_and_no_other_key_does(client, monkeypatch):
    now = module.time.time()
    await client.create_key("sparkfleet-ask-1", KeyLimits(expires=now - 1))
    await client.create_key("sparkfleet-ask-2", KeyLimits(expires=now + 100))
    await client.create_key("mine", KeyLimits(expires=now - 1))
    async with passing_key(client):
        assert sorted(await names(client)) == ["mine", "sparkfleet-ask-1", "sparkfleet-ask-2"]
        limits = {row.name: row.limits for row in await client.keys()}
        assert limits["sparkfleet-ask-1"].expires > now, "a new one"
    assert sorted(await names(client)) == ["mine", "sparkfleet-ask-2"]


async def test_a_given_key_is_used_as_it_is(client):
    async with key_for(client, "sk-mine") as text:
        assert text == "sk-mine"
        assert await names(client) == []


class OneEndpoint:
    """Session of a fleet whose endpoint answers every question, and notes if its key is accepted."""

    def __init__(self, client):
        self.endpoint = self
        self.client = client
        self.accepted = []

    async def controller(self):
        return self.client.again()

    async def trust(self, client):
        return True

    async def _answer(self, request):
        self.accepted.append(accepted(self.client, request.headers["authorization"].removeprefix("Bearer ")))
        return web.Response(text='data: {"usage": {"completion_tokens": 7}}\n\ndata: [DONE]\n\n')

    @asynccontextmanager
    async def url(self, client):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        async with TestServer(app) as server:
            yield str(server.make_url("/v1"))


async def test_the_selftest_asks_with_such_a_key_whatever_a_killed_one_has_left(client):
    await client.create_key("selftest")
    session = OneEndpoint(client)
    assert await selftest._ask(session) == 7
    assert session.accepted == [True]
    assert await names(client) == ["selftest"]
