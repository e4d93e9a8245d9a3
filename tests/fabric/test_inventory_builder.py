import pytest
from inventory_texts import INVENTORY, KEY

from sparkfleet.fabric.discovery import DiscoveredLinks, FoundEnd, FoundLink, FoundRail
from sparkfleet.fabric.inventory_builder import (
    EnrolledMachine,
    describe,
    merge,
    name_machines,
    node_name,
    usable_links,
)
from sparkfleet.specs.inventory import Node
from sparkfleet.specs.load import parse_inventory


def machine(address, hostname, **more):
    return EnrolledMachine(node=Node(address=address, user="u", host_key=KEY, **more), hostname=hostname)


def test_host_names_become_node_names():
    assert node_name("spark-5c2d.local") == "spark-5c2d"
    assert node_name("AI_TOP ATOM") == "ai-top-atom"
    assert node_name("…") == ""
    assert len(node_name("x" * 80)) == 28


def test_names_are_unique_and_those_of_before_stay():
    old = parse_inventory(
        f'fleet: f\nhead: big\nnodes:\n  big: {{address: 10.0.0.2, user: u, host_key: "{KEY}"}}\n'
    )
    machines = [machine("10.0.0.1", "spark"), machine("10.0.0.2", "spark"), machine("10.0.0.3", "spark")]
    named = name_machines([*machines, machine("10.0.0.4", "???")], old)
    assert {name: node.address for name, node in named.items()} == {
        "spark": "10.0.0.1",
        "big": "10.0.0.2",
        "spark-2": "10.0.0.3",
        "node4": "10.0.0.4",
    }


@pytest.fixture
def found(netdev):
    """found([a's addresses], [b's addresses]) per rail → what was found between spark1 and spark2."""

    def make(*rails):
        names = ("enp1s0f1np1", "enP2p1s0f1np1")
        made = [
            FoundRail(
                ends=tuple(
                    FoundEnd(node=f"spark{n}", netdev=netdev(n, name, *given), rdma=f"r{n}{name[:3]}")
                    for n, given in enumerate(addresses, start=1)
                ),
                methods=("arp",),
            )
            for name, addresses in zip(names, rails, strict=False)
        ]
        return DiscoveredLinks(links=(FoundLink(nodes=("spark1", "spark2"), rails=tuple(made)),), findings=())

    return make


def test_rails_with_addresses_are_links(found):
    links, doubts = usable_links(
        found((["192.168.100.10/24"], ["192.168.100.11/24"]), (["192.168.101.10/24"], ["192.168.101.11/24"]))
    )
    assert [rail[1].address for rail in links[0].rails] == ["192.168.100.11/24", "192.168.101.11/24"]
    assert doubts == ()


def test_a_rail_keeps_the_subnet_of_its_own_beside_one_of_both_halves(found):
    """As if NVIDIA's script for two Sparks ran first: netplan merges its file, both halves in one subnet, with ours."""
    rails = (
        (["192.168.0.1/24"], ["192.168.0.3/24"]),
        (["192.168.0.2/24", "192.168.100.10/24"], ["192.168.0.4/24", "192.168.100.11/24"]),
    )
    links, doubts = usable_links(found(*rails))
    assert [rail[0].address for rail in links[0].rails] == ["192.168.0.1/24", "192.168.100.10/24"]
    assert doubts == ()


def test_a_rail_without_addresses_is_left_out_with_the_reason(found):
    links, doubts = usable_links(found((["192.168.100.10/24"], [])))
    assert links == ()
    assert doubts[0] == "enp1s0f1np1 of spark1 – enp1s0f1np1 of spark2: no address on spark2."
    assert "sparkfleet fabric plan" in doubts[1]


def test_ends_with_the_same_address_are_named_with_it(found):
    """As after one netplan file on both nodes; the reason was "its ends are not in one subnet"."""
    links, doubts = usable_links(found((["192.168.100.10/24"], ["192.168.100.10/24"])))
    assert links == ()
    assert "its ends have the same address, 192.168.100.10/24" in doubts[0]


def test_an_address_that_is_invalid_in_an_inventory_is_left_out_with_the_reason(found):
    links, doubts = usable_links(found((["192.168.100.0/24"], ["192.168.100.11/24"])))
    assert links == ()
    assert "192.168.100.0/24" in doubts[0]


def test_two_rails_in_one_subnet_are_one_rail_and_a_reason(found):
    links, doubts = usable_links(
        found((["192.168.200.12/24"], ["192.168.200.13/24"]), (["192.168.200.14/24"], ["192.168.200.15/24"]))
    )
    assert len(links[0].rails) == 1
    assert "192.168.200.0/24 is the subnet of another rail of spark1" in doubts[0]


def test_fields_that_a_person_wrote_are_kept():
    old = parse_inventory(INVENTORY)
    seen = {name: old.nodes[name] for name in ("spark1", "spark2")}
    new_link = old.links[0].model_copy(update={"switch": "switch"})
    merged = merge(old, seen, [new_link], "ignored")
    assert (merged.fleet, merged.head, merged.gateway.host) == ("home", "spark2", "0.0.0.0")
    assert merged.nodes["spark1"].engines["vllm"].python == "/opt/vllm/bin/python"
    assert [link.switch for link in merged.links] == ["top-shelf", "top-shelf"]
    assert merged == old


def test_a_new_node_is_at_the_switch_that_a_person_has_named(switched):
    """It was at `switch`, the others at `top-shelf`: two switches, and no way from one to the other."""
    found = switched(4)
    old = found.model_copy(
        update={"links": tuple(one.model_copy(update={"switch": "top-shelf"}) for one in found.links[:3])}
    )
    merged = merge(old, found.nodes, found.links, "f")
    assert [link.switch for link in merged.links] == ["top-shelf"] * 4
    two = old.model_copy(
        update={
            "links": (old.links[0], *(one.model_copy(update={"switch": "shelf"}) for one in old.links[1:]))
        }
    )
    assert [link.switch for link in merge(two, found.nodes, found.links, "f").links] == [
        *("top-shelf", "shelf", "shelf"),
        found.links[3].switch,
    ], "of two named switches nobody knows which it is"


def test_a_new_inventory_begins_with_its_first_node():
    merged = merge(None, {"b": Node(address="local"), "a": machine("10.0.0.1", "x").node}, [], "home")
    assert (merged.head, merged.fleet) == ("b", "home")


def test_a_switch_is_not_called_switch_twice():
    link = FoundLink(nodes=("a",), switch="switch", rails=())
    assert describe(link) == "a – switch"
    assert describe(link.model_copy(update={"switch": "crs812"})) == "a – switch crs812"


def test_the_packaged_inventory_is_replaced():
    old = parse_inventory(
        "fleet: home\nhead: this\nnodes:\n  this: {address: local}\ngateway: {port: 9000}\n"
    )
    spark = machine("10.0.0.1", "x").node
    merged = merge(old, {"spark1": spark}, [], "ignored")
    assert dict(merged.nodes) == {"spark1": spark}
    assert (merged.fleet, merged.head, merged.gateway.port) == ("home", "spark1", 9000)
    both = merge(old, {"this": old.nodes["this"], "spark1": spark}, [], "ignored")
    assert (both.head, list(both.nodes)) == ("this", ["this", "spark1"])
