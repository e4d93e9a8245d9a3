"""The address of the endpoint that is printed is one under which another machine reaches it."""

import contextlib
import json
import os
import socket
from ipaddress import ip_address
from types import SimpleNamespace

import pytest

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.head_address import (
    LOOPBACK,
    HeadAddress,
    gateway_entries,
    gateway_tls,
    name_on_network,
    read_address,
    write_address,
)
from sparkfleet.errors import ControlError
from sparkfleet.fleet.session import Session
from sparkfleet.gateway.listening import GatewayEntry, GatewayListening, GatewayTls, stored_listening
from sparkfleet.gateway.report import EndpointCertificate
from sparkfleet.node_daemon import gateway_address
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.inventory import Gateway, Inventory

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
    async with Session(tmp_path / "inventory.yaml") as session, session.endpoint.url(client) as url:
        assert url == "http://127.0.0.1:8000/v1"
        assert session.endpoint.words(client) == "Endpoint: http://192.168.7.5:8000/v1"


async def test_with_tls_the_endpoint_is_https_from_everywhere_and_an_older_head_has_none(tmp_path):
    tls = Gateway.model_validate({"tls": "generated", "host": "0.0.0.0", "port": 8000})
    address = gateway_address._next(PRIVATE.model_copy(update={"name": "10.0.0.9"}), tls)
    assert address.endpoint == "https://10.0.0.9:8000/v1"
    assert address.listening.tls == GatewayTls(names=("10.0.0.9",))
    given = Gateway.model_validate({"tls": {"cert": "/c.pem", "key": "/k.pem"}, "port": 8000})
    assert gateway_tls(given, "10.0.0.9") == GatewayTls(cert="/c.pem", key="/k.pem")
    assert gateway_tls(Gateway()) is None
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    async with (
        Session(tmp_path / "inventory.yaml") as session,
        session.endpoint.url(FleetClient(address, "")) as url,
    ):
        assert url == "https://127.0.0.1:8000/v1"
    assert PRIVATE.scheme == "http"


def test_a_gateway_that_starts_again_never_takes_an_unreadable_choice_for_none(tmp_path, monkeypatch):
    paths = FleetPaths(tmp_path / "state")
    default = GatewayListening(host=LOOPBACK, port=1, max_body_bytes=1, tls=GatewayTls(names=("a",)))
    stored = PRIVATE.model_copy(update={"max_body_bytes": 5, "tls": GatewayTls(cert="/c", key="/k")})
    write_address(paths, stored)
    assert stored_listening(paths, default).tls == stored.tls
    for path in (paths.address, paths.run_address):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"tls": {"sert": "/c"}}))
    assert stored_listening(paths, default) == default


async def test_programs_of_ours_wait_for_the_certificate_and_compare_its_hash(tmp_path, monkeypatch):
    monkeypatch.setattr("sparkfleet.fleet.endpoint_access.POLL_S", 0.001)
    certificate = EndpointCertificate(expires_at=0.0, sha256="ab" * 32)
    answers = [None, None, certificate]

    class Client:
        address = PRIVATE.model_copy(update={"tls": GatewayTls()})

        @contextlib.asynccontextmanager
        async def again(self):
            yield self

        async def fleet(self):
            return SimpleNamespace(certificate=answers.pop(0) if answers else None)

    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    async with Session(tmp_path / "inventory.yaml") as session:
        assert (await session.endpoint.trust(Client())).fingerprint == b"\xab" * 32
        assert not answers
        with pytest.raises(ControlError, match="has reported its certificate"):
            await session.endpoint.trust(Client())
        Client.address = PRIVATE
        assert await session.endpoint.trust(Client()) is True


def two_sparks(**gateway):
    nodes = {
        name: {"address": f"10.0.0.{number}", "user": "u", "host_key": "SHA256:" + "A" * 43}
        for number, name in enumerate(("a", "b"), start=1)
    }
    ends = [{"netdev": "enp1s0f1np1", "address": f"192.168.100.1{number}/24"} for number in (0, 1)]
    links = [{"nodes": ["a", "b"], "rails": [ends]}]
    text = {"fleet": "home", "head": "a", "nodes": nodes, "links": links, "gateway": gateway}
    return Inventory.model_validate_json(json.dumps(text))


@pytest.mark.parametrize(
    ("host", "listens", "name", "target"),
    [
        ("0.0.0.0", "0.0.0.0", "10.0.0.2", "192.168.100.10"),
        ("10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.1"),
        ("192.168.100.10", "192.168.100.11", "10.0.0.2", "192.168.100.10"),
    ],
)
def test_an_entry_reaches_the_gateway_where_it_listens_and_never_over_loopback(host, listens, name, target):
    (entry,) = gateway_entries(two_sparks(host=host, nodes="all"))
    assert entry == GatewayEntry(node="b", host=listens, name=name, target=target)
    assert not ip_address(entry.target).is_loopback, "which the gateway's page trusts"


def test_an_inventory_without_nodes_has_no_entry():
    assert gateway_entries(two_sparks(host="0.0.0.0")) == ()


def test_the_addresses_of_the_endpoint_are_stored_and_an_older_head_has_one(tmp_path):
    inventory = two_sparks(host="0.0.0.0", port=8000, nodes="all", tls="generated")
    entries = gateway_entries(inventory)
    before = PRIVATE.model_copy(update={"name": "10.0.0.1"})
    address = gateway_address._next(before, inventory.gateway, entries)
    assert [address.endpoint_at(one) for one in address.entries] == ["https://10.0.0.2:8000/v1"]
    assert address.tls.names == ("10.0.0.1", "10.0.0.2", "b"), "a certificate for every address"
    paths = FleetPaths(tmp_path / "state")
    write_address(paths, address)
    assert read_address(paths) == address
    write_address(paths, PRIVATE)
    assert "entries" not in json.loads(paths.address.read_text()), "a release before can read it"
    assert read_address(paths).entries == ()


def test_an_address_of_ipv6_is_a_url():
    one = PRIVATE.model_copy(update={"gateway_host": "::", "name": "fd00::1"})
    assert one.endpoint == "http://[fd00::1]:8000/v1"


def test_the_address_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """The other copy is gone after a boot: a head without power soon after its start did not know its own address."""
    paths, synced = FleetPaths(tmp_path / "state"), []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(paths.address.exists()))
    write_address(paths, PRIVATE)
    assert synced[0] is False
