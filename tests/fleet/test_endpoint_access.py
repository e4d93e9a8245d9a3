"""The endpoint's address as `up` and `apply` print it, and the wait until it serves."""

from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from open_client import OpenClient

from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.fleet.endpoint_access import EndpointAccess


def words(host, *, from_the_head):
    """The line that is printed for a gateway that listens at `host`, of a head at 192.168.1.20."""
    address = HeadAddress(
        ray="10.0.0.1:6379",
        api="http://127.0.0.1:1",
        gateway_host=host,
        gateway_port=8000,
        name="192.168.1.20",
    )
    access = SimpleNamespace(
        reach=None if from_the_head else object(), inventory=SimpleNamespace(head="spark1")
    )
    return EndpointAccess(access).words(SimpleNamespace(address=address))


@pytest.mark.parametrize("from_the_head", [True, False])
def test_a_gateway_of_the_network_has_the_address_at_which_others_reach_it(from_the_head):
    assert words("0.0.0.0", from_the_head=from_the_head) == "Endpoint: http://192.168.1.20:8000/v1"


def test_on_loopback_the_line_that_opens_it_is_for_those_who_are_elsewhere():
    assert words("127.0.0.1", from_the_head=True) == "Endpoint: http://127.0.0.1:8000/v1"
    assert words("127.0.0.1", from_the_head=False) == (
        "Endpoint: http://127.0.0.1:8000/v1 (only on spark1; `gateway: {host: 0.0.0.0}` in the inventory opens it"
        " to the network)"
    )


class AddressedClient(OpenClient):
    """A controller whose fleet has its endpoint at this port of loopback."""

    def __init__(self, port):
        self.address = HeadAddress(
            ray="127.0.0.1:1", api="http://127.0.0.1:1", gateway_host="127.0.0.1", gateway_port=port, name="a"
        )


async def serving(states, wait_s=5.0):
    """The outcome of a wait for a gateway that reports these states, the last one again and again; and what is left."""

    async def health(_):
        return web.json_response({"status": states.pop(0) if len(states) > 1 else states[0]})

    app = web.Application()
    app.router.add_get("/v1/health", health)
    async with TestServer(app) as server:
        access = EndpointAccess(SimpleNamespace(reach=None, inventory=SimpleNamespace(head="a")))
        return await access.until_serving(AddressedClient(server.port), wait_s)


async def test_a_gateway_without_a_routing_table_is_waited_for():
    """The first request after `upgrade` got a 503, as nothing waits for a deployment on demand."""
    states = ["starting", "starting", "ok"]
    assert await serving(states)
    assert states == ["ok"]


async def test_one_that_gets_none_is_not_waited_for_without_end():
    assert not await serving(["starting"], 0.3)


async def test_one_that_is_not_there_is_waited_for_too(unused_tcp_port):
    access = EndpointAccess(SimpleNamespace(reach=None, inventory=SimpleNamespace(head="a")))
    assert not await access.until_serving(AddressedClient(unused_tcp_port), 0.3)
