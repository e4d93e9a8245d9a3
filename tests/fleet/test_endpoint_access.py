"""The endpoint's address as `up` and `apply` print it."""

from types import SimpleNamespace

import pytest

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
