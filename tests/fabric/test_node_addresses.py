import pytest
from address_values import cable, end, inventory, spark

from sparkfleet.errors import ControlError
from sparkfleet.fabric.node_addresses import node_addresses


def test_a_fleet_of_one_stays_on_loopback():
    (only,) = node_addresses(inventory({"this": {"address": "local"}})).values()
    assert only.address.startswith("127.")
    assert only.netdev is None


def test_two_on_a_cable_meet_on_its_first_rail():
    found = node_addresses(inventory({"a": spark(1), "b": spark(2)}, (cable("a", "b", 100),)))
    assert {name: one.address for name, one in found.items()} == {
        "a": "192.168.100.10",
        "b": "192.168.100.11",
    }
    assert found["a"].netdev == "enp1s0f1np1"


def test_on_a_switch_everybody_is_in_one_subnet():
    nodes = {name: spark(number) for number, name in enumerate("abc", start=1)}
    links = tuple(
        {"nodes": (name,), "switch": "sw", "rails": ((end(100, number),),)}
        for number, name in enumerate("abc", start=10)
    )
    assert [one.address for one in node_addresses(inventory(nodes, links)).values()] == [
        "192.168.100.10",
        "192.168.100.11",
        "192.168.100.12",
    ]


def test_a_ring_has_no_common_subnet_so_its_nodes_meet_on_the_management_network():
    nodes = {name: spark(number) for number, name in enumerate("abc", start=1)}
    links = (cable("a", "b", 100, "01"), cable("b", "c", 101, "01"), cable("c", "a", 102, "01"))
    found = node_addresses(inventory(nodes, links))
    assert {one.address for one in found.values()} == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}
    assert not any(one.netdev for one in found.values())


def test_a_local_node_without_a_rail_has_no_address_for_the_others():
    with pytest.raises(ControlError, match="address: local") as caught:
        node_addresses(inventory({"a": {"address": "local"}, "b": spark(2)}))
    assert "sparkfleet init" in caught.value.do


def test_a_local_node_on_a_rail_has_an_address():
    found = node_addresses(inventory({"a": {"address": "local"}, "b": spark(2)}, (cable("a", "b", 100),)))
    assert found["a"].address == "192.168.100.10"
