"""The address of the endpoint that is printed is one under which another machine reaches it."""

import socket

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.head_address import LOOPBACK, HeadAddress, name_on_network
from sparkfleet.fleet.session import Session
from sparkfleet.node_daemon import gateway_address
from sparkfleet.specs.inventory import Gateway

PRIVATE = HeadAddress(ray="127.0.0.1:1", api="http://127.0.0.1:2", gateway_host=LOOPBACK, gateway_port=8000)


def test_it_is_an_address_of_this_machine():
    with socket.socket() as own:
        own.bind((name_on_network(), 0))  # only an address of this machine can be bound


def test_it_is_that_of_the_default_route(monkeypatch):
    class Routed(socket.socket):
        def connect(self, address):
            assert self.type == socket.SOCK_DGRAM, "no packet may be sent"

        def getsockname(self):
            return ("192.168.7.5", 40000)

    monkeypatch.setattr(socket, "socket", Routed)
    assert name_on_network() == "192.168.7.5"
    opened = gateway_address._next(PRIVATE, Gateway(host="0.0.0.0", port=8000))
    assert opened.endpoint == "http://192.168.7.5:8000/v1"
    named = gateway_address._next(
        PRIVATE.model_copy(update={"name": "10.0.0.9"}), Gateway(host="0.0.0.0", port=8000)
    )
    assert named.endpoint == "http://10.0.0.9:8000/v1", "the inventory's address of the head comes first"
    assert gateway_address._next(PRIVATE, Gateway()).endpoint.startswith("http://127.0.0.1:")


def test_a_machine_without_a_network_is_reached_on_loopback(monkeypatch):
    class Alone(socket.socket):
        def connect(self, address):
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "socket", Alone)
    assert name_on_network() == LOOPBACK


async def test_on_the_head_itself_the_endpoint_does_not_depend_on_the_network(tmp_path):
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    client = FleetClient(PRIVATE.model_copy(update={"gateway_host": "0.0.0.0", "name": "192.168.7.5"}), "")
    async with Session(tmp_path / "inventory.yaml") as session, session.endpoint(client) as url:
        assert url == "http://127.0.0.1:8000/v1"
        assert session.endpoint_words(client) == "Endpoint: http://192.168.7.5:8000/v1"
