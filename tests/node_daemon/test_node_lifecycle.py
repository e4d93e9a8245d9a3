"""Checks of a head before it starts."""

import errno
import re
import socket

import pytest

from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.errors import ControlError
from sparkfleet.node_daemon.node_lifecycle import check_port


def at(host, port):
    return HeadAddress(ray="127.0.0.1:1", api="127.0.0.1:2", gateway_host=host, gateway_port=port)


def test_a_port_of_another_program_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ControlError, match=f"Port {port} on 127.0.0.1 is used by another program"):
            check_port(at("127.0.0.1", port))
    check_port(at("127.0.0.1", port))


def test_an_address_that_the_node_does_not_have_is_no_taken_port():
    """As right after a boot, before the network is up: it was reported as another program's."""
    with pytest.raises(
        ControlError, match=r"203\.0\.113\.7, the endpoint's address, is not an address of this node"
    ) as caught:
        check_port(at("203.0.113.7", 8000))
    assert "Right after a boot" in caught.value.means


def test_any_other_reason_is_the_systems(monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refused)
    with pytest.raises(ControlError, match=re.escape("cannot listen on 127.0.0.1:80: Permission denied")):
        check_port(at("127.0.0.1", 80))
