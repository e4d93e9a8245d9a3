from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sparkfleet.errors import NodeError
from sparkfleet.runtime import ports
from sparkfleet.runtime.ports import connections, free_port, is_taken


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_the_port_can_be_bound(host):
    with socket.create_server((host, free_port(host))):
        pass


def test_no_outgoing_connection_can_take_it():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 20_000 <= free_port() < lowest


def test_a_port_in_use_is_not_given(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(ports, "_LOWEST", taken)
        monkeypatch.setattr(ports, "_ephemeral_start", lambda: taken + 1)
        assert free_port() not in (0, taken)


def test_without_room_below_the_ephemeral_range(monkeypatch):
    monkeypatch.setattr(ports, "_ephemeral_start", lambda: 1024)
    assert free_port() > 0


@pytest.mark.parametrize("host", ["192.0.2.1", "not an address"])
def test_an_address_that_is_not_ours(host):
    with pytest.raises(NodeError, match="is not an address"):
        free_port(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_is_taken_while_a_program_listens_on_it_and_not_while_connections_wait_for_their_end(host):
    with socket.create_server((host, 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # first: its side waits (TIME_WAIT)
        assert is_taken(port)
    client.close()
    assert not is_taken(port)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::")])
def test_open_connections_of_a_port_are_counted(family, host):
    with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as server:
        port = server.getsockname()[1]
        assert connections(port) == 0, "it only listens"
        with socket.create_connection(("127.0.0.2", port)), socket.create_connection(("127.0.0.2", port)):
            assert connections(port) == 2
        assert connections(port) == 0, "their ends wait"
