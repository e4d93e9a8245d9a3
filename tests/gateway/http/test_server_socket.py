"""Sockets of the gateway and its entries: how many connections one process, and one client, may hold."""

import pytest

from sparkfleet.gateway.http import server_socket
from sparkfleet.gateway.http.server_socket import Connections


def test_connections_are_counted_by_address() -> None:
    counted = Connections(4)
    assert counted.begin("a")
    assert counted.begin("a")
    assert not counted.begin("a")
    counted.end("a")
    assert counted.begin("b")
    assert counted.begin("c")
    assert not counted.begin("d")
    counted.end("d")
    counted.end("a")
    assert counted.begin("d")


def test_a_process_with_few_files_raises_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"soft": 1024, "hard": 20_000}

    def set_limit(_: int, both: tuple[int, int]) -> None:
        limits["soft"] = both[0]

    monkeypatch.setattr(server_socket.resource, "getrlimit", lambda _: (limits["soft"], limits["hard"]))
    monkeypatch.setattr(server_socket.resource, "setrlimit", set_limit)
    assert server_socket.connection_limit() == server_socket.CONNECTIONS
    assert limits["soft"] == 2 * server_socket.CONNECTIONS + 200
    limits.update(soft=1024, hard=1024)
    assert server_socket.connection_limit() == 412
